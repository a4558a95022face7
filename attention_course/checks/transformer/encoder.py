"""Exercise 9: the weights of torch's encoder, loaded into modules of one's own."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Inputs, Loaded
from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME

LAYERS = 2
#: as torch.nn.TransformerEncoder has them, layer by layer
NAMES = (
    "self_attn.in_proj_weight", "self_attn.in_proj_bias",
    "self_attn.out_proj.weight", "self_attn.out_proj.bias",
    "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias",
    "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias",
)  # fmt: skip
STATE = tuple(f"layers.{layer}.{name}" for layer in range(LAYERS) for name in NAMES)
#: theirs -> ours, where one tensor becomes one
RENAMED = {
    "self_attn.out_proj": "output", "linear1": "inner", "linear2": "outer",
    "norm1": "norm_1", "norm2": "norm_2",
}  # fmt: skip

#: our names of the biases of the attention
ATTENTION_BIASES = ("query.bias", "key.bias", "value.bias", "output.bias")


class Layer(nn.Module):
    """The layer that the notebook gives: post-norm, several heads, with padding."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.norm_1 = nn.LayerNorm(d_model)
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.norm_2 = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        made = (part(x) for part in (self.query, self.key, self.value))
        cut = (one.unflatten(-1, (self.num_heads, -1)) for one in made)
        query, key, value = (one.transpose(-2, -3) for one in cut)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        padding = ~real.bool()[:, None, None, :]
        weights = scores.masked_fill(padding, -torch.inf).softmax(-1)
        context = (weights @ value).transpose(-2, -3).flatten(-2)
        y = self.norm_1(x + self.output(context))
        return self.norm_2(y + self.outer(self.inner(y).relu()))


class Encoder(nn.Module):
    """The reference; each of its mistakes is another mapping."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(d_model, num_heads, d_ff) for _ in range(LAYERS))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, real)
        return x

    def load_torch(self, state: dict[str, Tensor]) -> None:
        self.load_state_dict(dict(_mapped(state)))


def _thirds(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.chunk(3)


def _mapped(
    state: dict[str, Tensor],
    cut: Callable[[Tensor], tuple[Tensor, ...]] = _thirds,
    renamed: dict[str, str] | None = None,
    layer_of: Callable[[int], int] = lambda layer: layer,
):
    """(our name, tensor) of all layers."""
    for layer in range(LAYERS):
        theirs, ours = f"layers.{layer_of(layer)}", f"layers.{layer}"
        for kind in ("weight", "bias"):
            pieces = cut(state[f"{theirs}.self_attn.in_proj_{kind}"])
            for name, piece in zip(("query", "key", "value"), pieces, strict=True):
                yield f"{ours}.{name}.{kind}", piece
            for their, our in (renamed or RENAMED).items():
                yield f"{ours}.{our}.{kind}", state[f"{theirs}.{their}.{kind}"]


def _with(**parts: Callable) -> type[Encoder]:
    return type("Encoder", (Encoder,), parts)


def _mapping(**otherwise) -> type[Encoder]:
    def load_torch(self: Encoder, state: dict[str, Tensor]) -> None:
        self.load_state_dict(dict(_mapped(state, **otherwise)))

    return _with(load_torch=load_torch)


def _value_second(tensor: Tensor) -> tuple[Tensor, ...]:
    query, key, value = tensor.chunk(3)
    return query, value, key


def _key_first(tensor: Tensor) -> tuple[Tensor, ...]:
    query, key, value = tensor.chunk(3)
    return key, query, value


def _value_first(tensor: Tensor) -> tuple[Tensor, ...]:
    query, key, value = tensor.chunk(3)
    return value, key, query


def _key_first_in_biases(tensor: Tensor) -> tuple[Tensor, ...]:
    return _key_first(tensor) if tensor.dim() == 1 else tensor.chunk(3)


def _transposed(tensor: Tensor) -> tuple[Tensor, ...]:
    return tuple(third.mT if third.dim() == 2 else third for third in tensor.chunk(3))


def _every_third(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor[0::3], tensor[1::3], tensor[2::3]


def _without(*endings: str) -> type[Encoder]:
    """What is left out stays as it was built."""

    def load_torch(self: Encoder, state: dict[str, Tensor]) -> None:
        kept = {name: tensor for name, tensor in _mapped(state) if not name.endswith(endings)}
        self.load_state_dict(kept, strict=False)

    return _with(load_torch=load_torch)


def _as_they_are(self: Encoder, state: dict[str, Tensor]) -> None:
    self.load_state_dict(state, strict=False)


def _norms_exchanged(self: Encoder, state: dict[str, Tensor]) -> None:
    other = {**RENAMED, "norm1": "norm_2", "norm2": "norm_1"}
    self.load_state_dict(dict(_mapped(state, renamed=other)))


def _changed(change: Callable[[str, Tensor], Tensor]) -> type[Encoder]:
    """Each tensor is loaded as ``change(our name, tensor)``."""

    def load_torch(self: Encoder, state: dict[str, Tensor]) -> None:
        self.load_state_dict({name: change(name, one) for name, one in _mapped(state)})

    return _with(load_torch=load_torch)


def _square(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, lengths: tuple[int, ...], T: int, d_model: int, d_ff: int, dtype=torch.float32
) -> Inputs:
    def vector(size: int) -> Tensor:
        return normal(generator, size, dtype=dtype)

    def matrix(rows: int, columns: int) -> Tensor:
        return weight(generator, columns, rows, dtype).mT.contiguous()

    def layer() -> Inputs:
        return (
            matrix(3 * d_model, d_model), vector(3 * d_model), matrix(d_model, d_model), vector(d_model),
            matrix(d_ff, d_model), vector(d_ff), matrix(d_model, d_ff), vector(d_model),
            shared.gains(generator, d_model, dtype=dtype), vector(d_model),
            shared.gains(generator, d_model, dtype=dtype), vector(d_model),
        )  # fmt: skip

    x = normal(generator, len(lengths), T, d_model, dtype=dtype)
    return *layer(), *layer(), x, shared.real(T, *lengths).long()


def _by_hand(generator: Generator) -> Inputs:
    def layer() -> Inputs:
        return (
            halves(generator, 12, 4), tenths(generator, 12), halves(generator, 4, 4), tenths(generator, 4),
            halves(generator, 6, 4), tenths(generator, 6), halves(generator, 4, 6), tenths(generator, 4),
            shared.gains(generator, 4), tenths(generator, 4),
            shared.gains(generator, 4), tenths(generator, 4),
        )  # fmt: skip

    return *layer(), *layer(), tenths(generator, 2, 3, 4), shared.real(3, 3, 2).long()


def _sizes(d_model: int, num_heads: int, d_ff: int) -> dict[str, int]:
    return {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff}


ENCODER = Exercise(
    name=f"{NAME}.encoder",
    title="Load and match: torch's encoder in your modules",
    points=2,
    difficulty=2,
    minutes=15,
    reference=Encoder,
    asks=Loaded(STATE),
    returns=("output",),
    unseen=("x",),
    settings=STATE,
    forbidden=("multi_head_attention_forward",),
    cases=(
        Case("one decimal", _by_hand, arguments=_sizes(4, 1, 6)),
        Case("padded", lambda g: _drawn(g, (5, 2, 4), 5, 12, 20), arguments=_sizes(12, 3, 20)),
        Case("d_ff as wide as d_model", lambda g: _drawn(g, (4, 3), 4, 8, 8), arguments=_sizes(8, 2, 8)),
        Case(
            "float64",
            lambda g: _drawn(g, (6, 1), 6, 8, 16, torch.float64),
            arguments=_sizes(8, 4, 16),
        ),
        Case("gradient", lambda g: _drawn(g, (3, 2), 3, 6, 9), gradient=True, arguments=_sizes(6, 2, 9)),
    ),
    mistakes=(
        Mistake(
            "nothing loaded",
            _with(load_torch=_as_they_are),
            "Nothing was loaded. Is self.load_state_dict called, with your own names? To change the "
            "dictionary that state_dict() gives, or to return one, changes no module. And strict=False lets "
            "through whatever has another name: leave it out, and torch says which names do not fit.",
        ),
        Mistake(
            "key before query",
            _mapping(cut=_key_first),
            "The first third of in_proj is taken for the keys. The order is query, key, value.",
        ),
        Mistake(
            "value before query",
            _mapping(cut=_value_first),
            "The first third of in_proj is taken for the values. The order is query, key, value.",
        ),
        Mistake(
            "value before key",
            _mapping(cut=_value_second),
            "The second third of in_proj is taken for the values. The order is query, key, value.",
        ),
        Mistake(
            "biases in another order",
            _mapping(cut=_key_first_in_biases),
            "The weights of in_proj are cut in the right order, and its biases in another: the first third "
            "is taken for the keys. Both have the same order.",
        ),
        Mistake(
            "every third row",
            _mapping(cut=_every_third),
            "Rows 0, 3, 6, ... are taken for the queries. in_proj_weight is [3 * d_model, d_model]: first "
            "all rows of the queries, then those of the keys, then those of the values.",
        ),
        Mistake(
            "input projections transposed",
            _mapping(cut=_transposed),
            "The three square matrices are transposed. Both sides keep [out, in]: load them as they are.",
        ),
        Mistake(
            "output projection transposed",
            _changed(lambda name, one: one.mT if name.endswith("output.weight") else one),
            "The output projection is transposed. Both sides keep [out, in]: load it as it is.",
        ),
        Mistake(
            "all square matrices transposed",
            _changed(lambda name, one: one.mT if _square(one) else one),
            "Every matrix with as many rows as columns is transposed. Both sides keep [out, in]: load them "
            "as they are.",
        ),
        Mistake(
            "norms exchanged",
            _with(load_torch=_norms_exchanged),
            "norm1 is loaded into norm_2. In both, the first norm stands behind the attention.",
        ),
        Mistake(
            "every layer from the first",
            _mapping(layer_of=lambda layer: 0),
            "All layers have the weights of layer 0. Each has its own.",
        ),
        Mistake(
            "layers turned round",
            _mapping(layer_of=lambda layer: LAYERS - 1 - layer),
            "The last layer's weights are in the first one.",
        ),
        Mistake(
            "input biases left out",
            _without("query.bias", "key.bias", "value.bias"),
            "in_proj_bias is not loaded. It is cut into three, as the weight is.",
        ),
        Mistake(
            "output bias left out",
            _without("output.bias"),
            "out_proj.bias is not loaded.",
        ),
        Mistake(
            "biases set to 0",
            _changed(lambda name, one: 0 * one if name.endswith(ATTENTION_BIASES) else one),
            "The biases of the attention are 0. Those of in_proj and out_proj have learned something: load "
            "them.",
        ),
        Mistake(
            "norms left out",
            _without("norm_1.weight", "norm_1.bias", "norm_2.weight", "norm_2.bias"),
            "The norms are not loaded. They have learned a gain and a shift.",
        ),
    ),
    hints=(
        "Print both lists of names with their shapes, theirs beside yours. Which of theirs has three of "
        "yours in it?",
        "in_proj_weight is [3 * d_model, d_model], and in_proj_bias [3 * d_model]: the queries' rows, the "
        "keys' rows, the values' rows. All other tensors have one partner each, of the same shape.",
        "Fill a dictionary with your names, layer by layer, for weight and for bias, and give it to "
        "self.load_state_dict, which complains about a name that is missing.",
    ),
)  # fmt: skip
