"""Who may look at whom?

A mask is boolean and True where a query may look, as in ``F.scaled_dot_product_attention`` and
Keras. Queries run down, keys across: the last two dimensions are [T_q, T_k].
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.inputs import check_range

Mask = Bool[Tensor, "... T_q T_k"]


def padding(lengths: Int[Tensor, " batch"], T: int) -> Bool[Tensor, "batch 1 T"]:
    """Return the mask that hides the padding behind each sequence's ``lengths[i]`` tokens.

    Shapes: lengths [batch] -> [batch, 1, T], to broadcast over the queries. With heads, insert
    their dimension: ``padding(lengths, T).unsqueeze(1)``. Raises a ``ValueError`` for a length
    below 0 or above ``T``.
    """
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be integers, got {lengths.dtype}")
    if lengths.dim() != 1:
        raise ValueError(f"lengths must have shape [batch], got {tuple(lengths.shape)}")
    check_range("lengths", lengths, 0, T, f"T = {T}")
    return (torch.arange(T, device=lengths.device) < lengths[:, None]).unsqueeze(-2)


def causal(
    T_q: int, T_k: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "T_q T_k"]:
    """Return the mask with which no query sees a later key, aligned at the last query and key.

    Query i sees key j where j - i <= T_k - T_q. With T_q = T_k this is the usual lower triangle.
    With T_q < T_k the queries are the *last* T_q positions, as in decoding with a cache; with
    T_q > T_k the first T_q - T_k queries see nothing. torch's ``is_causal=True`` aligns the first
    query with the first key instead (``torch.nn.attention.bias.causal_upper_left``).
    """
    T_k = T_q if T_k is None else T_k
    query, key = _places(T_q, T_k, device)
    return key <= query


def window(
    T_q: int,
    T_k: int,
    size: int,
    *,
    is_causal: bool = False,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "T_q T_k"]:
    """Return the mask of a sliding window: keys fewer than ``size`` positions away.

    With ``is_causal`` each query sees itself and the ``size - 1`` keys before it; without, also the
    ``size - 1`` keys after it. Positions are aligned at the last query and key, as in ``causal``.
    Raises a ``ValueError`` when ``size`` is below 1.
    """
    return _band(T_q, T_k, size, is_causal, device)


def strided(
    T: int, stride: int, *, is_causal: bool = False, device: torch.device | str | None = None
) -> Bool[Tensor, "T T"]:
    """Return the mask of the keys a whole number of strides away, the query's own among them.

    With ``is_causal`` only those up to the query. That is the second half of the strided pattern of
    Child et al. (2019, section 4.3); its first half is ``window(T, T, stride + 1, is_causal=True)``.
    Raises a ``ValueError`` when ``stride`` is below 1.
    """
    _check_size("the stride", stride)
    remainder = torch.arange(T, device=device) % stride  # equal where the distance is a multiple
    return _up_to_the_query(remainder[:, None] == remainder, is_causal)


def blocks(
    T: int, size: int, *, is_causal: bool = False, device: torch.device | str | None = None
) -> Bool[Tensor, "T T"]:
    """Return the mask of the keys in the query's own block of ``size`` positions.

    Blocks are counted from position 0; the last one may be shorter. With ``is_causal`` only the keys
    up to the query: the first half of the fixed pattern of Child et al. (2019, section 4.3). Raises a
    ``ValueError`` when ``size`` is below 1.
    """
    _check_size("the block's size", size)
    block = torch.arange(T, device=device) // size
    return _up_to_the_query(block[:, None] == block, is_causal)


def summaries(
    T: int, size: int, count: int = 1, *, is_causal: bool = False, device: torch.device | str | None = None
) -> Bool[Tensor, "T T"]:
    """Return the mask of the last ``count`` positions of every block of ``size``, whoever asks.

    With ``is_causal`` only those up to the query: the second half of the fixed pattern of Child et al.
    (2019, section 4.3), whose c is ``count``. Raises a ``ValueError`` when ``size`` is below 1 or
    ``count`` is not between 1 and ``size``.
    """
    _check_size("the block's size", size)
    if not 1 <= count <= size:
        raise ValueError(f"count must be between 1 and the block's size {size}, got {count}")
    last = torch.arange(T, device=device) % size >= size - count
    return _up_to_the_query(last.expand(T, T), is_causal)


def reached(first: Bool[Tensor, "T T"], *more: Bool[Tensor, "T T"]) -> Bool[Tensor, "T T"]:
    """Return who has heard of whom after one layer of attention for each mask, the first at the bottom.

    In each layer a query hears of the keys it may look at, and of all that these have heard of in the
    layers below. It also keeps what it knows, as a residual connection does. Raises a ``TypeError`` or
    ``ValueError`` for masks that are not boolean, or not square and all of one size.
    """
    layers = (first, *more)
    for layer in layers:
        _check_square(layer, len(first))
    heard = torch.eye(len(first), dtype=torch.bool, device=first.device)
    for layer in layers:
        heard = heard | (layer.float() @ heard.float() > 0)
    return heard


def path_length(mask: Bool[Tensor, "T T"], goal: Bool[Tensor, "T T"] | None = None) -> int | None:
    """Return after how many layers under ``mask`` everyone has heard of all whom ``goal`` names.

    Without a ``goal`` that is everyone; for a causal mask give ``causal(T)``. ``None`` comes back when
    no number of layers is enough. Raises as ``reached`` does.
    """
    _check_square(mask, len(mask))
    if goal is None:
        goal = torch.ones_like(mask)
    _check_square(goal, len(mask))
    heard, layers = torch.eye(len(mask), dtype=torch.bool, device=mask.device), 0
    while not heard[goal].all():
        further = heard | (mask.float() @ heard.float() > 0)
        if torch.equal(further, heard):
            return None
        heard, layers = further, layers + 1
    return layers


def combine(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Return the mask that allows what every one of ``masks`` allows; ``None`` allows everything.

    Shapes broadcast. Raises a ``TypeError`` for a mask that is not boolean and a ``ValueError`` for
    shapes that do not broadcast.
    """
    result = None
    for mask in masks:
        if mask is None:
            continue
        if mask.dtype != torch.bool:
            raise TypeError(f"masks must be boolean (True = may look), got {mask.dtype}")
        if result is None:
            result = mask
            continue
        try:
            result = result & mask
        except RuntimeError as error:
            raise ValueError(
                f"masks must broadcast, got {tuple(result.shape)} and {tuple(mask.shape)}"
            ) from error
    return result


def from_torch_blocked(mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return ``mask`` with its meaning turned round: nn.MultiheadAttention's True = may *not* look.

    Works in both directions. ``key_padding_mask`` [batch, T_k] comes out as [batch, T_k]; insert
    the dimensions for heads and queries yourself. Raises a ``TypeError`` for a mask that is not
    boolean: a float mask is added to the scores and means the same everywhere.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, got {mask.dtype}")
    return ~mask


def with_structure(
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    *,
    is_causal: bool = False,
    window: int | None = None,
) -> Bool[Tensor, "..."] | Float[Tensor, "..."] | None:
    """Return one mask for what ``attn_mask``, ``is_causal`` and ``window`` allow together.

    A boolean ``attn_mask`` stays boolean; a floating-point one, which is added to the scores, gets
    -inf where the others forbid. ``None`` comes back when everything is allowed.
    """
    T_q, T_k, device = query.shape[-2], key.shape[-2], query.device
    if window is not None:
        structure = _band(T_q, T_k, window, is_causal, device)
    elif is_causal:
        structure = causal(T_q, T_k, device=device)
    else:
        return attn_mask
    if attn_mask is not None and attn_mask.is_floating_point():
        return attn_mask.masked_fill(~structure, -torch.inf)
    return combine(attn_mask, structure)


def with_bias(
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    bias: Float[Tensor, "... T_q T_k"],
    query: Float[Tensor, "... T_q d_k"],
) -> Float[Tensor, "..."]:
    """Return the floating-point mask that adds ``bias`` where ``attn_mask`` allows, and -inf elsewhere.

    A floating-point ``attn_mask`` is added to the bias. The result has at least as many axes as ``query``,
    because torch's fast kernels want the mask's as well.
    """
    bias = bias.reshape((1,) * (query.dim() - bias.dim()) + bias.shape)
    if attn_mask is None:
        return bias
    if attn_mask.is_floating_point():
        return attn_mask + bias
    return torch.where(attn_mask, bias, -torch.inf)


def _band(
    T_q: int, T_k: int, size: int, is_causal: bool, device: torch.device | str | None
) -> Bool[Tensor, "T_q T_k"]:
    if size < 1:
        raise ValueError(f"the window's size must be at least 1, got {size}")
    query, key = _places(T_q, T_k, device)
    band = key > query - size
    band &= key <= query if is_causal else key < query + size
    return band


def _places(
    T_q: int, T_k: int, device: torch.device | str | None
) -> tuple[Int[Tensor, "T_q 1"], Int[Tensor, " T_k"]]:
    """Where queries and keys stand, the last ones side by side.

    To compare them takes a byte for each pair; a table of their distances would take eight.
    """
    for name, length in (("T_q", T_q), ("T_k", T_k)):
        if length < 0:
            raise ValueError(f"{name} must be at least 0, got {length}")
    query = torch.arange(T_k - T_q, T_k, device=device)
    key = torch.arange(T_k, device=device)
    return query[:, None], key


def _up_to_the_query(mask: Bool[Tensor, "T T"], is_causal: bool) -> Bool[Tensor, "T T"]:
    return mask.tril() if is_causal else mask.clone()


def _check_size(name: str, size: int) -> None:
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")


def _check_square(mask: Tensor, T: int) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"masks must be boolean (True = may look), got {mask.dtype}")
    if mask.shape != (T, T):
        raise ValueError(f"masks must be square and of one size, [{T}, {T}], got {tuple(mask.shape)}")
