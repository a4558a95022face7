"""Exercise 3: a score that knows where it looked."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.speech.shared import NAME

Filter = Callable[[Tensor, Tensor], Tensor]


def _filtered(previous: Tensor, filters: Tensor) -> Tensor:
    """[B, T_k], [n, width] -> [B, T_k, n]."""
    return F.conv1d(previous[:, None], filters[:, None], padding=filters.shape[-1] // 2).mT


def _moved(before: Callable[[int], int]) -> Filter:
    """As many zeros in front as ``before`` says of the width, the others behind."""

    def filtered(previous: Tensor, filters: Tensor) -> Tensor:
        front = before(filters.shape[-1])
        padded = F.pad(previous, (front, filters.shape[-1] - 1 - front))
        return F.conv1d(padded[:, None], filters[:, None]).mT

    return filtered


def _unpadded(previous: Tensor, filters: Tensor) -> Tensor:
    return F.conv1d(previous[:, None], filters[:, None]).mT


def _round(previous: Tensor, filters: Tensor) -> Tensor:
    """The clip's end is followed by its beginning."""
    half = filters.shape[-1] // 2
    places = (torch.arange(len(previous[0]))[:, None] + torch.arange(-half, half + 1)) % len(previous[0])
    return previous[:, places] @ filters.mT


def _repeated(previous: Tensor, filters: Tensor) -> Tensor:
    padded = F.pad(previous[:, None], (filters.shape[-1] // 2,) * 2, mode="replicate")
    return F.conv1d(padded, filters[:, None]).mT


def _read_otherwise(previous: Tensor, filters: Tensor) -> Tensor:
    """[B, n, T_k] laid out as [B, T_k, n], and nothing moved."""
    found = F.conv1d(previous[:, None], filters[:, None], padding=filters.shape[-1] // 2)
    return found.reshape(*previous.shape, -1)


def _one_for_all(previous: Tensor, filters: Tensor) -> Tensor:
    return _filtered(previous, filters).sum(-1, keepdim=True).expand(-1, -1, len(filters))


def _inside(content: Tensor, location: Tensor, bias: Tensor, v: Tensor) -> Tensor:
    return (content + location + bias).tanh() @ v


def _scored(
    *,
    weights: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda query, key: (query, key),
    meet: Callable[[Tensor, Tensor], Tensor] = lambda query, key: query[:, None] + key,
    read: Callable[[Tensor], Tensor] = lambda previous: previous,
    filtered: Filter = _filtered,
    located: Callable[[Tensor, Tensor], Tensor] = lambda found, location_weight: found @ location_weight,
    score: Callable[..., Tensor] = _inside,
    finish: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> Callable[..., Tensor]:
    def location_score(
        query: Tensor, key: Tensor, previous: Tensor, query_weight: Tensor, key_weight: Tensor,
        location_weight: Tensor, filters: Tensor, bias: Tensor, v: Tensor,
    ) -> Tensor:  # fmt: skip
        of_query, of_key = weights(query_weight, key_weight)
        location = located(filtered(read(previous), filters), location_weight)
        return finish(score(meet(query @ of_query, key @ of_key), location, bias, v))

    return location_score


def _in_place(query: Tensor, key: Tensor, previous: Tensor, *rest: Tensor) -> Tensor:
    right = _scored()(query, key, previous, *rest)
    previous.copy_(right.softmax(-1))
    return right


def _drawn(
    g: Generator, B: int, T_k: int, d_q: int, d_k: int, hidden: int, filters: int, width: int,
    dtype: torch.dtype = torch.float32,
) -> Inputs:  # fmt: skip
    previous = (1.5 * normal(g, B, T_k, dtype=torch.float64)).softmax(-1)
    return (
        normal(g, B, d_q, dtype=dtype), normal(g, B, T_k, d_k, dtype=dtype), previous.to(dtype),
        0.7 * weight(g, d_q, hidden, dtype), 0.7 * weight(g, d_k, hidden, dtype),
        2 * weight(g, filters, hidden, dtype), normal(g, filters, width, dtype=dtype),
        0.5 * normal(g, hidden, dtype=dtype), normal(g, hidden, dtype=dtype),
    )  # fmt: skip


def _looked_at_one(g: Generator) -> Inputs:
    """All weight of the step before lies on one state, the first of one clip and the last of another."""
    query, key, _, *rest = _drawn(g, 3, 6, 3, 4, 5, 2, 3)
    at = torch.tensor([0, 5, int(torch.randint(1, 5, (), generator=g))])
    return query, key, F.one_hot(at, 6).float(), *rest


LOCATION_SCORE = Exercise(
    name=f"{NAME}.location_score",
    title="A score that knows where it looked",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_scored(),
    returns=("scores",),
    given_distributions=("previous",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 2, most=9),
                tenths(g, 1, 4, 2, most=9),
                torch.tensor([[1, 6, 2, 1]])[:, torch.randperm(4, generator=g)] / 10,
                halves(g, 2, 3),
                halves(g, 2, 3),
                tenths(g, 1, 3),
                tenths(g, 1, 3),
                tenths(g, 3, most=5),
                tenths(g, 3),
            ),
        ),
        Case("several filters", lambda g: _drawn(g, 2, 9, 5, 4, 6, 3, 5)),
        Case("looked at one state", _looked_at_one),
        Case("filters wider than the clip", lambda g: _drawn(g, 2, 3, 4, 5, 6, 2, 9)),
        Case("all widths equal", lambda g: _drawn(g, 4, 4, 4, 4, 4, 4, 5)),
        Case("filters of width 1, float64", lambda g: _drawn(g, 3, 5, 2, 3, 4, 2, 1, torch.float64)),
        Case("gradient", lambda g: _drawn(g, 2, 6, 3, 4, 5, 2, 3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "the step before ignored",
            _scored(located=lambda found, location_weight: torch.zeros_like(found[..., :1])),
            "previous is not used: two states that sound alike have one score, and the speller cannot tell "
            "which of them it has written.",
        ),
        Mistake(
            "filters turned round",
            _scored(filtered=lambda previous, filters: _filtered(previous, filters.flip(-1))),
            "The filters are turned round, as a convolution has it in mathematics. Here, as in conv1d, a "
            "filter's first number meets the weight of the earliest state.",
        ),
        Mistake(
            "looking back alone",
            _scored(filtered=_moved(lambda width: width - 1)),
            "All zeros stand in front of the clip, so that a filter sees this state and those before it. It "
            "is centred: half of it lies behind.",
        ),
        Mistake(
            "looking ahead alone",
            _scored(filtered=_moved(lambda width: 0)),
            "All zeros stand behind the clip, so that a filter sees this state and those after it. It is "
            "centred: half of it lies in front.",
        ),
        Mistake(
            "no zeros around the clip",
            _scored(filtered=_unpadded),
            "The filters begin inside the clip, so that they say nothing about its first and last states. "
            "Put zeros on both sides: padding of half a width.",
        ),
        Mistake(
            "the end followed by the beginning",
            _scored(filtered=_round),
            "At the end of the clip a filter sees its beginning, as with roll or circular padding. There are "
            "zeros.",
        ),
        Mistake(
            "the ends repeated",
            _scored(filtered=_repeated),
            "Beyond both ends the outermost weight is repeated. There are zeros.",
        ),
        Mistake(
            "the filters added up",
            _scored(filtered=_one_for_all),
            "The filters are added before location_weight meets them, so that all of them say one thing. "
            "Each has a row of its own there.",
        ),
        Mistake(
            "filters and states mixed up",
            _scored(filtered=_read_otherwise),
            "conv1d gives [B, n, T_k], and you reshape that to [B, T_k, n]. reshape moves no number: what "
            "one filter says of several states goes for what several say of one. Which function moves an "
            "axis?",
        ),
        Mistake(
            "softmax of the weights",
            _scored(read=lambda previous: previous.softmax(-1)),
            "previous goes through a softmax. It holds weights already.",
        ),
        Mistake(
            "weights added up along the clip",
            _scored(read=lambda previous: previous.cumsum(-1)),
            "The filters read a running sum of previous along the clip. They read the weights themselves.",
        ),
        Mistake(
            "location outside the tanh",
            _scored(
                score=lambda content, location, bias, v: ((content + bias).tanh() + location) @ v,
            ),
            "What the filters say is added behind the tanh. It belongs inside, with the query and the key.",
        ),
        Mistake(
            "a tanh for each",
            _scored(
                score=lambda content, location, bias, v: ((content + bias).tanh() + location.tanh()) @ v,
            ),
            "Content and location go through a tanh each. All four are added inside one.",
        ),
        Mistake(
            "no tanh",
            _scored(score=lambda content, location, bias, v: (content + location + bias) @ v),
            "There is no tanh. Then the query adds the same number to every score, and a softmax cancels it.",
        ),
        Mistake(
            "tanh after v",
            _scored(score=lambda content, location, bias, v: ((content + location + bias) @ v).tanh()),
            "tanh goes over the finished score. It belongs inside, over each hidden number, before v sums "
            "them.",
        ),
        Mistake(
            "the bias left out",
            _scored(score=lambda content, location, bias, v: (content + location).tanh() @ v),
            "The bias is not used. It is added inside the tanh.",
        ),
        Mistake(
            "the bias outside the tanh",
            _scored(score=lambda content, location, bias, v: ((content + location).tanh() + bias) @ v),
            "The bias is added behind the tanh, where it adds the same number to every score. It belongs "
            "inside.",
        ),
        Mistake(
            "v left out",
            _scored(score=lambda content, location, bias, v: (content + location + bias).tanh().sum(-1)),
            "The hidden numbers are summed as they are. v says how much each of them counts.",
        ),
        Mistake(
            "content multiplied by location",
            _scored(score=lambda content, location, bias, v: (content * location + bias).tanh() @ v),
            "Content and location are multiplied. They are added.",
        ),
        Mistake(
            "the query left out",
            _scored(meet=lambda query, key: key),
            "The query is not used. It is added inside the tanh, the same for every state of the clip.",
        ),
        Mistake(
            "the key left out",
            _scored(meet=lambda query, key: query[:, None].expand(key.shape)),
            "The key is not used: only where it stands counts, not what is heard there.",
        ),
        Mistake(
            "queries laid along the states",
            _scored(meet=lambda query, key: query + key),
            "query [B, hidden] lacks the axis of the states, so each state meets another clip's query; with "
            "as many states as clips nothing raises.",
        ),
        Mistake(
            "weights exchanged",
            _scored(weights=lambda query_weight, key_weight: (key_weight, query_weight)),
            "The query is multiplied with key_weight and the keys with query_weight, which runs only where "
            "both are equally wide.",
        ),
        Mistake(
            "weights transposed",
            _scored(
                weights=lambda query_weight, key_weight: (query_weight.mT, key_weight.mT),
                located=lambda found, location_weight: found @ location_weight.mT,
            ),
            "The projections are x @ W.mT, as nn.Linear stores them; that runs only where W is square. Here "
            "they stand on the right as they are.",
        ),
        Mistake(
            "weights instead of scores",
            _scored(finish=lambda scores: scores.softmax(-1)),
            "These are weights: a softmax has gone over them. The scores are asked for; whoever calls this "
            "still has to hide what lies behind a clip's end.",
        ),
        Mistake(
            "previous changed in place",
            _in_place,
            "The result is right, but previous is overwritten, as if for the next step. Whoever called it "
            "keeps the weights: make a new tensor.",
        ),
    ),
    hints=(
        "Four things meet inside the tanh: query, key, location, bias. Write the shape of each, and of their "
        "sum [B, T_k, hidden]. Which of them lack an axis?",
        "F.conv1d wants [B, 1, T_k] and filters [n, 1, width]; with padding=width // 2 there are as many "
        "places behind it as before, [B, n, T_k]. It does not turn filters round.",
        "The filters' axis has to be the last one to meet location_weight. The query gets an axis of length "
        "1 for the states; bias needs none. After the tanh, v sums the hidden numbers.",
    ),
)
