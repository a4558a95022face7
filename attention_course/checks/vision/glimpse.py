"""Exercise 3: a glimpse at an image, by an additive score over its cells."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.vision.shared import NAME

Two = tuple[Tensor, Tensor]


def _meet(state: Tensor, cells: Tensor) -> Tensor:
    return state[:, None, None] + cells


def _additive(state: Tensor, cells: Tensor, v: Tensor) -> Tensor:
    return _meet(state, cells).tanh() @ v


def _filled(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    def weigh(scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real, fill).flatten(1).softmax(-1).view_as(scores)

    return weigh


_over_grid = _filled(-torch.inf)


def _unmasked(scores: Tensor) -> Tensor:
    return scores.flatten(1).softmax(-1).view_as(scores)


def _along(dim: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, real: scores.masked_fill(~real, -torch.inf).softmax(dim)


def _one_by_one(*dims: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A softmax along each of ``dims`` in turn, kept from NaN by a large number, and zeros at the end."""

    def weigh(scores: Tensor, real: Tensor) -> Tensor:
        weights = scores.masked_fill(~real, -1e9)
        for dim in dims:
            weights = weights.softmax(dim)
        return weights * real

    return weigh


def _renormalised(scores: Tensor, real: Tensor) -> Tensor:
    kept = _unmasked(scores) * real
    return kept / kept.sum((1, 2), keepdim=True)


def _summed(where: Tensor, cells: Tensor) -> Tensor:
    return torch.einsum("brc,brcd->bd", where, cells)


def _glimpse(
    *,
    project: Callable[..., Two] = lambda state, cells, w_state, w_cell: (state @ w_state, cells @ w_cell),
    score: Callable[[Tensor, Tensor, Tensor], Tensor] = _additive,
    weigh: Callable[[Tensor, Tensor], Tensor] = _over_grid,
    mix: Callable[[Tensor, Tensor], Tensor] = _summed,
    finish: Callable[[Tensor, Tensor], Two] = lambda context, where: (context, where),
) -> Callable[..., Two]:
    """A glimpse with one of its parts replaced; ``weigh`` gets a boolean ``real``."""

    def glimpse(
        state: Tensor, cells: Tensor, real: Tensor, w_state: Tensor, w_cell: Tensor, v: Tensor
    ) -> Two:
        where = weigh(score(*project(state, cells, w_state, w_cell), v), real.bool())
        return finish(mix(where, cells), where)

    return glimpse


def _mixing_projected(
    state: Tensor, cells: Tensor, real: Tensor, w_state: Tensor, w_cell: Tensor, v: Tensor
) -> Two:
    _, where = _glimpse()(state, cells, real, w_state, w_cell, v)
    return _summed(where, cells @ w_cell), where


def _zeroed(state: Tensor, cells: Tensor, real: Tensor, *weights: Tensor) -> Two:
    return _glimpse(weigh=lambda scores, real: _unmasked(scores))(
        state, cells * real[..., None], real, *weights
    )


def _in_place(state: Tensor, cells: Tensor, real: Tensor, w_state: Tensor, w_cell: Tensor, v: Tensor) -> Two:
    right = _glimpse()(state, cells, real, w_state, w_cell, v)
    cells *= right[1][..., None]
    return right


# Cases ----------------------------------------------------------------------------------------


def _real(rows: int, columns: int, *sizes: tuple[int, int]) -> Tensor:
    """1.0 for a cell of an image so many rows and columns large, 0.0 for what fills up the batch."""
    tall, wide = torch.tensor(sizes).T[:, :, None, None]
    return ((torch.arange(rows)[:, None] < tall) & (torch.arange(columns) < wide)).float()


def _drawn(g: Generator, real: Tensor, d_s: int, d_c: int, hidden: int, dtype=torch.float32) -> Inputs:
    return (
        normal(g, len(real), d_s, dtype=dtype), normal(g, *real.shape, d_c, dtype=dtype), real,
        weight(g, d_s, hidden, dtype), weight(g, d_c, hidden, dtype), 1.5 * normal(g, hidden, dtype=dtype),
    )  # fmt: skip


def _loud(g: Generator, real: Tensor, loudness: float, dtype: torch.dtype) -> Inputs:
    """Padding scores ``2 * loudness`` above every cell, in numbers that no order of a sum changes."""
    signs = torch.randint(2, (*real.shape, 4), generator=g) * 2 - 1
    cells = torch.cat((1 - 2 * real[..., None], signs), -1).to(dtype)
    v = torch.cat((torch.tensor([loudness]), torch.randint(1, 9, (4,), generator=g) / 8)).to(dtype)
    # 60 is far enough for the tanh to be 1 or -1, whatever the state adds
    return (
        normal(g, len(real), 3, dtype=dtype),
        cells,
        real,
        halves(g, 3, 5).to(dtype),
        60 * torch.eye(5, dtype=dtype),
        v,
    )


def _apart(g: Generator) -> Inputs:
    """One image whose scores lie 400 below those of the other."""
    real = _real(2, 3, (2, 3), (2, 2))
    state, cells, real, w_state, w_cell, v = _loud(g, real, 200.0, torch.float32)
    cells[..., 0] = torch.tensor([1.0, -1.0])[:, None, None]
    return state, cells, real, w_state, w_cell, v


GLIMPSE = Exercise(
    name=f"{NAME}.glimpse",
    title="A glimpse",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_glimpse(),
    returns=("context", "where"),
    unseen=("cells",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 2),
                tenths(g, 1, 2, 3, 3),
                _real(2, 3, (2, 2)),
                halves(g, 2, 2),
                halves(g, 3, 2),
                tenths(g, 2),
            ),
        ),
        Case("two sizes", lambda g: _drawn(g, _real(3, 5, (3, 2), (2, 5)), 4, 6, 7)),
        Case(
            "as many images as rows and columns",
            lambda g: _drawn(g, _real(3, 3, (3, 3), (1, 2), (2, 3)).long(), 5, 4, 6),
        ),
        Case("all widths equal", lambda g: _drawn(g, _real(2, 4, (2, 4), (1, 4), (2, 3)), 4, 4, 4)),
        Case("one cell, float64", lambda g: _drawn(g, _real(2, 3, (1, 1), (2, 3)), 3, 5, 4, torch.float64)),
        Case("loud padding", lambda g: _loud(g, _real(2, 3, (2, 2), (1, 3)), 120.0, torch.float32)),
        Case(
            "padding louder than any number of yours, float64",
            lambda g: _loud(g, _real(3, 4, (2, 4), (3, 2)), 2e9, torch.float64),
        ),
        Case("one image far below the other", _apart),
        Case("gradient", lambda g: _drawn(g, _real(3, 4, (3, 4), (2, 3)).long(), 4, 5, 6), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            _glimpse(weigh=lambda scores, real: _unmasked(scores)),
            "Cells beyond the edge of a smaller image get weight like any other. Look for real: is it used?",
        ),
        Mistake(
            "inverted mask",
            _glimpse(weigh=lambda scores, real: _over_grid(scores, ~real)),
            "The image is hidden and what fills up the batch is seen; where nothing does, no cell is left, "
            "hence NaN. masked_fill fills where its mask is True.",
        ),
        Mistake(
            "NaN everywhere",
            _glimpse(weigh=lambda scores, real: torch.full_like(scores, torch.nan)),
            "Every weight is NaN, whatever real holds. Is everything hidden? ~ turns truths round, but of "
            "integers ~1 is -2, and that counts as true as well. Or is -inf multiplied? 0 · inf is NaN.",
        ),
        Mistake(
            "mask after softmax",
            _glimpse(weigh=lambda scores, real: _unmasked(scores) * real),
            "What lies beyond the edge gets no weight, but the map no longer sums to 1: softmax has already "
            "shared out to it. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "mask after softmax, divided by what is left",
            _glimpse(weigh=_renormalised),
            "You take the softmax over everything, put zeros beyond the edge and divide by what is left. "
            "Where padding has by far the largest score nothing is left, and 0 divided by 0 is NaN. Hide "
            "before the softmax.",
        ),
        Mistake(
            "zero as a score",
            _glimpse(weigh=_filled(0.0)),
            "What lies beyond the edge has the score 0, and exp(0) = 1: it still gets weight. Which score "
            "has the exponential 0?",
        ),
        Mistake(
            "a large negative number as a score",
            _glimpse(weigh=_filled(-1e9)),
            "What lies beyond the edge gets a score such as -1e9. One case has scores lower than that, and "
            "there padding gets all the weight. Which score is lower than all others?",
        ),
        Mistake(
            "a large number subtracted",
            _glimpse(weigh=lambda scores, real: _unmasked(scores - 1e9 * ~real)),
            "A large number is subtracted from scores beyond the edge. One case has larger differences than "
            "that, and there padding gets all the weight. Fill with -inf instead.",
        ),
        Mistake(
            "a small number subtracted",
            _glimpse(weigh=lambda scores, real: _unmasked(scores - 20.0 * ~real)),
            "A number such as 20 is subtracted from hidden scores: exp(-20) of them stays, and where they "
            "are far larger than the others they get all the weight. Fill with -inf: then it is exactly 0.",
        ),
        Mistake(
            "cells made 0 and not hidden",
            _zeroed,
            "Cells beyond the edge are made 0, and nothing is hidden: a cell of zeros has a score like any "
            "other, and gets weight. Hide its score.",
        ),
        Mistake(
            "softmax over the columns",
            _glimpse(weigh=_along(-1)),
            "Every row of the map sums to 1 by itself (and is NaN where the image has ended). All cells of "
            "an image compete: take the softmax over rows and columns at once.",
        ),
        Mistake(
            "softmax over the rows",
            _glimpse(weigh=_along(-2)),
            "Every column of the map sums to 1 by itself (and is NaN where the image has ended). All cells "
            "of an image compete: take the softmax over rows and columns at once.",
        ),
        Mistake(
            "softmax over rows, then columns",
            _glimpse(
                weigh=lambda scores, real: scores.masked_fill(~real, -torch.inf).softmax(-1).softmax(-2)
            ),
            "One softmax goes over the columns and another over its result. All cells of an image compete in "
            "one softmax: flatten the grid.",
        ),
        Mistake(
            "softmax over the columns, then zeros",
            _glimpse(weigh=_one_by_one(-1)),
            "Every row of the map that has a real cell sums to 1 by itself, and the map to more. All cells "
            "of an image compete: take the softmax over rows and columns at once. Every image has a real "
            "cell, so that -inf can stand for your large number.",
        ),
        Mistake(
            "softmax over rows, then columns, then zeros",
            _glimpse(weigh=_one_by_one(-2, -1)),
            "One softmax goes over the rows and another over its result. All cells of an image compete in "
            "one softmax: flatten the grid. Then -inf can stand for your large number.",
        ),
        Mistake(
            "softmax over the images",
            _glimpse(weigh=_along(0)),
            "The weights sum to 1 over the batch: images compete for a cell. The cells of one image should.",
        ),
        Mistake(
            "one softmax for the batch",
            _glimpse(
                weigh=lambda scores, real: (
                    scores.masked_fill(~real, -torch.inf).flatten().softmax(-1).view_as(scores)
                )
            ),
            "All images of the batch share one softmax. Each image's map sums to 1: keep the first axis when "
            "you flatten.",
        ),
        Mistake(
            "states laid along the rows",
            _glimpse(score=lambda state, cells, v: (state[:, None] + cells).tanh() @ v),
            "state [B, hidden] needs two axes of length 1, one for the rows and one for the columns. With "
            "one, each image row gets another image's state; with as many images as rows nothing raises.",
        ),
        Mistake(
            "states laid along the columns",
            _glimpse(score=lambda state, cells, v: (state + cells).tanh() @ v),
            "state [B, hidden] needs an axis of length 1 for the rows and one for the columns, behind B. "
            "Without them each column gets another image's state; with as many images as columns nothing "
            "raises.",
        ),
        Mistake(
            "the state without effect",
            _glimpse(score=lambda state, cells, v: cells.tanh() @ v),
            "The glimpse goes to the same cells whatever the state is. Either it is not used, or it has a "
            "tanh of its own: then it adds one number to all scores, and the softmax cancels that. State "
            "and cell are added inside one tanh.",
        ),
        Mistake(
            "cells ignored in the score",
            _glimpse(
                score=lambda state, cells, v: (state[:, None, None] + torch.zeros_like(cells)).tanh() @ v
            ),
            "All cells of an image have one score, that of the state: the map is flat. Add the projected "
            "cells inside the tanh.",
        ),
        Mistake(
            "no tanh",
            _glimpse(score=lambda state, cells, v: _meet(state, cells) @ v),
            "There is no tanh. Then the state adds the same number to every score, and the softmax cancels "
            "it.",
        ),
        Mistake(
            "tanh after v",
            _glimpse(score=lambda state, cells, v: (_meet(state, cells) @ v).tanh()),
            "tanh goes over the finished score. It belongs inside, over each hidden number, before v sums "
            "them.",
        ),
        Mistake(
            "v left out",
            _glimpse(score=lambda state, cells, v: _meet(state, cells).tanh().sum(-1)),
            "The hidden numbers are summed as they are. v says how much each of them counts.",
        ),
        Mistake(
            "product instead of sum",
            _glimpse(score=lambda state, cells, v: (state[:, None, None] * cells).tanh() @ v),
            "State and cell are multiplied inside the tanh. They are added.",
        ),
        Mistake(
            "divided by a root",
            _glimpse(score=lambda state, cells, v: _additive(state, cells, v) / len(v) ** 0.5),
            "The scores are divided by the root of a width. That belongs to dot products; an additive score "
            "is taken as it is.",
        ),
        Mistake(
            "weights exchanged",
            _glimpse(project=lambda state, cells, w_state, w_cell: (state @ w_cell, cells @ w_state)),
            "The state is multiplied with w_cell and the cells with w_state, which runs only where both are "
            "equally wide.",
        ),
        Mistake(
            "weights transposed",
            _glimpse(project=lambda state, cells, w_state, w_cell: (state @ w_state.mT, cells @ w_cell.mT)),
            "The projections are x @ w.mT, as nn.Linear stores them; that runs only where w is square. "
            "Here they stand on the right as they are.",
        ),
        Mistake(
            "projected cells mixed",
            _mixing_projected,
            "The context is mixed of the projected cells. The projection serves the score alone: mix the "
            "cells themselves.",
        ),
        Mistake(
            "mean of the cells",
            _glimpse(mix=lambda where, cells: cells.mean((1, 2))),
            "The context is the plain mean of all cells. Weigh them with the map.",
        ),
        Mistake(
            "mean instead of sum",
            _glimpse(mix=lambda where, cells: (where[..., None] * cells).mean((1, 2))),
            "The weighted cells are averaged, which divides by their number once more. The weights sum to 1 "
            "already: add.",
        ),
        Mistake(
            "cells not added up",
            _glimpse(mix=lambda where, cells: where[..., None] * cells),
            "Each cell is multiplied by its weight, and there it ends. The context is their sum, one vector "
            "for each image.",
        ),
        Mistake(
            "added over the rows alone",
            _glimpse(mix=lambda where, cells: (where[..., None] * cells).sum(1)),
            "The weighted cells are added over one axis of the grid. Add over rows and columns.",
        ),
        Mistake(
            "an axis too many",
            _glimpse(finish=lambda context, where: (context[:, None], where)),
            "An axis of length 1 is left in the context. There is one glimpse for each image: [B, d_c].",
        ),
        Mistake(
            "the map left flat",
            _glimpse(finish=lambda context, where: (context, where.flatten(1))),
            "The weights are right, but they are a row still. A map has rows and columns: [B, rows, "
            "columns].",
        ),
        Mistake(
            "the map first",
            _glimpse(finish=lambda context, where: (where, context)),
            "The two results are the wrong way round. Return (context, where), in this order.",
        ),
        Mistake(
            "cells changed in place",
            _in_place,
            "The result is right, but the weighted cells are written into cells itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Four steps, as always: score, mask, softmax, mix. A grid is a row of cells: which axes have to be "
        "one for the softmax, and which shape has the state to have to meet every cell?",
        "state @ w_state is [B, hidden], cells @ w_cell is [B, rows, columns, hidden]. [:, None, None] gives "
        "the first the two axes it lacks. scores.flatten(1) keeps the images apart.",
        "Where real is not 1 the score becomes -inf, before the softmax. Afterwards unflatten the weights; "
        "for the context multiply the cells by them, which need one more axis for that, and add over both "
        "axes of the grid.",
    ),
)
