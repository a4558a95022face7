"""Attention that sees a window of the keys: around step t (local-m), or around a predicted place (local-p).

Global attention scores every key for every query. Luong et al. (2015, section 3.2) let a query see
only the keys at most D positions from a centre p; here D is called ``reach``. Positions count from 0.
The scores of all keys are computed and the far ones masked: this shows what local attention *sees*,
not what it saves.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course import masks
from attention_course.attention import Score, attend, mix
from attention_course.scores import dot

Centres = Float[Tensor, "... T_q"] | Int[Tensor, "... T_q"]


def window(centres: Centres, T_k: int, reach: int) -> Bool[Tensor, "... T_q T_k"]:
    """Return the mask of the keys at most ``reach`` positions from each query's centre.

    Shapes: centres [..., T_q], whole numbers or not -> [..., T_q, T_k]. A window may stick out over
    either end, or lie outside altogether; then its row is False. Raises a ``ValueError`` for a
    ``reach`` below 0. Source: Luong et al. 2015, section 3.2, with the window [p - D, p + D].
    """
    _check_reach(reach, 0)
    return _offsets(centres, T_k).abs() <= reach


def gaussian(centres: Centres, T_k: int, reach: int) -> Float[Tensor, "... T_q T_k"]:
    """Return exp(-(j - p)² / 2σ²) for every key j, with σ = reach / 2 (Luong et al. 2015, equation 10).

    Shapes: centres [..., T_q] -> [..., T_q, T_k]; 1 at the centre, e⁻² at the window's rim. Raises a
    ``ValueError`` for a ``reach`` below 1.
    """
    _check_reach(reach, 1)
    return torch.exp(-(_offsets(centres, T_k) ** 2) / (2 * (reach / 2) ** 2))


def predicted_centres(
    query: Float[Tensor, "... T_q d_q"],
    lengths: Int[Tensor, "..."],
    weight: Float[Tensor, "d_q hidden"],
    v: Float[Tensor, " hidden"],
) -> Float[Tensor, "... T_q"]:
    """Return S · sigmoid(vᵀ tanh(W q)), a place in each query's own sentence (Luong et al. 2015, equation 9).

    Shapes: query [..., T_q, d_q], lengths [...] (one S for each sentence), weight [d_q, hidden],
    v [hidden] -> [..., T_q], each between 0 and S, in float32 at least. Raises a ``ValueError`` for
    lengths that are not one per sentence and for weights that do not fit.
    """
    wanted = (query.shape[-1], v.shape[-1])
    if weight.shape != wanted:
        raise ValueError(f"weight must have shape [d_q, hidden] = {wanted}, got {tuple(weight.shape)}")
    if lengths.shape != query.shape[:-2]:
        raise ValueError(
            f"lengths must have the query's leading dimensions {tuple(query.shape[:-2])}, "
            f"got {tuple(lengths.shape)}"
        )
    wide = torch.promote_types(query.dtype, torch.float32)  # bfloat16 cannot tell position 257 from 258
    query, weight, v = query.to(wide), weight.to(wide), v.to(wide)
    return lengths.unsqueeze(-1) * ((query @ weight).tanh() @ v).sigmoid()


def attend_window(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    centres: Centres,
    *,
    reach: int,
    attn_mask: Bool[Tensor, "..."] | None = None,
    score: Score = dot,
) -> tuple[Float[Tensor, "... T_q d_v"], Float[Tensor, "... T_q T_k"]]:
    """Return ``(context, weights)`` over the keys near each query's centre; rows sum to 1.

    With centres 0, 1, 2, … this is local-m (Luong et al. 2015, section 3.2). Shapes as in ``attend``,
    centres [..., T_q]. A query whose window holds no visible key gets zeros. Raises as ``attend``
    does, and a ``ValueError`` for centres that are not one per query.
    """
    _check_centres(centres, query)
    near = masks.combine(attn_mask, window(centres, key.shape[-2], reach))
    return attend(query, key, value, attn_mask=near, score=score)


def attend_gaussian(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    centres: Centres,
    *,
    reach: int,
    attn_mask: Bool[Tensor, "..."] | None = None,
    score: Score = dot,
) -> tuple[Float[Tensor, "... T_q d_v"], Float[Tensor, "... T_q T_k"]]:
    """Return ``(context, weights)`` near each centre, times a Gaussian (Luong et al. 2015, equation 10).

    The Gaussian multiplies the weights *after* the softmax, so a row sums to less than 1. It is also
    the one way by which a gradient reaches ``centres``. Shapes and errors as in ``attend_window``.
    """
    _, weights = attend_window(query, key, value, centres, reach=reach, attn_mask=attn_mask, score=score)
    wide = torch.promote_types(weights.dtype, torch.float32)
    weights = (weights * gaussian(centres.to(wide), key.shape[-2], reach)).to(weights.dtype)
    return mix(weights, value), weights


class Monotonic(nn.Module):
    """Query t sees the keys around position t (Luong et al. 2015, "local-m"); no weights."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        _check_reach(reach, 0)
        self.reach = reach

    def forward(
        self,
        query: Float[Tensor, "B T_q d_q"],
        key: Float[Tensor, "B T_k d_k"],
        value: Float[Tensor, "B T_k d_v"],
        attn_mask: Bool[Tensor, "B 1 T_k"],
        *,
        first: int,
        score: Score,
    ) -> tuple[Float[Tensor, "B T_q d_v"], Float[Tensor, "B T_q T_k"]]:
        """Return ``(context, weights)``; the first query is that of step ``first``."""
        steps = torch.arange(first, first + query.shape[1], device=query.device)  # [T_q]
        return attend_window(query, key, value, steps, reach=self.reach, attn_mask=attn_mask, score=score)


class Predictive(nn.Module):
    """Each query says itself where its window lies (Luong et al. 2015, "local-p")."""

    def __init__(self, d_q: int, hidden: int, reach: int) -> None:
        super().__init__()
        _check_reach(reach, 1)
        self.reach = reach
        self.hidden = nn.Linear(d_q, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)

    def centres(
        self, query: Float[Tensor, "B T_q d_q"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B T_q"]:
        """Return where each query looks, between 0 and its sentence's length."""
        return predicted_centres(query, lengths, self.hidden.weight.T, self.v.weight[0])

    def forward(
        self,
        query: Float[Tensor, "B T_q d_q"],
        key: Float[Tensor, "B T_k d_k"],
        value: Float[Tensor, "B T_k d_v"],
        attn_mask: Bool[Tensor, "B 1 T_k"],
        *,
        first: int,
        score: Score,
    ) -> tuple[Float[Tensor, "B T_q d_v"], Float[Tensor, "B T_q T_k"]]:
        """Return ``(context, weights)``, each sentence as long as ``attn_mask`` says. Steps do not count."""
        centres = self.centres(query, attn_mask.sum((-2, -1)))
        return attend_gaussian(query, key, value, centres, reach=self.reach, attn_mask=attn_mask, score=score)


def _offsets(centres: Tensor, T_k: int) -> Float[Tensor, "... T_q T_k"]:
    """How far each key lies to the right of each centre."""
    if not centres.is_floating_point():
        centres = centres.float()
    return torch.arange(T_k, device=centres.device) - centres.unsqueeze(-1)


def _check_reach(reach: int, least: int) -> None:
    if reach < least:
        why = ", for σ is half of it" if least else ""
        raise ValueError(f"reach must be at least {least}{why}, got {reach}")


def _check_centres(centres: Tensor, query: Tensor) -> None:
    """One centre per query: a single one would stretch over all queries, and nothing would complain."""
    wanted = tuple(query.shape[:-1])
    try:
        fits = torch.broadcast_shapes(centres.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits or centres.shape[-1:] != wanted[-1:]:
        raise ValueError(f"centres must be one per query, {wanted}, got {tuple(centres.shape)}")
    if centres.device != query.device:
        raise ValueError(f"centres must be on the query's device {query.device}, got {centres.device}")
