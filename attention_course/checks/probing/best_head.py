"""Exercise 4: the best head, chosen on one half and reported on the other."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.probing import shared
from attention_course.checks.probing.shared import NAME

Three = tuple[Tensor, Tensor, Tensor]
#: the weights and the keys that may be chosen -> what is compared
Hidden = Callable[[Tensor, Tensor], Tensor]


def _best_head(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    hidden = weights.masked_fill(~allowed[:, None, None], -torch.inf)
    right = (hidden.argmax(-1) == target[:, None, None]).to(weights.dtype)  # [N, L, h]
    on_train, on_rest = right[train].mean(0), right[~train].mean(0)
    layer, head = torch.unravel_index(on_train.argmax(), on_train.shape)
    return layer, head, on_rest[layer, head]


def _only_allowed(weights: Tensor, allowed: Tensor) -> Tensor:
    return weights.masked_fill(~allowed[:, None, None], -torch.inf)


def _right(weights: Tensor, allowed: Tensor, target: Tensor, hide: Hidden = _only_allowed) -> Tensor:
    """[N, L, h]: whether each head's largest weight lies on the target."""
    return (hide(weights, allowed).argmax(-1) == target[:, None, None]).to(weights.dtype)


def _on_target(weights: Tensor, allowed: Tensor, target: Tensor) -> Tensor:
    """[N, L, h]: the weight on the target."""
    place = target[:, None, None, None].expand(*weights.shape[:-1], 1)
    return weights.gather(-1, place).squeeze(-1)


def _largest(table: Tensor) -> tuple[Tensor, Tensor]:
    best = table.argmax()
    return best // table.shape[1], best % table.shape[1]


def _found(
    hide: Hidden = _only_allowed,
    on: Callable[[Tensor], Tensor] = lambda train: train,
    told: Callable[[Tensor], Tensor] = lambda train: ~train,
    largest: Callable[[Tensor], tuple[Tensor, Tensor]] = _largest,
    chosen_by: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    reported: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Callable[..., Three]:
    """The reference with one of its parts replaced."""

    def best_head(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
        right = _right(weights, allowed, target, hide)
        chooses = right if chosen_by is None else chosen_by(weights, allowed, target)
        reports = right if reported is None else reported(weights, allowed, target)
        layer, head = largest(chooses[on(train)].mean(0))
        return layer, head, reports[told(train)].mean(0)[layer, head]

    return best_head


def _apart(table: Tensor) -> tuple[Tensor, Tensor]:
    """The layer that is best on average, and the head that is best on average."""
    return table.mean(1).argmax(), table.mean(0).argmax()


def _exchanged(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, accuracy = _best_head(weights, allowed, target, train)
    return head, layer, accuracy


def _from_one(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, accuracy = _best_head(weights, allowed, target, train)
    return layer + 1, head + 1, accuracy


def _accuracy_first(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, accuracy = _best_head(weights, allowed, target, train)
    return accuracy, layer, head


def _taken_apart_by_layers(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    """The right head, with the right accuracy, under a wrong name."""
    right = _right(weights, allowed, target)
    best = right[train].mean(0).argmax()
    return best // weights.shape[1], best % weights.shape[1], right[~train].mean(0).flatten()[best]


def _read_there(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    """The wrong name, and the accuracy of whatever head has it, where there is one."""
    right = _right(weights, allowed, target)
    best = right[train].mean(0).argmax()
    layer, head = best // weights.shape[1], best % weights.shape[1]
    return layer, head, right[~train].mean(0)[layer, head]


def _largest_of_the_rest(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, _ = _best_head(weights, allowed, target, train)
    return layer, head, _right(weights, allowed, target)[~train].mean(0).amax()


def _any_head(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, _ = _best_head(weights, allowed, target, train)
    return layer, head, _right(weights, allowed, target)[~train].flatten(1).amax(1).mean()


def _all_heads(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, _ = _best_head(weights, allowed, target, train)
    return layer, head, _right(weights, allowed, target)[~train].mean()


def _number(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, accuracy = _best_head(weights, allowed, target, train)
    return layer, head, accuracy * (~train).sum()


def _over_all(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    layer, head, accuracy = _best_head(weights, allowed, target, train)
    return layer, head, accuracy * (~train).sum() / len(train)


def _in_place(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> Three:
    weights.masked_fill_(~allowed[:, None, None], -torch.inf)
    return _best_head(weights, allowed, target, train)


# Inputs ---------------------------------------------------------------------------------------


def _exactly(generator: Generator, part: Tensor, share: float) -> Tensor:
    """True for this share of the examples in ``part``."""
    places = part.nonzero().squeeze(-1)
    places = places[torch.randperm(len(places), generator=generator)]
    chosen = torch.zeros_like(part)
    chosen[places[: round(share * len(places))]] = True
    return chosen


def _planned(generator: Generator, train: Tensor, L: int, h: int) -> tuple[Tensor, Tensor]:
    """[N, L, h]: which heads find the target; [L, h]: how sharply they look.

    One head is best on the chosen half. In another layer there are three: best on the other half, best
    on all, and one that gives the target the most weight; all three tempt somebody.
    """
    N = len(train)
    finds = torch.rand(N, L, h, generator=generator) < 0.15
    sharp = torch.full((L, h), 1.2, dtype=torch.float64)
    layer, other = torch.randperm(L, generator=generator)[:2].tolist()
    heads = torch.randperm(h, generator=generator).tolist()
    plan = {(layer, heads[0]): (0.9, 0.55), (other, heads[1]): (0.4, 0.9), (other, heads[2]): (0.8, 0.8)}
    plan[other, heads[3]] = (0.6, 0.65)
    for (row, head), (on_train, on_rest) in plan.items():
        finds[:, row, head] = _exactly(generator, train, on_train) | _exactly(generator, ~train, on_rest)
    sharp[other, heads[3]] = 5.0
    return finds, sharp


def _sentences(generator: Generator, N: int, T: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """real, special, allowed [N, T]: no padding, both ends, the others without the source; target [N]."""
    lengths = torch.randint(T - 2, T + 1, (N, 1), generator=generator)
    place = torch.arange(T)
    real, special = place < lengths, (place == 0) | (place == lengths - 1)
    source = 1 + (torch.rand(N, 1, generator=generator) * (lengths - 2)).long()
    allowed = real & ~special & (place != source)
    target = torch.rand(N, T, generator=generator).masked_fill(~allowed, 0.0).argmax(-1)
    return real, special, allowed, target


def _tells(weights: Tensor, allowed: Tensor, target: Tensor, train: Tensor) -> bool:
    """Whether no two heads tie where one is chosen, and the usual choices differ."""
    right = _right(weights, allowed, target)
    tables = [right[part].mean(0) for part in (train, ~train, train | ~train)]
    tables.append(_on_target(weights, allowed, target)[train].mean(0))
    tops = [table.flatten().topk(2).values for table in tables]
    best = [int(table.argmax()) for table in tables]
    layer, head = map(int, _largest(tables[0]))
    unmasked = _right(weights, allowed, target, lambda weights, _: weights)[~train].mean(0).flatten()
    return (
        all(float(top[0] - top[1]) > 1e-6 for top in tops)
        and len(set(best)) == 4
        and layer != head
        and (layer, head) != tuple(map(int, _apart(tables[0])))
        and float(right[~train].flatten(1).amax(1).mean()) != float(tops[1][0])
        and float(tables[0].flatten()[best[0]]) != float(tables[1].flatten()[best[0]])
        and all(float(unmasked[one]) != float(tables[1].flatten()[one]) for one in (best[0], best[3]))
    )


def _drawn(
    g: Generator, N: int, L: int, h: int, T: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    while True:
        train = shared.chosen_half(g, N)
        real, special, allowed, target = _sentences(g, N, T)
        finds, sharp = _planned(g, train, L, h)
        scores = 0.3 * normal(g, N, L, h, T, dtype=torch.float64)
        # a head looks at the target, or at another key that is allowed; often a special token gets more
        other = torch.rand(N, L, h, T, generator=g).masked_fill(~allowed[:, None, None], 0.0)
        other = other.scatter(-1, target[:, None, None, None].expand(N, L, h, 1), 0.0).argmax(-1)
        looks = target[:, None, None].where(finds, other)
        scores += one_hot(looks, T) * (0.8 + sharp)[..., None]
        sink = torch.rand(N, L, h, 1, generator=g)
        scores += special[:, None, None] * (3.0 * (sink < 0.5) + 5.0 * (sink < 0.15))
        weights = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1).to(dtype)
        if _tells(weights, allowed, target, train):
            return weights, allowed, target, train


BEST_HEAD = Exercise(
    name=f"{NAME}.best_head",
    title="The best of many heads",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_best_head,
    returns=("layer", "head", "accuracy"),
    cases=(
        Case("two layers", lambda g: _drawn(g, 20, 2, 4, 6)),
        Case("six layers", lambda g: _drawn(g, 31, 6, 4, 9)),
        Case("more heads than layers", lambda g: _drawn(g, 24, 3, 8, 7)),
        Case("as many layers as heads", lambda g: _drawn(g, 25, 4, 4, 8)),
        Case("float64", lambda g: _drawn(g, 22, 3, 5, 10, dtype=torch.float64)),
    ),
    mistakes=(
        Mistake(
            "special tokens allowed",
            _found(hide=lambda weights, allowed: weights),
            "The largest weight is taken over all keys. Often that is a special token, which no head can be "
            "right with: take it over the allowed keys only.",
        ),
        Mistake(
            "inverted mask",
            _found(hide=lambda weights, allowed: weights.masked_fill(allowed[:, None, None], -torch.inf)),
            "The allowed keys are hidden and the others are not: masked_fill fills where its mask is True.",
        ),
        Mistake(
            "chosen and reported on the same half",
            _found(told=lambda train: train),
            "The head is chosen well, but its accuracy is that on the half on which it was chosen, where it "
            "is the best of many. Report it on the other half.",
        ),
        Mistake(
            "the halves exchanged",
            _found(on=lambda train: ~train, told=lambda train: train),
            "You choose where train is False and report where it is True. It is the other way round.",
        ),
        Mistake(
            "train ignored: all chosen and reported on all",
            _found(on=torch.ones_like, told=torch.ones_like),
            "You choose and report on all examples. Choose where train is True, and report where it is "
            "False.",
        ),
        Mistake(
            "chosen on everything",
            _found(on=torch.ones_like),
            "The head is chosen on all examples, the half among them on which it is reported. That half may "
            "not help to choose.",
        ),
        Mistake(
            "chosen on the half that reports",
            _found(on=lambda train: ~train),
            "The head is chosen on the half on which it is reported. Choose where train is True.",
        ),
        Mistake(
            "reported on everything",
            _found(told=torch.ones_like),
            "The head is chosen well, but its accuracy is that on all examples, those among them on which it "
            "was chosen. Report it where train is False.",
        ),
        Mistake(
            "divided by everything",
            _over_all,
            "You count the right answers of one half and divide by the number of all examples. Divide by the "
            "number of examples where train is False.",
        ),
        Mistake(
            "the best that another head has",
            _largest_of_the_rest,
            "The head is chosen on one half, and the accuracy is the largest that any head has on the other. "
            "That is a second choice. Report the head you chose.",
        ),
        Mistake(
            "any head is right",
            _any_head,
            "The head is chosen well, but an example counts as right if any head at all finds its target. "
            "Report the one head you chose.",
        ),
        Mistake(
            "chosen by its weight",
            _found(chosen_by=_on_target),
            "You choose the head that gives the target the most weight on average. Choose the one whose "
            "largest weight is most often on the target.",
        ),
        Mistake(
            "its weight reported",
            _found(reported=_on_target),
            "The head is chosen well, and then you report how much weight it gives to the target. Report how "
            "often its largest weight is on it.",
        ),
        Mistake(
            "chosen by its weight, and that reported",
            _found(chosen_by=_on_target, reported=_on_target),
            "You choose by the weight on the target and report that weight. What counts, both times, is how "
            "often the largest weight is on the target.",
        ),
        Mistake(
            "layer and head exchanged",
            _exchanged,
            "Layer and head stand the wrong way round: return (layer, head, accuracy).",
        ),
        Mistake(
            "taken apart by the number of layers",
            _taken_apart_by_layers,
            "The head is the right one, and its number is taken apart wrongly. argmax counts along the rows, "
            "and a row has as many entries as a layer has heads: divide by that, not by the number of "
            "layers.",
        ),
        Mistake(
            "taken apart by the number of layers, and read there",
            _read_there,
            "The number that argmax gives is divided by the number of layers, and leads to another head, or "
            "to none. It counts along the rows of [L, h]: how long is a row?",
        ),
        Mistake(
            "layer and head chosen apart",
            _found(largest=_apart),
            "You choose the layer that is best on average, and the head that is best on average. The best "
            "head may stand in a poor layer: choose the largest entry of the table [L, h].",
        ),
        Mistake(
            "heads averaged first",
            _found(
                hide=lambda weights, allowed: _only_allowed(
                    weights.mean(2, keepdim=True).expand_as(weights), allowed
                )
            ),
            "The heads of a layer are averaged before anything is chosen, so all of them give one answer. "
            "Take argmax of each head by itself.",
        ),
        Mistake(
            "examples averaged first",
            _found(
                hide=lambda weights, allowed: _only_allowed(
                    weights.mean(0, keepdim=True).expand_as(weights), allowed
                )
            ),
            "The weights are averaged over the examples before anything is chosen. Each example has its own "
            "answer.",
        ),
        Mistake(
            "all heads reported",
            _all_heads,
            "The head is chosen well, but the accuracy is the mean over all heads. Report that of the one "
            "you chose.",
        ),
        Mistake(
            "number instead of share",
            _number,
            "The accuracy is the number of right answers. It is a share: divide by the number of examples.",
        ),
        Mistake(
            "counted from 1",
            _from_one,
            "Layer and head are counted from 1. Here they are indices, counted from 0.",
        ),
        Mistake(
            "accuracy first",
            _accuracy_first,
            "The three numbers are right, in the wrong order: return (layer, head, accuracy).",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but what hides keys is written into weights itself. Make a new tensor.",
        ),
    ),
    hints=(
        "For one head and one example there is one question: is its largest weight on an allowed key the one "
        "on the target? Which shape has the table of all answers?",
        "Hide the keys that are not allowed before argmax over the keys. The mean over the sentences of "
        "one half is then a table [L, h] of accuracies, that over the other half another one. Which of "
        "them chooses, which reports?",
        "argmax without an axis counts through the table row by row. The length of a row, // and % give its "
        "row and the column. Read the second table at that place.",
    ),
)
