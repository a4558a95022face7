"""Exercise 2: how much weight goes to what followed the same token earlier."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.probing import shared
from attention_course.checks.probing.shared import NAME

Score = Callable[[Tensor, Tensor], Tensor]


def _same(tokens: Tensor) -> Tensor:
    """[B, T, T]: whether query t and place j hold the same token."""
    return tokens[:, :, None] == tokens[:, None, :]


def _after_the_same(tokens: Tensor) -> Tensor:
    """[B, T, T]: whether query t and the place before j hold the same token, whichever is first."""
    after = torch.zeros_like(_same(tokens))
    after[..., 1:] = _same(tokens)[..., :-1]
    return after


def _follows(tokens: Tensor) -> Tensor:
    """[B, T, T]: the places asked for."""
    return _after_the_same(tokens).tril()


def _induction_score(weights: Tensor, tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    on_them = weights.masked_fill(~follows.unsqueeze(1), 0.0).sum(-1)  # [B, h, T]
    return on_them.sum((0, -1)) / follows.any(-1).sum()


def _on(places: Tensor, weights: Tensor) -> Tensor:
    """[B, h, T]: the weight of every query on some places [B, T, T]."""
    return (weights * places.unsqueeze(1)).sum(-1)


def _places(marked: Callable[[Tensor], Tensor]) -> Score:
    """The right mean of the weight on other places."""

    def score(weights: Tensor, tokens: Tensor) -> Tensor:
        places = marked(tokens)
        return _on(places, weights).sum((0, -1)) / places.any(-1).sum()

    return score


def _divided(by: Callable[[Tensor], Tensor | int]) -> Score:
    """The right sum, divided by something else."""
    return lambda weights, tokens: _on(_follows(tokens), weights).sum((0, -1)) / by(tokens)


def _in_front(tokens: Tensor) -> Tensor:
    """[B, T, T]: whether query t and the place after j hold the same token, whichever is first."""
    before = torch.zeros_like(_same(tokens))
    before[..., :-1] = _same(tokens)[..., 1:]
    return before


def _latest(tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    later = follows.flip(-1).cumsum(-1).flip(-1)  # how many from here on
    return follows & (later == 1)


def _earliest(tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    return follows & (follows.cumsum(-1) == 1)


def _rolled(tokens: Tensor) -> Tensor:
    return (tokens[:, :, None] == tokens.roll(1, -1)[:, None, :]).tril()


def _holds_the_next(tokens: Tensor) -> Tensor:
    places = torch.zeros_like(_same(tokens))
    places[:, :-1] = _same(tokens)[:, 1:]
    return places.tril()


def _mean_over_matches(weights: Tensor, tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    number = follows.sum(-1).unsqueeze(1).clamp_min(1)
    return (_on(follows, weights) / number).sum((0, -1)) / follows.any(-1).sum()


def _largest(weights: Tensor, tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    return (weights * follows.unsqueeze(1)).amax(-1).sum((0, -1)) / follows.any(-1).sum()


def _often_the_largest(weights: Tensor, tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    chosen = follows.unsqueeze(1).expand_as(weights).gather(-1, weights.argmax(-1, keepdim=True))
    return chosen.to(weights.dtype).sum((0, -2, -1)) / follows.any(-1).sum()


def _of_sentences(weights: Tensor, tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    return (_on(follows, weights).sum(-1) / follows.any(-1).sum(-1, keepdim=True)).mean(0)


def _where_weight_lies(weights: Tensor, tokens: Tensor) -> Tensor:
    """For each head the queries count that give these places any weight at all."""
    on_them = _on(_follows(tokens), weights)
    return on_them.sum((0, -1)) / (on_them > 0).sum((0, -1)).clamp_min(1)


def _come_twice(tokens: Tensor) -> Tensor:
    """How many words there are whose token comes twice at least, its first time among them."""
    return (_same(tokens).sum(-1) > 1).sum()


def _padded(tokens: Tensor) -> Tensor:
    """Token 0 stands before the first place, as if it were none of the text's."""
    return (tokens[:, :, None] == F.pad(tokens[:, :-1], (1, 0))[:, None, :]).tril()


def _one_beyond(tokens: Tensor) -> Tensor:
    """j - 1 goes up to t, not j."""
    return _after_the_same(tokens).tril(1)


def _after_the_next(tokens: Tensor) -> Tensor:
    """x_{j-2} = x_t."""
    places = torch.zeros_like(_same(tokens))
    places[..., 2:] = _same(tokens)[..., :-2]
    return places.tril()


def _before_alike(tokens: Tensor) -> Tensor:
    """x_{j-1} = x_{t-1}, before the query."""
    places = torch.zeros_like(_same(tokens))
    places[:, 1:, 1:] = _same(tokens)[:, :-1, :-1]
    return places.tril(-1)


def _transposed(weights: Tensor, tokens: Tensor) -> Tensor:
    return _induction_score(weights.mT, tokens)


def _one_a_sentence(weights: Tensor, tokens: Tensor) -> Tensor:
    follows = _follows(tokens)
    return _on(follows, weights).sum((1, -1)) / follows.any(-1).sum()


def _in_place(weights: Tensor, tokens: Tensor) -> Tensor:
    right = _induction_score(weights, tokens)
    weights *= _follows(tokens).unsqueeze(1)
    return right


def _tells(tokens: Tensor) -> bool:
    """Whether all that can be mistaken is in these sentences."""
    follows = _follows(tokens)
    number = follows.sum(-1)
    shares = (number > 0).sum(-1)
    return bool(
        (number[:, 1:] == 0).any()
        and (number > 1).any()
        and (tokens[:, 1:] == tokens[:, :-1]).any()
        and (tokens[:, :-1] == tokens[:, -1:]).any()
        and (shares > 0).all()
        and (len(shares) == 1 or shares.unique().numel() > 1)
    )


def _tokens(g: Generator, B: int, T: int, vocabulary: int) -> Tensor:
    while True:
        tokens = torch.randint(vocabulary, (B, T), generator=g)
        if _tells(tokens):
            return tokens


def _drawn(
    g: Generator, B: int, h: int, T: int, vocabulary: int, *, is_causal: bool = False, dtype=torch.float32
) -> tuple[Tensor, Tensor]:
    seen = torch.ones(T, T, dtype=torch.bool).tril() if is_causal else None
    return shared.weights(g, B, h, T, seen=seen, dtype=dtype), _tokens(g, B, T, vocabulary)


def _one_place_each(g: Generator, B: int, h: int, T: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Every query looks at one place alone. In every head some that have places look there, others do not."""
    tokens = _tokens(g, B, T, vocabulary)
    follows = _follows(tokens)
    while True:
        weights = F.one_hot(torch.randint(T, (B, h, T), generator=g), T).float()
        share = _on(follows, weights).sum((0, -1)) / follows.any(-1).sum()
        if ((share > 0.2) & (share < 0.8)).all():
            return weights, tokens


INDUCTION_SCORE = Exercise(
    name=f"{NAME}.induction_score",
    title="What came after it last time",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_induction_score,
    returns=("score",),
    cases=(
        Case("one sentence, causal", lambda g: _drawn(g, 1, 2, 7, 4, is_causal=True)),
        Case("three sentences", lambda g: _drawn(g, 3, 2, 9, 5)),
        Case("a long one, causal", lambda g: _drawn(g, 2, 5, 16, 6, is_causal=True)),
        Case("as many sentences as heads", lambda g: _drawn(g, 3, 3, 8, 4)),
        Case("one place for each query", lambda g: _one_place_each(g, 3, 2, 8, 4)),
        Case("float64", lambda g: _drawn(g, 2, 4, 11, 5, dtype=torch.float64)),
        Case("gradient", lambda g: _drawn(g, 2, 3, 6, 4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "where the same token stands",
            _places(lambda tokens: _same(tokens).tril(-1)),
            "This is the weight on the earlier places of the same token. An induction head looks at what "
            "came after them: it is the token before j that equals the query's.",
        ),
        Mistake(
            "where the same token stands, the query too",
            _places(lambda tokens: _same(tokens).tril()),
            "This is the weight on all places of the query's token, its own among them. An induction head "
            "looks at what came after it earlier: it is the token before j that equals the query's.",
        ),
        Mistake(
            "the token in front of it",
            _places(lambda tokens: _in_front(tokens).tril(-2)),
            "This is the weight on what stood in front of the same token: you compare with tokens[j + 1]. "
            "What followed it is asked for, so compare with tokens[j - 1].",
        ),
        Mistake(
            "the token in front of it, the query's own too",
            _places(lambda tokens: _in_front(tokens).tril(-1)),
            "This is the weight on what stood in front of the query's token, earlier and right now: you "
            "compare with tokens[j + 1]. What followed it earlier is asked for, so compare with tokens[j - "
            "1].",
        ),
        Mistake(
            "the token in front of it, as far as the query",
            _places(lambda tokens: _in_front(tokens).tril()),
            "You compare with tokens[j + 1], for all j up to t, and the last of them is a token after the "
            "query. What followed the token earlier is asked for, so compare with tokens[j - 1].",
        ),
        Mistake(
            "the places that hold the next token",
            _places(_holds_the_next),
            "You mark the places whose token is the one that comes next. A head cannot know that one; it "
            "looks where the query's own token stood one place before. Compare tokens[t] with tokens[j - 1].",
        ),
        Mistake(
            "only the last time",
            _places(_latest),
            "Where the token came several times before, you count only what followed it the last time. Add "
            "up the weights on all these places.",
        ),
        Mistake(
            "only the first time",
            _places(_earliest),
            "Where the token came several times before, you count only what followed it the first time. "
            "(argmax over a mask does that.) Add up the weights on all these places.",
        ),
        Mistake(
            "the query's own place left out",
            _places(lambda tokens: _after_the_same(tokens).tril(-1)),
            "j = t is left out. Where a token comes twice in a row, the query itself is what followed it: "
            "j goes up to t.",
        ),
        Mistake(
            "the future counted",
            _places(_after_the_same),
            "Places after the query are counted as well, and queries whose token comes again only later. "
            "What is to be found has been seen: j goes up to t.",
        ),
        Mistake(
            "rolled round",
            _places(_rolled),
            "The tokens are rolled, so the last one stands before the first place. Nothing stands there: "
            "leave j = 0 out.",
        ),
        Mistake(
            "mean over the places",
            _mean_over_matches,
            "For each query you take the mean weight of the places. A head that spreads all its weight over "
            "them would get less than 1: add them up.",
        ),
        Mistake(
            "divided by the places",
            _divided(lambda tokens: _follows(tokens).sum()),
            "You divide by the number of places. It is a mean over queries: a query with three such places "
            "counts once.",
        ),
        Mistake(
            "the largest weight",
            _largest,
            "For each query you take the largest of the weights on these places. Add them up.",
        ),
        Mistake(
            "how often it is the largest",
            _often_the_largest,
            "You count how often one of these places gets the largest weight. What is asked for is the "
            "weight on them, on average.",
        ),
        Mistake(
            "queries without such a place counted",
            _divided(lambda tokens: tokens.numel()),
            "A query whose token is new has nowhere to look, and you count it as a 0. Divide by the number "
            "of queries that have such a place.",
        ),
        Mistake(
            "all queries but the first counted",
            _divided(lambda tokens: tokens[:, 1:].numel()),
            "You count every query but the first. Others have nowhere to look either, because their token is "
            "new. Divide by the number of queries that have such a place.",
        ),
        Mistake(
            "queries whose weight there is 0 left out",
            _where_weight_lies,
            "A query that has such places and gives them a weight of exactly 0 is left out. It looks "
            "elsewhere, and has to count as a 0: whether a query counts, the tokens say, not the weights.",
        ),
        Mistake(
            "first times counted",
            _divided(_come_twice),
            "You divide by the number of words whose token comes twice. The first of them has nowhere to "
            "look. Divide by the number of queries that have such a place.",
        ),
        Mistake(
            "a token 0 before the first",
            _places(_padded),
            "The tokens are moved by one place, and a 0 is put in front. 0 is a token like others, so "
            "place 0 seems to follow it. Nothing stands before place 0: leave it out.",
        ),
        Mistake(
            "one place beyond the query",
            _places(_one_beyond),
            "j goes up to t + 1, where that stands which comes after the query itself. The same token is "
            "looked for before the query: j goes up to t.",
        ),
        Mistake(
            "two places after",
            _places(_after_the_next),
            "You look two places behind the same token. What came right after it is asked for, j - 1.",
        ),
        Mistake(
            "the token before the query compared",
            _places(_before_alike),
            "You compare with the token before the query, so the places you mark hold what came where the "
            "query stands now. Compare tokens[j - 1] with the query's own token.",
        ),
        Mistake(
            "divided by the sentences",
            _divided(len),
            "You divide by the number of sentences. Divide by the number of queries that have such a place.",
        ),
        Mistake(
            "sum instead of mean",
            _divided(lambda tokens: 1),
            "The weights are added up and not divided. Divide by the number of queries that have such a "
            "place.",
        ),
        Mistake(
            "mean of the sentences' means",
            _of_sentences,
            "You take the mean of each sentence and then the mean of those. Add up all queries of all "
            "sentences, and divide once.",
        ),
        Mistake(
            "rows and columns exchanged",
            _transposed,
            "Weights and places do not lie the same way: weights[b, head, query, key] has queries down, and "
            "your mask has keys down, or the other way round.",
        ),
        Mistake(
            "one number a sentence",
            _one_a_sentence,
            "There is a number for every sentence, and the heads are added up. Axis 0 are the sentences, "
            "axis 1 the heads: keep the heads.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but weights itself is changed. Make a new tensor.",
        ),
    ),
    hints=(
        "Write the sentence a b a c a. Where may the last a look, and where the second one? Which queries "
        "have nowhere to look?",
        "The sentence as a column compared with the sentence as a row is [B, T, T], queries down. You "
        "want the comparison with the token one place before the key: the same table, moved by one "
        "column. Column 0 is False.",
        "tril() keeps the keys up to the query. What is left is a mask for all heads of a sentence. Add up "
        "the weights it leaves; the queries to divide by are the rows of the mask that are not empty.",
    ),
)
