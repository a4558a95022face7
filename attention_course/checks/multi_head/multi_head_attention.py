"""Exercise 3: multi-head attention."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.multi_head import shared
from attention_course.checks.multi_head.shared import NAME


def _multi_head(
    x: Tensor, memory: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, w_output: Tensor
) -> Tensor:
    query, key, value = (
        shared.split(x @ w_query),
        shared.split(memory @ w_key),
        shared.split(memory @ w_value),
    )
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return shared.merge(scores.softmax(-1) @ value) @ w_output


def _variant(
    *,
    split=shared.split,
    merge=shared.merge,
    scale=lambda d_k: d_k**0.5,
    axis=-1,
    project=lambda x, weight: x @ weight,
    finish=lambda merged, w_output: merged @ w_output,
):
    """The reference with one of its parts replaced."""

    def multi_head(
        x: Tensor, memory: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, w_output: Tensor
    ) -> Tensor:
        query, key, value = (
            split(project(source, weight))
            for source, weight in ((x, w_query), (memory, w_key), (memory, w_value))
        )
        scores = query @ key.mT / scale(query.shape[-1])
        return finish(merge(scores.softmax(axis) @ value), w_output)

    return multi_head


def _finish_block_by_block(merged: Tensor, w_output: Tensor) -> Tensor:
    """Each head through its own square block of W_O, concatenated after that."""
    width = merged.shape[-1] // shared.NUM_HEADS
    blocks = [w_output[i : i + width, i : i + width] for i in range(0, merged.shape[-1], width)]
    return torch.cat([head @ b for head, b in zip(merged.split(width, -1), blocks, strict=True)], -1)


def _finish_first_rows(merged: Tensor, w_output: Tensor) -> Tensor:
    """Every head through the rows of W_O that belong to head 0."""
    width = merged.shape[-1] // shared.NUM_HEADS
    return sum(head @ w_output[:width] for head in merged.split(width, -1))


def _mha_key_value_swapped(x, memory, w_query, w_key, w_value, w_output):
    return _multi_head(x, memory, w_query, w_value, w_key, w_output)


def _mha_query_key_swapped(x, memory, w_query, w_key, w_value, w_output):
    query, key, value = shared.split(x @ w_query), shared.split(memory @ w_key), shared.split(x @ w_value)
    return shared.merge((key @ query.mT / query.shape[-1] ** 0.5).softmax(-1) @ value) @ w_output


def _mha_memory_unread(x, memory, w_query, w_key, w_value, w_output):
    return _multi_head(x, x, w_query, w_key, w_value, w_output)


def _mha_value_raw(x, memory, w_query, w_key, w_value, w_output):
    query, key = shared.split(x @ w_query), shared.split(memory @ w_key)
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    return shared.merge(weights @ shared.split(memory)) @ w_output


def _mha_one_head(x, memory, w_query, w_key, w_value, w_output):
    query, key = x @ w_query, memory @ w_key
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ (memory @ w_value) @ w_output


def _mha_residual(x, *others):
    return x + _multi_head(x, *others)


def _mha_scaled_weights(x, memory, w_query, w_key, w_value, w_output):
    root = (x.shape[-1] // shared.NUM_HEADS) ** 0.5
    unscaled = _variant(scale=lambda d_k: 1.0, finish=lambda merged, w_output: merged @ w_output / root)
    return unscaled(x, memory, w_query, w_key, w_value, w_output)


def _projections(
    generator: Generator, x: Tensor, memory: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """x, memory and four square weights under which queries and keys have variance about 1."""
    width = x.shape[-1]
    weights = (normal(generator, width, width, dtype=torch.float64) / width**0.5 for _ in range(4))
    return (x.to(dtype), memory.to(dtype), *(weight.to(dtype) for weight in weights))


def _far_below(generator: Generator) -> tuple[Tensor, ...]:
    """Every score of every head is near -800: it comes from what all tokens have in common."""
    x, memory = (normal(generator, 2, T, 12, dtype=torch.float64) for T in (5, 7))
    x, memory, w_query, w_key, *others = _projections(generator, x, memory, torch.float64)
    for tokens, weight, common in ((x, w_query, 1.0), (memory, w_key, -1600.0)):
        tokens[..., 0] = 1.0
        weight[:, ::4] = 0.0
        weight[0, ::4] = common
    return x, memory, w_query, w_key, *others


MULTI_HEAD_ATTENTION = Exercise(
    name=f"{NAME}.multi_head_attention",
    title="Multi-head attention",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_multi_head,
    returns=("output",),
    forbidden=("scaled_dot_product_attention", "multi_head_attention_forward"),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 6), tenths(g, 4, 6), *(halves(g, 6, 6) for _ in range(4))),
        ),
        Case("self-attention", lambda g: _projections(g, *[normal(g, 5, 12)] * 2)),
        Case("wide", lambda g: _projections(g, normal(g, 2, 5, 192), normal(g, 2, 7, 192))),
        Case(
            "two leading axes, float64",
            lambda g: _projections(
                g,
                normal(g, 2, 4, 5, 12, dtype=torch.float64),
                normal(g, 2, 4, 7, 12, dtype=torch.float64),
                torch.float64,
            ),
        ),
        Case("scores far below 0, float64", _far_below),
        Case("gradient", lambda g: _projections(g, normal(g, 2, 4, 15), normal(g, 2, 7, 15)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "split by view, without transpose",
            _variant(split=shared.split_by_view),
            "The projections are reshaped to [..., h, T, d_k] without a transpose, so a head holds "
            "whole tokens instead of slices of all tokens. Your split_heads from exercise 1 does it right.",
        ),
        Mistake(
            "split and merged by view",
            _variant(split=shared.split_by_view, merge=shared.merge_by_view),
            "Both reshapes lack the transpose. What comes out has the right shape, but tokens were "
            "mixed up on the way in and on the way out. Use split_heads and merge_heads.",
        ),
        Mistake(
            "merged without transposing back",
            _variant(merge=shared.merge_by_view),
            "The contexts are reshaped while heads still stand in front of tokens. Swap them back first.",
        ),
        Mistake(
            "heads merged in the wrong order",
            _variant(merge=shared.merge_interleaved),
            "The heads' columns are interleaved when they meet W_O, whose first d_k rows belong to "
            "head 0. Put the heads side by side, one after the other.",
        ),
        Mistake(
            "every third column to a head",
            _variant(split=shared.split_every_third),
            "Head 0 takes columns 0, h, 2h, ... of each projection and gives its context back as the "
            "first slice. The first d_k columns are head 0, on the way in as on the way out.",
        ),
        Mistake(
            "every third column to a head, in and out",
            _variant(split=shared.split_every_third, merge=shared.merge_interleaved),
            "Head 0 takes columns 0, h, 2h, ... of each projection and gives its context back to them. A "
            "layer could be trained so, but these weights are made for heads of neighbouring columns: "
            "the first d_k are head 0.",
        ),
        Mistake(
            "same slice for all heads",
            _variant(split=shared.split_same),
            "Every head works on the first d_k columns of the projections, so all heads are equal. "
            "Head i takes the i-th slice.",
        ),
        Mistake(
            "scaled with √d_model",
            _variant(scale=lambda d_k: (shared.NUM_HEADS * d_k) ** 0.5),
            "The scale is √d_model. A head's score is a sum over its own d_k = d_model / h products. "
            "Take the width after the split.",
        ),
        Mistake(
            "no scale",
            _variant(scale=lambda d_k: 1.0),
            "The scores are plain dot products. Divide by the root of what one score sums over.",
        ),
        Mistake(
            "divided by d_k",
            _variant(scale=lambda d_k: d_k),
            "The scores are divided by d_k in all. Look at the power of d_k, or for a second scale.",
        ),
        Mistake(
            "scaled with √h",
            _variant(scale=lambda d_k: shared.NUM_HEADS**0.5),
            "The scores are divided by the root of the number of heads. A score sums over d_k products: "
            "its root it is, whatever the number of heads.",
        ),
        Mistake(
            "scale after the softmax",
            _mha_scaled_weights,
            "The weights, or what is mixed with them, are divided by √d_k. The scores are to be, before "
            "the softmax.",
        ),
        Mistake(
            "softmax over the heads",
            _variant(axis=-3),
            "The heads compete for each pair of query and key. Every head has a budget of 1 per query "
            "of its own, shared among the keys. Look at dim.",
        ),
        Mistake(
            "softmax over the queries",
            _variant(axis=-2),
            "The columns of the weights sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "heads look at heads",
            _variant(
                split=lambda x: x.unflatten(-1, (shared.NUM_HEADS, -1)),
                merge=lambda context: context.flatten(-2),
            ),
            "Heads stand behind tokens, [..., T, h, d_k], so the products run over the heads of one "
            "token and no token sees another. Swap the two axes before you score.",
        ),
        Mistake(
            "W_O missing",
            _variant(finish=lambda merged, w_output: merged),
            "The heads are concatenated and returned. The last step is missing: the projection that "
            "mixes what the heads found.",
        ),
        Mistake(
            "W_O applied per head",
            _variant(finish=_finish_block_by_block),
            "Each head goes through a square block of W_O by itself and is concatenated after that. "
            "So column c of the output hears of one head only. Concatenate first, then apply all of W_O.",
        ),
        Mistake(
            "first rows of W_O for every head",
            _variant(finish=_finish_first_rows),
            "All heads go through the same rows of W_O. Head i has rows of its own, the i-th slice of d_k.",
        ),
        Mistake(
            "W_O transposed",
            _variant(finish=lambda merged, w_output: merged @ w_output.mT),
            "The output is multiplied by W_Oᵀ. Tokens are rows, and a weight stands on the right as it is.",
        ),
        Mistake(
            "projections transposed",
            _variant(project=lambda x, weight: x @ weight.mT),
            "Queries, keys and values come from x @ Wᵀ, as in nn.Linear. Here a weight is "
            "[d_in, d_out] and stands on the right as it is.",
        ),
        Mistake(
            "all weights transposed",
            _variant(
                project=lambda x, weight: x @ weight.mT, finish=lambda merged, w_output: merged @ w_output.mT
            ),
            "Every product is x @ Wᵀ, as in nn.Linear and F.linear. Here a weight is [d_in, d_out] and "
            "stands on the right as it is.",
        ),
        Mistake(
            "x added",
            _mha_residual,
            "The output has x added to it. A residual connection is built around this layer, in a later "
            "chapter; here the output is what attention alone gives.",
        ),
        Mistake(
            "keys and values swapped",
            _mha_key_value_swapped,
            "Queries are compared with the values, and keys are mixed. Look at which projection goes where.",
        ),
        Mistake(
            "queries and keys swapped",
            _mha_query_key_swapped,
            "There is one row per memory token. The rows belong to x: x asks, memory answers.",
        ),
        Mistake(
            "memory never read",
            _mha_memory_unread,
            "x looks at itself. Keys and values come from memory: change memory, and your output "
            "must change with it.",
        ),
        Mistake(
            "values not projected",
            _mha_value_raw,
            "The memory's own columns are mixed. W_V is never used: project before you split.",
        ),
        Mistake(
            "one wide head",
            _mha_one_head,
            "This is a single head of width d_model: right at one head, and here there are three. Split "
            "the projections before you score.",
        ),
    ),
    hints=(
        "Five steps: project, split, attend, merge, project. The first and the last are matrix "
        "products; the second and the fourth you have written above.",
        "After the split, everything is chapter 3 with one more leading axis: query @ key.mT works on "
        "all heads of all sentences at once, and gives [..., h, T_q, T_k].",
        "Scale by the root of the split query's last axis, softmax over the keys, mix, merge, and W_O "
        "from the right.",
    ),
)
