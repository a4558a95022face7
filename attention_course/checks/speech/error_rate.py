"""Exercise 5: how much of what was written is wrong."""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.speech.shared import NAME

Rate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Edits = Callable[[Sequence[int], Sequence[int]], int]


def _table(
    said: Sequence[int],
    right: Sequence[int],
    insert: int = 1,
    delete: int = 1,
    exchange: int = 1,
    edge_said: int = 1,
    edge_right: int = 1,
) -> list[list[int]]:
    """Row i, column j: what it costs to turn i symbols of ``said`` into the first j of ``right``."""
    table = [[j * edge_right for j in range(len(right) + 1)]]
    for i, one in enumerate(said, 1):
        row = [i * edge_said]
        for j, other in enumerate(right, 1):
            row.append(
                min(
                    table[-1][j] + delete,
                    row[-1] + insert,
                    table[-1][j - 1] + (exchange if one != other else 0),
                )
            )
        table.append(row)
    return table


def _edits(said: Sequence[int], right: Sequence[int]) -> int:
    return _table(said, right)[-1][-1]


def _with_costs(**costs: int) -> Edits:
    return lambda said, right: _table(said, right, **costs)[-1][-1]


def _in_place_by_place(said: Sequence[int], right: Sequence[int]) -> int:
    return sum(a != b for a, b in zip(said, right, strict=False)) + abs(len(said) - len(right))


def _together(said: Sequence[int], right: Sequence[int]) -> int:
    """As far as both go."""
    return sum(a != b for a, b in zip(said, right, strict=False))


def _neighbours_exchanged(said: Sequence[int], right: Sequence[int]) -> int:
    """Two neighbours that have changed places count as one edit."""
    table = _table([], right)
    for i, one in enumerate(said, 1):
        row = [i]
        for j, other in enumerate(right, 1):
            best = min(table[-1][j] + 1, row[-1] + 1, table[-1][j - 1] + (one != other))
            if i > 1 and j > 1 and one == right[j - 2] and said[i - 2] == other:
                best = min(best, table[-2][j - 2] + 1)
            row.append(best)
        table.append(row)
    return table[-1][-1]


def _at_once(said: Sequence[int], right: Sequence[int]) -> int:
    return int(list(said) != list(right))


def _other_symbols(said: Sequence[int], right: Sequence[int]) -> int:
    """In no order."""
    left = list(right)
    for one in said:
        if one in left:
            left.remove(one)
    return max(len(left), len(said) - len(right) + len(left))


Lists = list[tuple[list[int], list[int]]]


def _summed(edits: list[int], pairs: Lists) -> float:
    return sum(edits) / sum(len(right) for _, right in pairs)


def _rate(
    edits: Edits = _edits,
    total: Callable[[list[int], Lists], int | float] = _summed,
    cut: Callable[[list[int], int], list[int]] = lambda row, length: row[:length],
) -> Rate:
    def error_rate(said: Tensor, said_lengths: Tensor, right: Tensor, right_lengths: Tensor) -> Tensor:
        of = [
            [cut(row, length) for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
            for rows, lengths in ((said, said_lengths), (right, right_lengths))
        ]
        pairs = list(zip(*of, strict=True))
        return torch.tensor(total([edits(*pair) for pair in pairs], pairs), dtype=torch.float32)

    return error_rate


def _mean(of: Callable[[int, list[int], list[int]], float]) -> Callable[[list[int], Lists], float]:
    return lambda edits, pairs: (
        sum(of(number, *pair) for number, pair in zip(edits, pairs, strict=True)) / len(pairs)
    )


def _everything(said: Tensor, said_lengths: Tensor, right: Tensor, right_lengths: Tensor) -> Tensor:
    """The edits between whole rows, divided by the right number."""
    rate = _rate(cut=lambda row, length: row)(said, said_lengths, right, right_lengths)
    return rate * right.numel() / right_lengths.sum()


def _all_that_was_said(said: Tensor, said_lengths: Tensor, right: Tensor, right_lengths: Tensor) -> Tensor:
    return _rate()(said, torch.full_like(said_lengths, said.shape[1]), right, right_lengths)


def _by_all_places(said: Tensor, said_lengths: Tensor, right: Tensor, right_lengths: Tensor) -> Tensor:
    return _rate()(said, said_lengths, right, right_lengths) * right_lengths.sum() / right.numel()


def _from_the_second_on(said: Sequence[int], right: Sequence[int]) -> int:
    return _edits(said[1:], right[1:]) if said else len(right)


def _in_place(said: Tensor, said_lengths: Tensor, right: Tensor, right_lengths: Tensor) -> Tensor:
    result = _rate()(said, said_lengths, right, right_lengths)
    said.masked_fill_(torch.arange(said.shape[1]) >= said_lengths[:, None], -1)
    return result


# Cases ----------------------------------------------------------------------------------------


def _altered(g: Generator, right: list[int], symbols: int) -> list[int]:
    """Some symbols dropped, some put in, some replaced, two neighbours exchanged."""

    def chance() -> float:
        return float(torch.rand((), generator=g))

    said = []
    for one in right:
        if chance() < 0.2:
            said.append(int(torch.randint(1, symbols + 1, (), generator=g)))
        if chance() < 0.75:
            said.append(one if chance() < 0.75 else int(torch.randint(1, symbols + 1, (), generator=g)))
    if len(said) > 2:
        at = int(torch.randint(len(said) - 1, (), generator=g))
        said[at], said[at + 1] = said[at + 1], said[at]
    return said


def _batch(g: Generator, pairs: Lists, symbols: int) -> Inputs:
    """Behind every end stands something, as a speller goes on writing."""
    found: list[Tensor] = []
    for rows in zip(*pairs, strict=True):
        lengths = torch.tensor([len(row) for row in rows])
        filled = torch.randint(1, symbols + 1, (len(rows), int(lengths.max()) + 1), generator=g)
        for line, row in zip(filled, rows, strict=True):
            line[: len(row)] = torch.tensor(row, dtype=torch.long)
        found += [filled, lengths]
    return tuple(found)


def _word(g: Generator, length: int, symbols: int) -> list[int]:
    return torch.randint(1, symbols + 1, (length,), generator=g).tolist()


def _drawn(g: Generator, symbols: int, *lengths: int) -> Inputs:
    words = [_word(g, length, symbols) for length in lengths]
    return _batch(g, [(_altered(g, word, symbols), word) for word in words], symbols)


def _shifted(g: Generator) -> Inputs:
    """One symbol is put in front: all places differ, and one edit makes up for it."""
    words = [_word(g, length, 9) for length in (6, 8)]
    return _batch(g, [([10, *words[0]], words[0]), (words[1][1:], words[1])], 9)


def _goes_on(g: Generator) -> Inputs:
    """It writes on and on, and once nothing, and once nearly all."""
    short, long, third = (_word(g, length, 5) for length in (2, 4, 5))
    return _batch(g, [(short + _word(g, 9, 5), short), ([], long), (third[:-1], third)], 5)


def _exchanged(g: Generator) -> Inputs:
    """Two neighbours have changed places."""
    pairs = []
    for length in (6, 3):
        right = (torch.randperm(length, generator=g) + 1).tolist()
        at = int(torch.randint(length - 1, (), generator=g))
        pairs.append(([*right[:at], right[at + 1], right[at], *right[at + 2 :]], right))
    return _batch(g, pairs, 6)


ERROR_RATE = Exercise(
    name=f"{NAME}.error_rate",
    title="How much of it is wrong",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_rate(),
    returns=("rate",),
    cases=(
        Case("two words of four symbols", lambda g: _drawn(g, 4, 5, 3)),
        Case("six words", lambda g: _drawn(g, 6, 9, 3, 7, 1, 5, 12)),
        Case("one symbol in front, one lost", _shifted),
        Case("it goes on and on, and once says nothing", _goes_on),
        Case("neighbours in each other's place", _exchanged),
        Case("few symbols", lambda g: _drawn(g, 2, 10, 4, 6)),
        Case("as many words as places", lambda g: _drawn(g, 5, 4, 3, 4, 2)),
    ),
    mistakes=(
        Mistake(
            "place by place",
            _rate(edits=_in_place_by_place),
            "You compare place by place and count what is too much or too little at the end. A symbol put in "
            "front would make all that follows wrong: find the fewest edits.",
        ),
        Mistake(
            "place by place, as far as both go",
            _rate(edits=_together),
            "You compare place by place, as far as both go. A symbol put in front would make all that "
            "follows wrong, and one left out at the end would be free: find the fewest edits.",
        ),
        Mistake(
            "the mean of the words' rates",
            _rate(total=_mean(lambda number, said, right: number / len(right))),
            "You take each word's rate and average these: one slip in a short word weighs more than in a "
            "long one. Add the edits of all words, and divide by all symbols that should have been written.",
        ),
        Mistake(
            "divided by what was said",
            _rate(
                total=lambda edits, pairs: sum(edits) / max(1, sum(len(said) for said, _ in pairs)),
            ),
            "You divide by the symbols that were written. Whoever writes much would be wrong less often: "
            "divide by those that should have been.",
        ),
        Mistake(
            "divided by the longer one",
            _rate(total=lambda edits, pairs: sum(edits) / sum(max(map(len, pair)) for pair in pairs)),
            "You divide by the longer of the two. The number of symbols that should have been written is "
            "asked for, and so a rate may be larger than 1.",
        ),
        Mistake(
            "divided by both lengths",
            _rate(total=lambda edits, pairs: sum(edits) / sum(len(one) + len(other) for one, other in pairs)),
            "You divide by the symbols of both. Those that should have been written are asked for.",
        ),
        Mistake(
            "divided by the width of the batch",
            _rate(total=lambda edits, pairs: sum(edits) / len(pairs) / max(len(right) for _, right in pairs)),
            "You divide as if all words were as long as the longest. Add up their own lengths.",
        ),
        Mistake(
            "at most 1",
            _rate(total=lambda edits, pairs: min(1.0, _summed(edits, pairs))),
            "You cut the rate off at 1. Whoever writes on and on has a larger one.",
        ),
        Mistake(
            "at most 1 for each word",
            _rate(
                total=lambda edits, pairs: _summed(
                    [min(number, len(right)) for number, (_, right) in zip(edits, pairs, strict=True)], pairs
                )
            ),
            "A word's edits are cut off at its length. Whoever writes on and on makes more of them.",
        ),
        Mistake(
            "the number of words",
            _rate(total=lambda edits, pairs: sum(edits) / len(pairs)),
            "You divide by the number of words. Divide by the symbols that should have been written.",
        ),
        Mistake(
            "edits instead of a rate",
            _rate(total=lambda edits, pairs: sum(edits)),
            "That is the number of edits. Divide by the symbols that should have been written.",
        ),
        Mistake(
            "the share of wrong words",
            _rate(edits=_at_once, total=lambda edits, pairs: sum(edits) / len(pairs)),
            "You count words that are not right as a whole. Count edits of symbols.",
        ),
        Mistake(
            "what is right",
            _rate(total=lambda edits, pairs: 1 - _summed(edits, pairs)),
            "That is 1 minus the rate.",
        ),
        Mistake(
            "what stands behind the end counted",
            _rate(cut=lambda row, length: row),
            "What stands behind the end of a word is compared as well. Cut each row at its length.",
        ),
        Mistake(
            "what stands behind the end compared",
            _everything,
            "You divide by the right number, but what stands behind the ends is compared as well. Cut each "
            "row at its length.",
        ),
        Mistake(
            "all that was said compared",
            _all_that_was_said,
            "What stands behind the end of what was said is compared as well. It has lengths of its own: "
            "said_lengths.",
        ),
        Mistake(
            "divided by all places of right",
            _by_all_places,
            "You divide by the number of entries of right, those behind the ends among them. Add up the "
            "lengths.",
        ),
        Mistake(
            "the first symbol not compared",
            _rate(edits=_from_the_second_on),
            "The first symbol of either word is compared with nothing. A table for n and m symbols has n + 1 "
            "rows and m + 1 columns, and its row i is about symbol i - 1.",
        ),
        Mistake(
            "the last symbol cut off",
            _rate(cut=lambda row, length: row[: max(0, length - 1)]),
            "Each word lacks its last symbol. row[:n] has n of them.",
        ),
        Mistake(
            "an exchange costs two",
            _rate(edits=_with_costs(exchange=2)),
            "Another symbol in the place of the right one costs two edits, one to take it out and one to put "
            "the other in. Replacing is one edit.",
        ),
        Mistake(
            "what is too much costs nothing",
            _rate(edits=_with_costs(delete=0, edge_said=0)),
            "Symbols that are too many cost nothing. Each has to be taken out: one edit.",
        ),
        Mistake(
            "what lacks costs nothing",
            _rate(edits=_with_costs(insert=0, edge_right=0)),
            "Symbols that lack cost nothing. Each has to be put in: one edit.",
        ),
        Mistake(
            "the first column all 0",
            _rate(edits=_with_costs(edge_said=0)),
            "The first column of your table is 0: symbols too many at the beginning cost nothing. To turn i "
            "symbols into none takes i edits.",
        ),
        Mistake(
            "the first row all 0",
            _rate(edits=_with_costs(edge_right=0)),
            "The first row of your table is 0: symbols that lack at the beginning cost nothing. To make j "
            "symbols out of none takes j edits.",
        ),
        Mistake(
            "the first row and the first column all 0",
            _rate(edits=_with_costs(edge_said=0, edge_right=0)),
            "The first row and the first column of your table are 0: what is too much or too little at the "
            "beginning costs nothing. To turn i symbols into none takes i edits, and none into j takes j.",
        ),
        Mistake(
            "neighbours exchanged for one",
            _rate(edits=_neighbours_exchanged),
            "Two neighbours that have changed places cost one edit. Here an edit puts in, takes out or "
            "replaces one symbol, so that costs two.",
        ),
        Mistake(
            "in no order",
            _rate(edits=_other_symbols),
            "You compare which symbols occur, in no order. Their order counts.",
        ),
        Mistake(
            "said changed in place",
            _in_place,
            "The result is right, but said is not what it was. Make a copy.",
        ),
    ),
    hints=(
        "Let e[i][j] be the fewest edits that turn the first i symbols of one word into the first j of the "
        "other. What is e[i][0], and what e[0][j]?",
        "The last step to e[i][j] took a symbol out (from e[i-1][j]), put one in (from e[i][j-1]), or came "
        "from e[i-1][j-1], at a cost of 0 or 1. Which of the three is cheapest?",
        "Cut each row at its length with tolist(), fill one table for each pair of words, row by row, and "
        "add up their last entries. Divide once, at the end, and make a tensor of the number.",
    ),
)
