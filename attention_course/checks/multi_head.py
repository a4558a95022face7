"""Chapter 4: splitting and merging heads, multi-head attention, what a head adds, grouped heads.

Lengths, numbers of heads and widths all differ, so that an axis taken for another shows. Weights are
drawn so that queries and keys have variance about 1: no softmax is saturated, and a wrong scale shows.
"""

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import halves, normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "04_multi_head"

#: in every exercise that cannot read the number of heads from a shape; the notebook says so
NUM_HEADS = 3


# Drawing inputs -------------------------------------------------------------------------------


def _heads(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., heads, length, width], laid out in memory as split heads are: not contiguous."""
    *leading, heads, length, width = shape
    return normal(generator, *leading, length, heads, width, dtype=dtype).transpose(-2, -3)


# 1. Splitting ---------------------------------------------------------------------------------


def _split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (NUM_HEADS, -1)).transpose(-2, -3)


def _split_by_view(x: Tensor) -> Tensor:
    *leading, length, width = x.shape
    return x.reshape(*leading, NUM_HEADS, length, width // NUM_HEADS)


def _split_every_third(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, NUM_HEADS)).movedim(-1, -3)


def _split_same(x: Tensor) -> Tensor:
    first = x[..., : x.shape[-1] // NUM_HEADS].unsqueeze(-3)
    return first.expand(*first.shape[:-3], NUM_HEADS, *first.shape[-2:])


SPLIT_HEADS = Exercise(
    name=f"{NAME}.split_heads",
    title="Split",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_split,
    returns=("heads",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 6),)),
        Case("batch", lambda g: (normal(g, 2, 5, 12),)),
        Case("two leading axes, float64", lambda g: (normal(g, 2, 4, 5, 21, dtype=torch.float64),)),
        Case("gradient", lambda g: (normal(g, 2, 4, 15),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "view without transpose",
            _split_by_view,
            "The shape is right and the numbers sit in the wrong places: a head holds whole tokens, "
            "not some columns of every token. reshape reads numbers in the order in which they lie "
            "in memory. First split the last axis in two, then swap heads and tokens.",
        ),
        Mistake(
            "tokens and heads not swapped",
            lambda x: x.unflatten(-1, (NUM_HEADS, -1)),
            "The columns are split well, but tokens still stand in front of heads: [..., T, h, d_k]. "
            "Attention multiplies the last two axes; heads must stand in front of them.",
        ),
        Mistake(
            "every third column",
            _split_every_third,
            "Head 0 got columns 0, h, 2h, ...; it should get the first d_k columns side by side. "
            "Look at the order of the two sizes when you split the last axis.",
        ),
        Mistake(
            "h taken for d_k",
            lambda x: x.unflatten(-1, (-1, NUM_HEADS)).transpose(-2, -3),
            "There are d_k heads of width h. Look at the order of the two sizes when you split an axis.",
        ),
        Mistake(
            "axes counted from the front",
            lambda x: x.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2),
            "transpose(1, 2) is right for [B, T, d_model] only. Without a batch, or with one more "
            "axis, these are other axes. Count from the end.",
        ),
        Mistake(
            "heads in front of the batch",
            lambda x: torch.stack(x.chunk(NUM_HEADS, dim=-1)),
            "The heads are the very first axis, in front of the batch. They belong just in front of "
            "the tokens. Look at the axis along which you stack.",
        ),
        Mistake(
            "same slice for all heads",
            _split_same,
            "Every head holds the first d_k columns. Head i should hold the i-th slice of d_k columns.",
        ),
        Mistake(
            "heads transposed",
            lambda x: _split(x).mT,
            "Each head is [d_k, T]. One row per token, please: look at your last two axes.",
        ),
    ),
    hints=(
        "Write the shape after each step: [..., T, d_model], then [..., T, h, d_k], then [..., h, T, d_k].",
        "The first step splits one axis in two, and no number moves: x.unflatten(-1, (h, d_k)).",
        "The second swaps two axes, counted from the end: .transpose(-2, -3).",
    ),
)


# 2. Merging -----------------------------------------------------------------------------------


def _merge(context: Tensor) -> Tensor:
    return context.transpose(-2, -3).flatten(-2)


def _merge_by_view(context: Tensor) -> Tensor:
    *leading, heads, length, width = context.shape
    return context.reshape(*leading, length, heads * width)


def _merge_interleaved(context: Tensor) -> Tensor:
    return context.movedim(-3, -1).flatten(-2)


MERGE_HEADS = Exercise(
    name=f"{NAME}.merge_heads",
    title="Merge",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_merge,
    returns=("merged",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 4),)),
        Case("batch", lambda g: (_heads(g, 2, 3, 5, 4),)),
        Case("two leading axes, float64", lambda g: (_heads(g, 2, 3, 4, 5, 6, dtype=torch.float64),)),
        Case("gradient", lambda g: (_heads(g, 2, 4, 5, 3),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "reshape without transposing back",
            _merge_by_view,
            "The shape is right, but a row holds several tokens of one head, not all heads of one "
            "token. Swap heads and tokens back before you join the last two axes.",
        ),
        Mistake(
            "columns of the heads interleaved",
            _merge_interleaved,
            "A row goes head 0, head 1, head 2, ... one number each. It should hold all of head 0, "
            "then all of head 1. Look at which axis is last when you join them.",
        ),
        Mistake(
            "heads in reverse order",
            lambda context: _merge(context.flip(-3)),
            "The last head comes first. Head 0 belongs at the left.",
        ),
        Mistake(
            "heads added",
            lambda context: context.sum(-3),
            "The heads are added up. That mixes them before W_O can tell them apart. Put them side by side.",
        ),
        Mistake(
            "heads averaged",
            lambda context: context.mean(-3),
            "The heads are averaged. One mean is what a single head could have done. Put them side by side.",
        ),
        Mistake(
            "heads one below the other",
            lambda context: context.flatten(-3, -2),
            "The heads stand one below the other: h · T rows. There is one row per token, and the "
            "heads stand side by side in it.",
        ),
        Mistake(
            "axes counted from the front",
            lambda context: context.transpose(1, 2).flatten(-2),
            "transpose(1, 2) is right for [B, h, T, d_v] only. Without a batch, or with one more "
            "axis, these are other axes. Count from the end.",
        ),
    ),
    hints=(
        "Walk the way of split_heads back: which two axes did it swap, and which one did it split?",
        "Swap heads and tokens first: [..., T, h, d_v]. Only now do the numbers of a token lie together.",
        "Then join the last two axes: .flatten(-2). (view refuses here: after the swap the numbers "
        "do not lie in order in memory. reshape and flatten copy.)",
    ),
)


# 3. Multi-head attention ----------------------------------------------------------------------


def _multi_head(
    x: Tensor, memory: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, w_output: Tensor
) -> Tensor:
    query, key, value = _split(x @ w_query), _split(memory @ w_key), _split(memory @ w_value)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return _merge(scores.softmax(-1) @ value) @ w_output


def _variant(
    *,
    split=_split,
    merge=_merge,
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
    width = merged.shape[-1] // NUM_HEADS
    blocks = [w_output[i : i + width, i : i + width] for i in range(0, merged.shape[-1], width)]
    return torch.cat([head @ b for head, b in zip(merged.split(width, -1), blocks, strict=True)], -1)


def _finish_first_rows(merged: Tensor, w_output: Tensor) -> Tensor:
    """Every head through the rows of W_O that belong to head 0."""
    width = merged.shape[-1] // NUM_HEADS
    return sum(head @ w_output[:width] for head in merged.split(width, -1))


def _mha_key_value_swapped(x, memory, w_query, w_key, w_value, w_output):
    return _multi_head(x, memory, w_query, w_value, w_key, w_output)


def _mha_query_key_swapped(x, memory, w_query, w_key, w_value, w_output):
    query, key, value = _split(x @ w_query), _split(memory @ w_key), _split(x @ w_value)
    return _merge((key @ query.mT / query.shape[-1] ** 0.5).softmax(-1) @ value) @ w_output


def _mha_memory_unread(x, memory, w_query, w_key, w_value, w_output):
    return _multi_head(x, x, w_query, w_key, w_value, w_output)


def _mha_value_raw(x, memory, w_query, w_key, w_value, w_output):
    query, key = _split(x @ w_query), _split(memory @ w_key)
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    return _merge(weights @ _split(memory)) @ w_output


def _mha_one_head(x, memory, w_query, w_key, w_value, w_output):
    query, key = x @ w_query, memory @ w_key
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ (memory @ w_value) @ w_output


def _projections(
    generator: Generator, x: Tensor, memory: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """x, memory and four square weights under which queries and keys have variance about 1."""
    width = x.shape[-1]
    weights = (normal(generator, width, width, dtype=torch.float64) / width**0.5 for _ in range(4))
    return (x.to(dtype), memory.to(dtype), *(weight.to(dtype) for weight in weights))


MULTI_HEAD_ATTENTION = Exercise(
    name=f"{NAME}.multi_head_attention",
    title="Multi-head attention",
    points=3,
    difficulty=2,
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
        Case("gradient", lambda g: _projections(g, normal(g, 2, 4, 15), normal(g, 2, 7, 15)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "split by view, without transpose",
            _variant(split=_split_by_view),
            "The projections are reshaped to [..., h, T, d_k] without a transpose, so a head holds "
            "whole tokens instead of slices of all tokens. Your split_heads from exercise 1 does it right.",
        ),
        Mistake(
            "split and merged by view",
            _variant(split=_split_by_view, merge=_merge_by_view),
            "Both reshapes lack the transpose. What comes out has the right shape, but tokens were "
            "mixed up on the way in and on the way out. Use split_heads and merge_heads.",
        ),
        Mistake(
            "merged without transposing back",
            _variant(merge=_merge_by_view),
            "The contexts are reshaped while heads still stand in front of tokens. Swap them back first.",
        ),
        Mistake(
            "heads merged in the wrong order",
            _variant(merge=_merge_interleaved),
            "The heads' columns are interleaved when they meet W_O, whose first d_k rows belong to "
            "head 0. Put the heads side by side, one after the other.",
        ),
        Mistake(
            "every third column to a head",
            _variant(split=_split_every_third),
            "Head 0 takes columns 0, h, 2h, ... of each projection and gives its context back as the "
            "first slice. Either way of slicing would do if it were used for both; here the split "
            "and the merge do not fit together.",
        ),
        Mistake(
            "same slice for all heads",
            _variant(split=_split_same),
            "Every head works on the first d_k columns of the projections, so all heads are equal. "
            "Head i takes the i-th slice.",
        ),
        Mistake(
            "scaled with √d_model",
            _variant(scale=lambda d_k: (NUM_HEADS * d_k) ** 0.5),
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
                split=lambda x: x.unflatten(-1, (NUM_HEADS, -1)), merge=lambda context: context.flatten(-2)
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
        "Scale by the root of the split query's last axis, softmax over dim=-1, mix, merge, @ w_output.",
    ),
)


# 4. What each head adds -----------------------------------------------------------------------


def _contributions(context: Tensor, w_output: Tensor) -> Tensor:
    return context @ w_output.unflatten(0, (context.shape[-3], -1))


def _contributions_strided(context: Tensor, w_output: Tensor) -> Tensor:
    return context @ w_output.unflatten(0, (-1, context.shape[-3])).transpose(0, 1)


def _contributions_columns(context: Tensor, w_output: Tensor) -> Tensor:
    return context @ w_output.mT.unflatten(0, (context.shape[-3], -1))


def _contributions_whole(context: Tensor, w_output: Tensor) -> Tensor:
    output = (_merge(context) @ w_output).unsqueeze(-3)
    return output.expand(*output.shape[:-3], context.shape[-3], *output.shape[-2:])


def _output_weight(generator: Generator, rows: int, columns: int, dtype=torch.float32) -> Tensor:
    return (normal(generator, rows, columns, dtype=torch.float64) / rows**0.5).to(dtype)


HEAD_CONTRIBUTIONS = Exercise(
    name=f"{NAME}.head_contributions",
    title="What each head adds",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_contributions,
    returns=("contributions",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 2), halves(g, 4, 5))),
        Case("batch", lambda g: (_heads(g, 2, 3, 5, 4), _output_weight(g, 12, 7))),
        Case("square W_O", lambda g: (_heads(g, 2, 3, 5, 4), _output_weight(g, 12, 12))),
        Case(
            "two leading axes, float64",
            lambda g: (
                _heads(g, 2, 3, 4, 5, 6, dtype=torch.float64),
                _output_weight(g, 24, 7, torch.float64),
            ),
        ),
        Case("gradient", lambda g: (_heads(g, 2, 4, 5, 3), _output_weight(g, 12, 7)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "first rows of W_O for every head",
            lambda context, w_output: context @ w_output[: context.shape[-1]],
            "Every head goes through the first d_v rows of W_O. These belong to head 0; head i has "
            "the i-th slice of rows.",
        ),
        Mistake(
            "every h-th row",
            _contributions_strided,
            "Head 0 gets rows 0, h, 2h, ... of W_O. Its columns stand first in the concatenation, so "
            "its rows are the first d_v. Look at the order of the two sizes.",
        ),
        Mistake(
            "heads in reverse order",
            lambda context, w_output: _contributions(
                context, w_output.unflatten(0, (context.shape[-3], -1)).flip(0).flatten(0, 1)
            ),
            "The last slice of W_O's rows meets the first head. Head 0 has the first d_v rows.",
        ),
        Mistake(
            "already added up",
            lambda context, w_output: _merge(context) @ w_output,
            "This is the whole output, all heads together. Keep the axis of the heads: one "
            "[T, d_model] for each.",
        ),
        Mistake(
            "whole output for every head",
            _contributions_whole,
            "Every head is given the output of all heads together. Added up, that is h times the output.",
        ),
        Mistake(
            "divided by h",
            lambda context, w_output: _contributions(context, w_output) / context.shape[-3],
            "Every share is divided by h. W_O adds the heads; it does not average them.",
        ),
        Mistake(
            "columns of W_O instead of rows",
            _contributions_columns,
            "Each head meets a slice of W_O's columns, transposed. Columns belong to the output; the "
            "concatenated heads meet its rows.",
        ),
        Mistake(
            "heads behind tokens",
            lambda context, w_output: _contributions(context, w_output).transpose(-2, -3),
            "Tokens stand in front of heads. The heads keep their place: [..., h, T, d_model].",
        ),
    ),
    hints=(
        "Write the concatenation as a row [c_1, c_2, ..., c_h] and W_O as a column of h blocks. What "
        "does a row times a column of blocks give?",
        "Block i is rows i · d_v to (i + 1) · d_v of W_O. unflatten(0, (h, -1)) makes the blocks an axis: "
        "[h, d_v, d_model].",
        "A matrix product works on the last two axes and pairs up those in front: context @ blocks.",
    ),
)


# 5. Grouped heads -----------------------------------------------------------------------------


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def _shared(query: Tensor, few: Tensor) -> Tensor:
    """Neighbouring query heads share a head: 0 0 0 1 1 1."""
    return few.repeat_interleave(query.shape[-3] // few.shape[-3], dim=-3)


def _tiled(query: Tensor, few: Tensor) -> Tensor:
    """Query heads take turns: 0 1 0 1 0 1."""
    return torch.cat([few] * (query.shape[-3] // few.shape[-3]), dim=-3)


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attention(query, _shared(query, key), _shared(query, value))


def _grouped_queries_averaged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attention(query.unflatten(-3, (key.shape[-3], -1)).mean(-3), key, value)


def _grouped_softmax_over_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ _shared(query, key).mT / query.shape[-1] ** 0.5
    return scores.softmax(-3) @ _shared(query, value)


def _grouped_unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ _shared(query, key).mT).softmax(-1) @ _shared(query, value)


def _grouped_scaled_by_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ _shared(query, key).mT / (query.shape[-1] * query.shape[-3]) ** 0.5
    return scores.softmax(-1) @ _shared(query, value)


GROUPED_QUERY_ATTENTION = Exercise(
    name=f"{NAME}.grouped_query_attention",
    title="Fewer heads for keys and values",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_grouped,
    returns=("context",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 4, 3, 2), tenths(g, 2, 5, 2), tenths(g, 2, 5, 1))),
        Case("multi-query", lambda g: (_heads(g, 2, 4, 5, 8), _heads(g, 2, 1, 7, 8), _heads(g, 2, 1, 7, 6))),
        Case("batch", lambda g: (_heads(g, 2, 6, 5, 8), _heads(g, 2, 2, 7, 8), _heads(g, 2, 2, 7, 9))),
        Case(
            "two leading axes, float64",
            lambda g: (
                _heads(g, 2, 3, 6, 4, 8, dtype=torch.float64),
                _heads(g, 2, 3, 3, 7, 8, dtype=torch.float64),
                _heads(g, 2, 3, 3, 7, 5, dtype=torch.float64),
            ),
        ),
        Case(
            "gradient",
            lambda g: (_heads(g, 2, 6, 4, 5), _heads(g, 2, 3, 7, 5), _heads(g, 2, 3, 7, 2)),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "heads take turns",
            lambda query, key, value: _attention(query, _tiled(query, key), _tiled(query, value)),
            "The key heads are laid out 0 1 0 1 0 1, as torch's repeat does. Neighbouring query heads "
            "form a group and share one: 0 0 0 1 1 1.",
        ),
        Mistake(
            "keys in groups, values in turns",
            lambda query, key, value: _attention(query, _shared(query, key), _tiled(query, value)),
            "Keys are shared in groups but values in turns, so a head looks with one and takes from "
            "another. Lay out both alike.",
        ),
        Mistake(
            "first key head for all",
            lambda query, key, value: _attention(query, key[..., :1, :, :], value[..., :1, :, :]),
            "Every query head uses key head 0. That is right for multi-query attention only, where "
            "there is no other.",
        ),
        Mistake(
            "key heads averaged",
            lambda query, key, value: _attention(
                query, key.mean(-3, keepdim=True), value.mean(-3, keepdim=True)
            ),
            "The key heads are averaged into one. Each group of query heads has a key head of its own.",
        ),
        Mistake(
            "query heads averaged",
            _grouped_queries_averaged,
            "The query heads of a group are averaged, so h heads became as many as the keys have. "
            "Every query head keeps a context of its own.",
        ),
        Mistake(
            "no scale",
            _grouped_unscaled,
            "The scores are plain dot products. Divide by √d_k.",
        ),
        Mistake(
            "scaled with √(h d_k)",
            _grouped_scaled_by_all,
            "The scale counts the columns of all heads. A score sums over one head's d_k products.",
        ),
        Mistake(
            "softmax over the heads",
            _grouped_softmax_over_heads,
            "The heads compete with each other. Each query shares 1 among its head's keys: look at dim.",
        ),
    ),
    hints=(
        "How many query heads share one key head? Write for h = 6 and 2 key heads which of the two "
        "each query head uses.",
        "torch.repeat_interleave copies each head in place; torch.Tensor.repeat copies the whole row of "
        "heads. Count the axis of the heads from the end: -3.",
        "Without a copy: query.unflatten(-3, (groups, -1)) makes [..., groups, h / groups, T_q, d_k], "
        "and key.unsqueeze(-3) broadcasts against it. Flatten the two axes of the context again.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="4. Multi-head attention",
    exercises=(SPLIT_HEADS, MERGE_HEADS, MULTI_HEAD_ATTENTION, HEAD_CONTRIBUTIONS, GROUPED_QUERY_ATTENTION),
)
