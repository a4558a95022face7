"""Exercise 3: what a fixed distance would get right."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.probing import shared
from attention_course.checks.probing.shared import NAME

Two = tuple[Tensor, Tensor]
Halves = Callable[[Tensor], Tensor]


def _best_offset(source: Tensor, target: Tensor, train: Tensor) -> Two:
    distance = target - source
    offset = _most_frequent(distance[train])
    return offset, (distance[~train] == offset).float().mean()


def _most_frequent(numbers: Tensor) -> Tensor:
    """The smallest of them, where several are."""
    values, counts = numbers.unique(return_counts=True)
    return values[counts.argmax()]


def _largest_most_frequent(numbers: Tensor) -> Tensor:
    return -_most_frequent(-numbers)


def _nearest_most_frequent(numbers: Tensor) -> Tensor:
    """The one nearest to 0, where several are; then the negative one."""
    values, counts = numbers.unique(return_counts=True)
    tied = values[counts == counts.max()]
    return tied[tied.abs().argmin()]


def _first_most_frequent(numbers: Tensor) -> Tensor:
    """As Python's Counter has it: the one seen first, where several are."""
    counts = (numbers[:, None] == numbers).sum(-1)
    return numbers[counts.argmax()]


def _everything(train: Tensor) -> Tensor:
    return torch.ones_like(train)


def _this(train: Tensor) -> Tensor:
    return train


def _other(train: Tensor) -> Tensor:
    return ~train


def _found(
    on: Halves = _this,
    told: Halves = _other,
    choose: Callable[[Tensor], Tensor] = _most_frequent,
    of: Callable[[Tensor, Tensor], Tensor] = lambda source, target: target - source,
    share: Callable[[Tensor], Tensor] = lambda right: right.float().mean(),
) -> Callable[[Tensor, Tensor, Tensor], Two]:
    def best_offset(source: Tensor, target: Tensor, train: Tensor) -> Two:
        distance = of(source, target)
        offset = choose(distance[on(train)])
        return offset, share(distance[told(train)] == offset)

    return best_offset


def _negative(source: Tensor, target: Tensor, train: Tensor) -> Two:
    """The sign is wrong, and the accuracy knows it."""
    offset = _most_frequent((source - target)[train])
    return offset, (source + offset == target)[~train].float().mean()


def _place(source: Tensor, target: Tensor, train: Tensor) -> Two:
    place = _most_frequent(target[train])
    return place, (target[~train] == place).float().mean()


def _over_all(source: Tensor, target: Tensor, train: Tensor) -> Two:
    offset, share = _best_offset(source, target, train)
    return offset, share * (~train).sum() / len(train)


def _best_share(source: Tensor, target: Tensor, train: Tensor) -> Two:
    offset, _ = _best_offset(source, target, train)
    return offset, _found(on=_other)(source, target, train)[1]


def _forwards(numbers: Tensor) -> Tensor:
    tried = torch.arange(int(numbers.max().clamp_min(0)) + 1)
    return (numbers[:, None] == tried).sum(0).argmax()


def _near(numbers: Tensor) -> Tensor:
    tried = torch.arange(-10, 11)
    return tried[(numbers[:, None] == tried).sum(0).argmax()]


def _negatives_at_0(numbers: Tensor) -> Tensor:
    return _most_frequent(numbers.clamp_min(0))


def _halves_by_number(source: Tensor, target: Tensor, train: Tensor) -> Two:
    first = torch.arange(len(train)) < len(train) // 2
    return _best_offset(source, target, first)


def _index(source: Tensor, target: Tensor, train: Tensor) -> Two:
    _, counts = (target - source)[train].unique(return_counts=True)
    return counts.argmax(), _best_offset(source, target, train)[1]


def _rounded(numbers: Tensor) -> Tensor:
    return numbers.float().mean().round().long()


def _in_place(source: Tensor, target: Tensor, train: Tensor) -> Two:
    right = _best_offset(source, target, train)
    target -= source
    return right


def _pairs(generator: Generator, distance: Tensor) -> Two:
    """Places of a source and a target so far apart, none of them negative."""
    source = torch.randint(6, 13, distance.shape, generator=generator)
    return source, source + distance


def _counts(numbers: Tensor) -> Tensor:
    return numbers.unique(return_counts=True)[1].sort(descending=True).values


def _tells(source: Tensor, target: Tensor, train: Tensor) -> bool:
    """Whether nothing is tied, and mean, median and mode are three numbers."""
    distance = target - source
    drawn = [distance, distance[train], distance[~train], target[train], (source - target)[train]]
    chosen = [_most_frequent(part) for part in drawn]
    middles = _rounded(drawn[1]), drawn[1].median(), _nearest_most_frequent(drawn[1].abs())
    shares = {float((distance[part] == chosen[1]).float().mean()) for part in (train, ~train)}
    return (
        all(len(counts) > 1 and counts[0] > counts[1] for counts in map(_counts, drawn[:3]))
        and all(chosen[1] != other for other in (*chosen[3:], *middles))
        and len(shares) == 2
        and 0 not in shares
    )


def _drawn(g: Generator, N: int, *frequent: int, most: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """N examples; ``frequent`` distances come in a quarter each, others up to ``most`` in the rest."""
    while True:
        train = shared.chosen_half(g, N)
        distance = torch.randint(-most, most + 1, (N,), generator=g)
        for one in frequent:
            distance[torch.rand(N, generator=g) < 0.25] = one
        source, target = _pairs(g, distance)
        if _tells(source, target, train):
            return source, target, train


def _planned(g: Generator, chosen: list[int], rest: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """These distances in the two halves, in their order; which examples form a half is drawn."""
    N = len(chosen) + len(rest)
    train = torch.zeros(N, dtype=torch.bool)
    train[torch.randperm(N, generator=g)[: len(chosen)]] = True
    distance = torch.empty(N, dtype=torch.long)
    distance[train], distance[~train] = torch.tensor(chosen), torch.tensor(rest)
    return *_pairs(g, distance), train


def _disagreeing(g: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """One distance is most frequent on one half, one on the other, and a third on both together."""
    one, other, third, fourth = (torch.randperm(11, generator=g)[:4] - 5).tolist()
    chosen = [one] * 5 + [third] * 4 + [other, fourth]
    rest = [other] * 6 + [third] * 4 + [one] * 2 + [fourth] * 2
    return _planned(g, chosen, rest)


def _far(g: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The most frequent distance is larger than the number of examples, and others are near."""
    return _planned(g, [19, 2, -3, 19, 2, 19, 5, 19, 2], [2, 19, 1, 19, 2, -3, 19, 2])


def _tied(g: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Four distances are equally frequent on the chosen half: the smallest, the largest, the nearest to 0,
    and the one seen first."""
    rest = torch.tensor([3] * 4 + [-4] * 3 + [1] * 2 + [5])
    rest = rest[torch.randperm(len(rest), generator=g)]
    return _planned(g, [3, -4, 1, 5, 2, -4, 5, 1, 3], rest.tolist())


BEST_OFFSET = Exercise(
    name=f"{NAME}.best_offset",
    title="The baseline: a fixed distance",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_best_offset,
    returns=("offset", "accuracy"),
    cases=(
        Case("twelve examples", lambda g: _drawn(g, 12, 3, most=4)),
        Case("forty examples", lambda g: _drawn(g, 40, 2, -3)),
        Case("the halves disagree", _disagreeing),
        Case("backwards", lambda g: _drawn(g, 30, -4, -1)),
        Case("far away", _far),
        Case("four are equally frequent", _tied),
    ),
    mistakes=(
        Mistake(
            "the sign turned round at the end",
            lambda source, target, train: (
                -_best_offset(source, target, train)[0],
                _best_offset(source, target, train)[1],
            ),
            "The offset is the right one with the wrong sign, as if counted from the target: source + offset "
            "should be the target.",
        ),
        Mistake(
            "the wrong sign",
            _found(of=lambda source, target: source - target),
            "The offset has the wrong sign: it leads from the target to the source. source + offset should "
            "be the target.",
        ),
        Mistake(
            "the wrong sign, and used",
            _negative,
            "The offset has the wrong sign, and the accuracy is what one gets by adding it to the source. "
            "source + offset should be the target.",
        ),
        Mistake(
            "distances without direction",
            _found(of=lambda source, target: (target - source).abs()),
            "You count distances without direction, so three before and three after are the same. An offset "
            "is either.",
        ),
        Mistake(
            "chosen and reported on the same half",
            _found(told=_this),
            "The offset is chosen well, but its accuracy is that on the half on which it was chosen. There "
            "it was picked because it looked good. Report it on the other half.",
        ),
        Mistake(
            "the halves exchanged",
            _found(on=_other, told=_this),
            "You choose where train is False and report where it is True. It is the other way round.",
        ),
        Mistake(
            "train ignored: all chosen and reported on all",
            _found(on=_everything, told=_everything),
            "You choose and report on all examples. Choose where train is True, and report where it is "
            "False.",
        ),
        Mistake(
            "chosen on everything",
            _found(on=_everything),
            "The offset is chosen on all examples, the half among them on which it is reported. That half "
            "may not help to choose.",
        ),
        Mistake(
            "chosen on the half that reports",
            _found(on=_other),
            "The offset is chosen on the half on which it is reported. Choose where train is True.",
        ),
        Mistake(
            "reported on everything",
            _found(told=_everything),
            "The offset is chosen well, but its accuracy is that on all examples, those among them on which "
            "it was chosen. Report it where train is False.",
        ),
        Mistake(
            "divided by everything",
            _over_all,
            "You count the right answers of one half and divide by the number of all examples. Divide by the "
            "number of examples where train is False.",
        ),
        Mistake(
            "the best the other half could have",
            _best_share,
            "The offset comes from one half, and the accuracy belongs to the offset that is best on the "
            "other. Report the one you chose.",
        ),
        Mistake(
            "number instead of share",
            _found(share=lambda right: right.sum().float()),
            "The accuracy is the number of right answers. It is a share: divide by the number of examples.",
        ),
        Mistake(
            "errors counted",
            _found(share=lambda right: 1 - right.float().mean()),
            "That is the share of the examples for which the offset is wrong. Take the share for which it is "
            "right.",
        ),
        Mistake(
            "the mean distance",
            _found(choose=_rounded),
            "You take the mean distance and round it. That may be right for no example at all. Take the "
            "distance that occurs most often.",
        ),
        Mistake(
            "the median distance",
            _found(choose=lambda numbers: numbers.median()),
            "You take the median distance. It lies in the middle and may be rare. Take the distance that "
            "occurs most often.",
        ),
        Mistake(
            "only forwards",
            _found(choose=_forwards),
            "You try offsets from 0 upwards. A target may stand before its source, so offsets may be "
            "negative.",
        ),
        Mistake(
            "only near offsets",
            _found(choose=_near),
            "You try some offsets around 0 and none beyond. A target may stand farther away: which "
            "distances occur, the examples say.",
        ),
        Mistake(
            "negative distances taken for 0",
            _found(choose=_negatives_at_0),
            "Where you choose, negative distances count as 0. A target may stand before its source, so "
            "offsets may be negative.",
        ),
        Mistake(
            "halves by number",
            _halves_by_number,
            "You choose on the first half of the examples and report on the rest. Which half an example "
            "belongs to is what train says.",
        ),
        Mistake(
            "an index instead of a distance",
            _index,
            "The accuracy is right, and the offset is the index of the right distance in a list. Look up "
            "which distance stands there.",
        ),
        Mistake(
            "a place instead of a distance",
            _place,
            "You take the place where most targets stand. A fixed offset is counted from the source: "
            "target - source.",
        ),
        Mistake(
            "accuracy first",
            lambda source, target, train: _best_offset(source, target, train)[::-1],
            "Both numbers are right, in the wrong order: return the offset first, then the accuracy.",
        ),
        Mistake(
            "the largest of equals",
            _found(choose=_largest_most_frequent),
            "Where several offsets are right equally often you take the largest. The smallest is asked for.",
        ),
        Mistake(
            "the nearest of equals",
            _found(choose=_nearest_most_frequent),
            "Where several offsets are right equally often you take the one nearest to 0. The smallest is "
            "asked for: -4 comes before 2.",
        ),
        Mistake(
            "the first of equals",
            _found(choose=_first_most_frequent),
            "Where several offsets are right equally often you take the one that comes first among the "
            "examples. (Counter.most_common does that.) The smallest is asked for.",
        ),
        Mistake(
            "target changed in place",
            _in_place,
            "The result is right, but the difference is written into target itself. Make a new tensor.",
        ),
    ),
    hints=(
        "A fixed offset is right for an example if target - source equals it. So which offset is right most "
        "often on a half?",
        "unique(return_counts=True) gives the distances that occur, in order, and how often each does. "
        "source[train] are the examples to choose on, source[~train] the others.",
        "argmax says which count is the largest, the first of equals. The accuracy is the mean of a "
        "comparison on the other half, made float first. Both stay tensors.",
    ),
)
