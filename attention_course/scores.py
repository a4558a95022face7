"""How well does a key match a query?

A score is a function ``(query [..., T_q, d_q], key [..., T_k, d_k]) -> [..., T_q, T_k]``. Leading
dimensions broadcast. The functions are the formulas; the modules hold their learned weights.

Inputs narrower than float32 are widened first, so that a product of large float16 numbers does
not overflow before the softmax sees it.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_course import kernels
from attention_course.inputs import check_same_width
from attention_course.kernels.additive import additive_scores


def dot(
    query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
) -> Float[Tensor, "... T_q T_k"]:
    """Return q·k for every pair (Luong et al. 2015, section 3.1, "dot").

    Shapes: query [..., T_q, d_k], key [..., T_k, d_k] -> [..., T_q, T_k]. Raises a ``ValueError``
    when the two widths differ.
    """
    query, key = _widened(query, key)
    check_same_width(query, key)
    return query @ key.mT


def scaled_dot(
    query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"], *, scale: float | None = None
) -> Float[Tensor, "... T_q T_k"]:
    """Return q·k times ``scale``, which is 1/√d_k unless given (Vaswani et al. 2017, equation 1).

    Shapes: query [..., T_q, d_k], key [..., T_k, d_k] -> [..., T_q, T_k].
    """
    query, key = _widened(query, key)
    check_same_width(query, key)
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    return (query * scale) @ key.mT  # scaled before the product: it cannot overflow on the way


def cosine(
    query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"], *, eps: float = 1e-8
) -> Float[Tensor, "... T_q T_k"]:
    """Return the cosine of the angle between q and k (Graves et al. 2014, equation 6).

    Shapes: query [..., T_q, d_k], key [..., T_k, d_k] -> [..., T_q, T_k], each between -1 and 1.
    Vectors shorter than ``eps`` count as length ``eps``: a zero vector matches everything equally.
    """
    query, key = _widened(query, key)
    check_same_width(query, key)
    return nn.functional.normalize(query, dim=-1, eps=eps) @ nn.functional.normalize(key, dim=-1, eps=eps).mT


def general(
    query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"], weight: Float[Tensor, "d_q d_k"]
) -> Float[Tensor, "... T_q T_k"]:
    """Return qᵀ W k: a dot product after the key was mapped to the query's space (Luong et al. 2015).

    Shapes: query [..., T_q, d_q], key [..., T_k, d_k], weight [d_q, d_k] -> [..., T_q, T_k].
    """
    query, key, weight = _widened(query, key, weight)
    _check_shape("weight", weight, (query.shape[-1], key.shape[-1]), "[d_q, d_k]")
    return (query @ weight) @ key.mT


def additive(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    query_weight: Float[Tensor, "d_q hidden"],
    key_weight: Float[Tensor, "d_k hidden"],
    v: Float[Tensor, " hidden"],
) -> Float[Tensor, "... T_q T_k"]:
    """Return vᵀ tanh(W_q q + W_k k), each side projected once (Bahdanau et al. 2015, appendix A.1.2).

    Shapes: query [..., T_q, d_q], key [..., T_k, d_k], query_weight [d_q, hidden], key_weight
    [d_k, hidden], v [hidden] -> [..., T_q, T_k].
    """
    query, key, query_weight, key_weight, v = _widened(query, key, query_weight, key_weight, v)
    _check_shape("query_weight", query_weight, (query.shape[-1], v.shape[-1]), "[d_q, hidden]")
    _check_shape("key_weight", key_weight, (key.shape[-1], v.shape[-1]), "[d_k, hidden]")
    return additive_projected(query @ query_weight, key @ key_weight, v)


def additive_projected(
    query: Float[Tensor, "... T_q hidden"],
    key: Float[Tensor, "... T_k hidden"],
    v: Float[Tensor, " hidden"],
) -> Float[Tensor, "... T_q T_k"]:
    """Return vᵀ tanh(q + k) for queries and keys that are projected already.

    A decoder that asks the same keys at every step projects them once and calls this. Shapes: query
    [..., T_q, hidden], key [..., T_k, hidden], v [hidden] -> [..., T_q, T_k]. A table [..., T_q, T_k,
    hidden] that is large (``kernels.in_blocks``) is never built, unless for a second derivative: see
    ``kernels.additive``.
    """
    query, key, v = _widened(query, key, v)
    check_same_width(query, key)
    _check_shape("v", v, (query.shape[-1],), "[hidden]")
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    numbers = math.prod((*leading, query.shape[-2], key.shape[-2], v.shape[0]))
    if kernels.in_blocks(numbers, query.device):
        return additive_scores(query, key, v)
    pairs = query.unsqueeze(-2) + key.unsqueeze(-3)  # [..., T_q, T_k, hidden]
    return pairs.tanh() @ v


def concat(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    weight: Float[Tensor, "d hidden"],
    v: Float[Tensor, " hidden"],
) -> Float[Tensor, "... T_q T_k"]:
    """Return vᵀ tanh(W [q; k]), with the concatenation built (Luong et al. 2015, section 3.1).

    Equal to ``additive`` when the rows of ``weight`` are those of its two weights, one below the
    other. Shapes: query [..., T_q, d_q], key [..., T_k, d_k], weight [d_q + d_k, hidden], v [hidden]
    -> [..., T_q, T_k].
    """
    query, key, weight, v = _widened(query, key, weight, v)
    _check_shape("weight", weight, (query.shape[-1] + key.shape[-1], v.shape[-1]), "[d_q + d_k, hidden]")
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    pairs = (*leading, query.shape[-2], key.shape[-2])
    rows = query.unsqueeze(-2).expand(*pairs, -1)  # [..., T_q, T_k, d_q]
    columns = key.unsqueeze(-3).expand(*pairs, -1)  # [..., T_q, T_k, d_k]
    return (torch.cat((rows, columns), dim=-1) @ weight).tanh() @ v


class ScoreModule(nn.Module):
    """A score as a module, for keys that are asked many times: prepared once, then scored at each step.

    A score with nothing to prepare inherits these two as they are.
    """

    def project_key(self, key: Float[Tensor, "... T_k d_k"]) -> Float[Tensor, "... T_k prepared"]:
        """Return what ``projected`` takes as its keys, [..., T_k, prepared]; here the keys themselves."""
        return key

    def projected(
        self, query: Float[Tensor, "... T_q d_q"], projected_key: Float[Tensor, "... T_k prepared"]
    ) -> Float[Tensor, "... T_q T_k"]:
        """Return the scores for keys that went through ``project_key`` before."""
        return self(query, projected_key)


class Dot(ScoreModule):
    """q·k as a module (Luong et al. 2015); no weights."""

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        return dot(query, key)


class ScaledDot(ScoreModule):
    """q·k / √d_k as a module (Vaswani et al. 2017, equation 1); no weights."""

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        return scaled_dot(query, key)


class Cosine(ScoreModule):
    """The cosine of q and k times a learned sharpness β, held as log β (Graves et al. 2014, equation 5).

    A bare cosine lies between -1 and 1, which no softmax can turn into a sharp choice.
    """

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        if sharpness <= 0:
            raise ValueError(f"sharpness must be above 0, got {sharpness}")
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(sharpness)))

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        return self.log_sharpness.exp() * cosine(query, key)


class General(ScoreModule):
    """qᵀ W k with a learned W [d_q, d_k] (Luong et al. 2015, "general")."""

    def __init__(self, d_q: int, d_k: int) -> None:
        super().__init__()
        self.weight = _uniform(d_q, d_k)

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        return general(query, key, self.weight)


class Additive(ScoreModule):
    """vᵀ tanh(W_q q + W_k k) with learned weights (Bahdanau et al. 2015).

    For a decoder that asks the same keys at every step: ``project_key`` once, then
    ``projected(query, projected_key)`` at each step.
    """

    def __init__(self, d_q: int, d_k: int, hidden: int) -> None:
        super().__init__()
        self.query_weight = _uniform(d_q, hidden)
        self.key_weight = _uniform(d_k, hidden)
        self.v = _uniform(hidden)

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        return additive(query, key, self.query_weight, self.key_weight, self.v)

    def project_key(self, key: Float[Tensor, "... T_k d_k"]) -> Float[Tensor, "... T_k hidden"]:
        """Return W_k k, [..., T_k, hidden]: what ``projected`` takes as its keys."""
        return key @ self.key_weight

    def projected(
        self, query: Float[Tensor, "... T_q d_q"], projected_key: Float[Tensor, "... T_k hidden"]
    ) -> Float[Tensor, "... T_q T_k"]:
        """Return the scores for keys that went through ``project_key`` before."""
        return additive_projected(query @ self.query_weight, projected_key, self.v)


class Concat(ScoreModule):
    """vᵀ tanh(W [q; k]) with learned weights (Luong et al. 2015, "concat")."""

    def __init__(self, d_q: int, d_k: int, hidden: int) -> None:
        super().__init__()
        self.weight = _uniform(d_q + d_k, hidden)
        self.v = _uniform(hidden)

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        return concat(query, key, self.weight, self.v)


class Location(ScoreModule):
    """W q: scores from the query alone, one per position (Luong et al. 2015, equation 8).

    The key gives only the number of positions, never its content.
    """

    def __init__(self, d_q: int, max_length: int) -> None:
        super().__init__()
        self.weight = _uniform(d_q, max_length)

    def forward(
        self, query: Float[Tensor, "... T_q d_q"], key: Float[Tensor, "... T_k d_k"]
    ) -> Float[Tensor, "... T_q T_k"]:
        query, weight = _widened(query, self.weight)
        length, longest = key.shape[-2], weight.shape[-1]
        if length > longest:
            raise ValueError(f"key has {length} positions, but Location was built for max_length={longest}")
        scores = query @ weight[:, :length]  # [..., T_q, T_k]
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        return scores.expand(*leading, *scores.shape[-2:])


def _uniform(*shape: int) -> nn.Parameter:
    """A weight that keeps the size of what it multiplies: uniform within ±1/√(rows), as nn.Linear's."""
    if min(shape) <= 0:
        raise ValueError(f"every width must be at least 1, got {shape}")
    bound = 1 / math.sqrt(shape[0])
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


def _widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Float16 and bfloat16 become float32; wider types stay. All on one device, of one dtype."""
    first, *others = tensors
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise TypeError(f"query, key and weights must be floating point, got {tensor.dtype}")
    for other in others:
        if other.device != first.device:
            raise ValueError(f"query and key must be on one device, got {first.device} and {other.device}")
        # Under autocast, activations are narrow while the weights stay float32.
        if other.dtype != first.dtype and not torch.is_autocast_enabled(first.device.type):
            raise TypeError(f"query and key must have one dtype, got {first.dtype} and {other.dtype}")
    common = torch.float32
    for tensor in tensors:
        common = torch.promote_types(common, tensor.dtype)
    return tuple(tensor.to(common) for tensor in tensors)


def _check_shape(name: str, weight: Tensor, expected: tuple[int, ...], meaning: str) -> None:
    if tuple(weight.shape) != expected:
        raise ValueError(f"{name} must have shape {meaning} = {expected}, got {tuple(weight.shape)}")
