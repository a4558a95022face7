"""Exercise 4: weight times what is weighed."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.seeing import shared
from attention_course.checks.seeing.shared import NAME

Three = Callable[[Tensor, Tensor, Tensor], Tensor]


def _shares(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    """[h, T, T, d_model]: what head h carries from token j to token i."""
    return weights[..., None] * (value @ output)[:, None]


def _value_weighted(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    written = value @ output
    return torch.einsum("hij,hjm->ijm", weights, written).norm(dim=-1)


def _of_shares(finish: Callable[[Tensor], Tensor]) -> Three:
    return lambda weights, value, output: finish(_shares(weights, value, output))


def _without_output(finish: Callable[[Tensor], Tensor]) -> Three:
    return lambda weights, value, output: finish(weights[..., None] * value[:, None])


def _summed(finish: Callable[[Tensor], Tensor]) -> Three:
    return _of_shares(lambda shares: finish(shares.sum(0)))


def _without_weights(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return (value @ output).sum(0).norm(dim=-1).expand(weights.shape[1:])


def _mean_weights(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return weights.mean(0) * (value @ output).sum(0).norm(dim=-1)


def _summed_weights(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return weights.sum(0) * (value @ output).sum(0).norm(dim=-1)


def _mean_weights_of_values(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    """Norms of the concatenated values."""
    return weights.mean(0) * value.transpose(0, 1).flatten(1).norm(dim=-1)


def _one_output(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return _value_weighted(weights, value, output.sum(0).expand_as(output))


def _of_the_query(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return (weights[..., None] * (value @ output)[:, :, None]).sum(0).norm(dim=-1)


def _transposed_output(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return _value_weighted(weights, value, output.mT)


def _first_output(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return _value_weighted(weights, value, output[:1].expand_as(output))


def _with_a_small_number(small: float) -> Three:
    return _summed(lambda shares: (shares.square().sum(-1) + small).sqrt())


def _norm_over_heads(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    return _shares(weights, value, output).norm(dim=0).sum(-1)


_SMALL = (
    "You add {} before you take the root. Its own root is not that small, and stands where "
    "nothing is carried. Those lengths are exactly 0: which norm has a gradient there without any help?"
)


def _in_place(weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
    result = _value_weighted(weights, value, output)
    value *= weights.sum(-2)[..., None]
    return result


def _heads(
    generator: Generator,
    h: int,
    T: int,
    d_k: int,
    d_model: int,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    output = normal(generator, h, d_k, d_model, dtype=torch.float64) / (h * d_k) ** 0.5
    return (
        shared.rows(generator, h, T, T, causal=causal, dtype=dtype),
        normal(generator, h, T, d_k, dtype=dtype),
        output.to(dtype),
    )


def _against_each_other(generator: Generator) -> Inputs:
    """Two heads of which one takes back most of what the other writes."""
    weights, value, output = _heads(generator, 1, 4, 3, 6)
    return (
        torch.cat((weights, 0.8 * weights + 0.2 * shared.rows(generator, 1, 4, 4))),
        torch.cat((value, -value)),
        torch.cat((output, output)),
    )


VALUE_WEIGHTED = Exercise(
    name=f"{NAME}.value_weighted",
    title="What a weight weighs",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_value_weighted,
    returns=("norms",),
    cases=(
        Case(
            "one decimal",
            lambda g: (shared.tenths_of_1(g, 2, 3, 3), tenths(g, 2, 3, 2), halves(g, 2, 2, 4)),
        ),
        Case("three heads", lambda g: _heads(g, 3, 5, 2, 7)),
        Case("heads as wide as the model", lambda g: _heads(g, 2, 5, 4, 4)),
        Case("as many of everything", lambda g: _heads(g, 4, 4, 4, 4)),
        Case("heads against each other", _against_each_other),
        Case("causal, float64", lambda g: _heads(g, 3, 6, 4, 5, causal=True, dtype=torch.float64)),
        Case("gradient", lambda g: _heads(g, 3, 4, 2, 5), gradient=True),
        Case("gradient, causal", lambda g: _heads(g, 2, 4, 3, 5, causal=True), gradient=True),
    ),
    mistakes=(
        Mistake(
            "norms added over the heads",
            _of_shares(lambda shares: shares.norm(dim=-1).sum(0)),
            "You take each head's norm and add the norms. What two heads add to one token can cancel: add "
            "the vectors over the heads first, and take the norm of that.",
        ),
        Mistake(
            "norms averaged over the heads",
            _of_shares(lambda shares: shares.norm(dim=-1).mean(0)),
            "You take each head's norm and average the norms. What two heads add to one token can cancel: "
            "add the vectors over the heads first, and take the norm of that.",
        ),
        Mistake(
            "heads and columns in one norm",
            _of_shares(lambda shares: shares.square().sum((0, -1)).sqrt()),
            "The norm runs over the heads as well as over the columns, as if what the heads write stood side "
            "by side. It is added: sum over the heads first.",
        ),
        Mistake(
            "mean over the heads",
            _of_shares(lambda shares: shares.mean(0).norm(dim=-1)),
            "The heads' vectors are averaged. The output projection adds them.",
        ),
        Mistake(
            "without W_O",
            _without_output(lambda shares: shares.sum(0).norm(dim=-1)),
            "The values are added as they are, without output. Columns of different heads' values have "
            "nothing to do with each other: each head's own rows of W_O carry them into the model's width.",
        ),
        Mistake(
            "without W_O, heads side by side",
            _without_output(lambda shares: shares.square().sum((0, -1)).sqrt()),
            "That is the norm of the weighted values side by side, without output. W_O decides what of them "
            "arrives, and adds it.",
        ),
        Mistake(
            "without W_O, norms added over the heads",
            _without_output(lambda shares: shares.norm(dim=-1).sum(0)),
            "That is weight times the value's norm, added over the heads, without output. W_O decides what "
            "of a value arrives; apply it, add the heads' vectors, and take the norm last.",
        ),
        Mistake(
            "without W_O, norms averaged over the heads",
            _without_output(lambda shares: shares.norm(dim=-1).mean(0)),
            "That is weight times the value's norm, averaged over the heads, without output. W_O decides "
            "what of a value arrives; apply it, add the heads' vectors, and take the norm last.",
        ),
        Mistake(
            "mean weights times the values' mean norm",
            lambda weights, value, output: weights.mean(0) * value.norm(dim=-1).mean(0),
            "Weights and values' norms are averaged over the heads, each by itself, and multiplied. Each "
            "head's weight belongs to that head's value, and W_O lies between.",
        ),
        Mistake(
            "without weights",
            _without_weights,
            "Every row is the same: the norm of what token j would add at a weight of 1. Each head's vector "
            "has to be weighted with what token i gives to token j.",
        ),
        Mistake(
            "mean weights times a norm",
            _mean_weights,
            "The weights are averaged over the heads, and multiplied by a norm that has nothing to do with "
            "them. Each head's weight belongs to that head's vector: weigh, add, and take the norm last.",
        ),
        Mistake(
            "summed weights times a norm",
            _summed_weights,
            "The weights are added over the heads, and multiplied by a norm that has nothing to do with "
            "them. Each head's weight belongs to that head's vector: weigh, add, and take the norm last.",
        ),
        Mistake(
            "mean weights times the values' norm",
            _mean_weights_of_values,
            "The weights are averaged over the heads, and multiplied by the norm of all values side by side. "
            "Each head's weight belongs to that head's vector, and W_O lies between.",
        ),
        Mistake(
            "the query's value",
            _of_the_query,
            "You weigh what stands at token i, the query. What is added to token i comes from token j, the "
            "key: in weights that is the last axis, in value the one before the last.",
        ),
        Mistake(
            "transposed",
            lambda *inputs: _value_weighted(*inputs).mT,
            "Rows and columns are swapped: a row is the token that is added to, a column the token that it "
            "comes from.",
        ),
        Mistake(
            "W_O transposed",
            _transposed_output,
            "output is transposed. Where heads are as wide as the model nothing raises. A value is a row, "
            "and meets W_O from the left: value @ output.",
        ),
        Mistake(
            "first head's W_O for all",
            _first_output,
            "Every head's values go through the first head's rows of W_O. Each head has its own.",
        ),
        Mistake(
            "all heads' W_O added",
            _one_output,
            "The heads' rows of W_O are added before they meet the values, so that each head's values go "
            "through all of them. Each head has its own: add what comes out.",
        ),
        Mistake(
            "first head alone",
            lambda weights, value, output: _value_weighted(weights[:1], value[:1], output[:1]),
            "Only the first head is there. Add what all heads carry.",
        ),
        Mistake(
            "norm over the heads",
            _norm_over_heads,
            "The norm runs over the heads, column by column, and the columns are added. The other way round: "
            "the heads are added, and the norm runs over the columns.",
        ),
        Mistake("1e-6 added before the root", _with_a_small_number(1e-6), _SMALL.format("1e-6")),
        Mistake("1e-8 added before the root", _with_a_small_number(1e-8), _SMALL.format("1e-8")),
        Mistake(
            "square",
            lambda *inputs: _value_weighted(*inputs).square(),
            "These are squares of norms: the root is missing.",
        ),
        Mistake(
            "sum of the absolute entries",
            _summed(lambda shares: shares.abs().sum(-1)),
            "You add the absolute entries. That is another norm; here it is the length of the vector, the "
            "root of the sum of the squares.",
        ),
        Mistake(
            "sum of the entries",
            _summed(lambda shares: shares.sum(-1)),
            "You add the entries of the vector, which can cancel. Its length is asked for.",
        ),
        Mistake(
            "mean of the entries",
            _summed(lambda shares: shares.mean(-1)),
            "You average the entries of the vector, which can cancel. Its length is asked for.",
        ),
        Mistake(
            "largest entry",
            _summed(lambda shares: shares.abs().amax(-1)),
            "You take the largest absolute entry. That is another norm; here it is the length of the vector, "
            "the root of the sum of the squares.",
        ),
        Mistake(
            "root of the mean square",
            _summed(lambda shares: shares.square().mean(-1).sqrt()),
            "You take the root of the mean square. The length of a vector is the root of the sum of squares.",
        ),
        Mistake(
            "norm of the whole answer",
            lambda *inputs: _shares(*inputs).sum((0, 2)).norm(dim=-1),
            "You add over the tokens j as well: that is the norm of what the layer adds to token i in all, "
            "[T]. Keep j apart: [T, T].",
        ),
        Mistake(
            "one matrix for each head",
            lambda *inputs: _shares(*inputs).norm(dim=-1),
            "These are the norms head by head, [h, T, T]. Add the heads' vectors before you take the norm.",
        ),
        Mistake(
            "rows made to sum to 1",
            lambda *inputs: (lambda norms: norms / norms.sum(-1, keepdim=True))(_value_weighted(*inputs)),
            "Each row is divided by its sum. The lengths themselves are asked for.",
        ),
        Mistake(
            "inputs changed in place",
            _in_place,
            "The result is right, but value is overwritten, as *= does. Make a new tensor.",
        ),
    ),
    hints=(
        "What would head h write into token i, if token j were the only one that it looked at, with its "
        "weight as it is? Follow one value: where is it scaled, where is it projected, where do the heads "
        "meet?",
        "value @ output is [h, T, d_model]: what each token would write at a weight of 1. The weights need "
        "an axis for d_model, what is written an axis for the queries.",
        "Their product is [h, T, T, d_model]. Sum over the heads and take torch's norm over the last "
        "axis, which has a gradient at a vector of zeros too; a root that you take yourself has none.",
    ),
)
