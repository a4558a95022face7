"""Milestone 2: the model. A given state gives given logits, nothing leaks, and the parameters are counted."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.capstone.model import GPT, Cache, Layer, with_layer, with_model
from attention_course.checks.capstone.shared import BUILT, NAME, STATE, sizes, state, tokens
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import Scene

# Usual mistakes -------------------------------------------------------------------------------


def _no_mask(self: Layer, T_q: int, T_k: int) -> Tensor:
    return torch.ones(T_q, T_k, dtype=torch.bool)


def _one_ahead(self: Layer, T_q: int, T_k: int) -> Tensor:
    return torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q + 1)


def _upside_down(self: Layer, T_q: int, T_k: int) -> Tensor:
    return torch.ones(T_q, T_k, dtype=torch.bool).triu(T_k - T_q)


def _lowered(by: float):
    def weights(self: Layer, scores: Tensor) -> Tensor:
        return (scores - by * (~self.mask(*scores.shape[-2:])).float()).softmax(-1)

    return weights


def _times_the_mask(self: Layer, scores: Tensor) -> Tensor:
    return (scores * self.mask(*scores.shape[-2:])).softmax(-1)


def _mask_after(self: Layer, scores: Tensor) -> Tensor:
    return scores.softmax(-1) * self.mask(*scores.shape[-2:])


def _over_queries(self: Layer, scores: Tensor) -> Tensor:
    return scores.masked_fill(~self.mask(*scores.shape[-2:]), -1e9).softmax(-2)


def _post_norm(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(x, cache)
    told = self.dropped(told)
    x = self.norm_1(x + told)
    return self.norm_2(x + self.dropped(self.feed(x))), cache


def _norm_what_is_told(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(x, cache)
    told = self.dropped(told)
    x = x + self.norm_1(told)
    return x + self.norm_2(self.dropped(self.feed(x))), cache


def _no_residual_around_attention(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(self.norm_1(x), cache)
    x = self.dropped(told)
    return x + self.dropped(self.feed(self.norm_2(x))), cache


def _no_residual_around_feed(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(self.norm_1(x), cache)
    told = self.dropped(told)
    return self.dropped(self.feed(self.norm_2(x + told))), cache


def _residual_of_the_normed(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    normed = self.norm_1(x)
    told, cache = self.attend(normed, cache)
    told = self.dropped(told)
    normed = self.norm_2(normed + told)
    return normed + self.dropped(self.feed(normed)), cache


def _side_by_side(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(self.norm_1(x), cache)
    told = self.dropped(told)
    return x + told + self.dropped(self.feed(self.norm_2(x))), cache


def _one_norm_for_both(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(self.norm_1(x), cache)
    told = self.dropped(told)
    x = x + told
    return x + self.dropped(self.feed(self.norm_1(x))), cache


def _heads_cut_from_tokens(self: Layer, x: Tensor) -> Tensor:
    B, T, d_model = x.shape
    return x.reshape(B, self.num_heads, T, d_model // self.num_heads)


def _heads_interleaved(self: Layer, x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, self.num_heads)).movedim(-1, -3)


def _heads_not_brought_back(self: Layer, context: Tensor) -> Tensor:
    B, heads, T, width = context.shape
    return context.reshape(B, T, heads * width)


def _by_the_batch(self: GPT, tokens: Tensor, start: int) -> Tensor:
    return (
        self.token(tokens) + self.position(torch.arange(len(tokens)) % self.position.num_embeddings)[:, None]
    )


class _Untied(GPT):
    """An output of its own; what is loaded goes into both."""

    def __init__(self, vocabulary: int, *rest, **named) -> None:
        super().__init__(vocabulary, *rest, **named)
        self.head = nn.Linear(self.token.embedding_dim, vocabulary, bias=False)

    def load(self, state: dict[str, Tensor]) -> None:
        self.load_state_dict({**state, "head.weight": state["token.weight"]})

    def spoken(self, x: Tensor) -> Tensor:
        return self.head(x)


class _OutputBias(GPT):
    def __init__(self, vocabulary: int, *rest, **named) -> None:
        super().__init__(vocabulary, *rest, **named)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def load(self, state: dict[str, Tensor]) -> None:
        self.load_state_dict({**state, "bias": self.bias})


def _dropped(self: Layer, x: Tensor) -> Tensor:
    return F.dropout(x, self.dropout.p)


def _embedding_dropped(self: GPT, tokens: Tensor, start: int) -> Tensor:
    return self.layers[0].dropout(GPT.embedded(self, tokens, start))


def _over_heads(self: Layer, scores: Tensor) -> Tensor:
    return scores.masked_fill(~self.mask(*scores.shape[-2:]), -1e9).softmax(1)


def _no_residuals(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(self.norm_1(x), cache)
    told = self.dropped(told)
    return self.dropped(self.feed(self.norm_2(told))), cache


def _no_second_norm(self: Layer, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    told, cache = self.attend(self.norm_1(x), cache)
    told = self.dropped(told)
    x = x + told
    return x + self.dropped(self.feed(x)), cache


def _loaded_as(**names: str) -> Callable:
    """``load`` that gives a part of each layer the numbers of another."""

    def load(self: GPT, state: dict[str, Tensor]) -> None:
        taken = {}
        for name in state:
            start, _, kind = name.rpartition(".")
            before, _, part = start.rpartition(".")
            taken[name] = state[f"{before}.{names[part]}.{kind}"] if part in names else state[name]
        self.load_state_dict(taken)

    return load


# Cases ----------------------------------------------------------------------------------------

_SMALL, _WIDE = sizes(5, 6, 8, 2), sizes(11, 12, 24, 3, dropout=0.4)


def _case(generator: Generator, sizes: dict, *shape: int, sharp: float = 1.0) -> Inputs:
    return (*state(generator, sizes, sharp=sharp), tokens(generator, sizes["vocabulary"], *shape))


LOGITS = Exercise(
    name=f"{NAME}.logits",
    title="The model",
    points=3,
    difficulty=3,
    minutes=60,
    reference=GPT,
    asks=Scene("said", given=("tokens",), called=f"{BUILT}(tokens)", state=STATE, noun="model"),
    returns=("logits", "leak", "parameters", "logits with all dropped"),
    cases=(
        Case("two sentences", lambda g: _case(g, _SMALL, 2, 5), arguments=_SMALL),
        Case("as long as can be, built with dropout", lambda g: _case(g, _WIDE, 3, 12), arguments=_WIDE),
        # a square of sentences and tokens: a wrong axis raises nothing here
        Case("as many sentences as tokens", lambda g: _case(g, _SMALL, 4, 4), arguments=_SMALL),
        Case("large scores", lambda g: _case(g, _WIDE, 2, 9, sharp=3.5), arguments=_WIDE),
        Case("one token", lambda g: _case(g, _SMALL, 3, 1), arguments=_SMALL),
    ),
    mistakes=(
        Mistake(
            "no causal mask",
            with_layer(mask=_no_mask),
            "Every position looks at all others, those behind it too: it is shown what it is to predict. The "
            "loss falls as never before, and the model cannot write.",
        ),
        Mistake(
            "mask off by one",
            with_layer(mask=_one_ahead),
            "Position t looks at 0 to t + 1, and t + 1 is what it is to predict. The diagonal is the last "
            "that may be seen: tril(0).",
        ),
        Mistake(
            "mask upside down",
            with_layer(mask=_upside_down),
            "Position t looks at t and at what is behind it, and at nothing before it. Rows are queries, "
            "columns are keys: keep the lower triangle.",
        ),
        Mistake(
            "mask that leaks",
            with_layer(weights=_lowered(15.0)),
            "Hidden scores are only lowered by a number. Where a hidden score is large, its weight is not 0. "
            "Set them to -inf.",
        ),
        Mistake(
            "hidden scores set to 0",
            with_layer(weights=_times_the_mask),
            "The scores are multiplied by the mask: a hidden one becomes 0, which softmax takes for a score "
            "like any other. Set it to -inf.",
        ),
        Mistake(
            "mask after the softmax",
            with_layer(weights=_mask_after),
            "The weights are masked, not the scores: what is left of a row sums to less than 1, and hidden "
            "scores have taken their share.",
        ),
        Mistake(
            "softmax over the heads",
            with_layer(weights=_over_heads),
            "The weights sum to 1 over the heads. Each query shares out its attention in each head by "
            "itself: over the keys, the last axis.",
        ),
        Mistake(
            "query and key exchanged",
            with_model(load=_loaded_as(query="key", key="query")),
            "Keys ask and queries answer: the two have changed places, in load or in the product. If one "
            "matrix makes them all, in which order does load join its parts, and in which are they cut?",
        ),
        Mistake(
            "key and value exchanged",
            with_model(load=_loaded_as(key="value", value="key")),
            "Key and value have changed places. If one matrix makes them all, in which order does load join "
            "its parts, and in which are they cut?",
        ),
        Mistake(
            "softmax over the queries",
            with_layer(weights=_over_queries),
            "The weights sum to 1 over the queries. Each query shares out its own attention: over the keys, "
            "the last axis.",
        ),
        Mistake(
            "no positions",
            with_model(embedded=lambda self, tokens, start: self.token(tokens)),
            "Nothing says where a token stands. Add the position's row to each token's.",
        ),
        Mistake(
            "positions along the batch",
            with_model(embedded=_by_the_batch),
            "The first sentence gets position 0, the second position 1: the positions run along the batch. "
            "tokens is [batch, T]: count its last axis.",
        ),
        Mistake(
            "positions from 1",
            with_model(embedded=lambda self, tokens, start: GPT.embedded(self, tokens, start + 1)),
            "Your first token gets the second position. Positions begin with 0.",
        ),
        Mistake(
            "no last norm",
            with_model(normed=lambda self, x: x),
            "What the layers have added up is read as it is. A pre-norm model has one more norm, behind its "
            "last layer.",
        ),
        Mistake(
            "post-norm",
            with_layer(forward=_post_norm),
            "The sums are normed, as in 2017. Here each half reads normed tokens and adds to those that are "
            "not: x + f(norm(x)).",
        ),
        Mistake(
            "norm of what is told",
            with_layer(forward=_norm_what_is_told),
            "Each half reads the tokens as they are, and what it tells is normed. The norm comes first: "
            "x + f(norm(x)).",
        ),
        Mistake(
            "residual missing around attention",
            with_layer(forward=_no_residual_around_attention),
            "Behind the attention a token no longer knows what it was. Add what the attention tells to x.",
        ),
        Mistake(
            "residual missing around feed-forward",
            with_layer(forward=_no_residual_around_feed),
            "The second half replaces its tokens by what it tells. Add it to them.",
        ),
        Mistake(
            "no residuals",
            with_layer(forward=_no_residuals),
            "Each half replaces its tokens by what it tells, and they are lost. Both add it to them.",
        ),
        Mistake(
            "no second norm",
            with_layer(forward=_no_second_norm),
            "The feed-forward network reads the tokens as they are. It has a norm in front of it, as the "
            "attention has.",
        ),
        Mistake(
            "residual of the normed tokens",
            with_layer(forward=_residual_of_the_normed),
            "What a half tells is added to the normed tokens: x = norm(x); x + f(x). Add it to the tokens as "
            "they were before their norm.",
        ),
        Mistake(
            "both halves from the same tokens",
            with_layer(forward=_side_by_side),
            "The feed-forward network reads the tokens from before the attention. It reads what the first "
            "half has made of them.",
        ),
        Mistake(
            "one norm for both halves",
            with_layer(forward=_one_norm_for_both),
            "Both halves of a layer use its first norm. The second has one of its own.",
        ),
        Mistake(
            "no scale",
            with_layer(scale=lambda self, key: 1.0),
            "The scores are plain dot products. Divide them by the root of a head's width.",
        ),
        Mistake(
            "scaled by the model's width",
            with_layer(scale=lambda self, key: (self.num_heads * key.shape[-1]) ** 0.5),
            "The scores are divided by √d_model. A query and a key have only d_model / num_heads numbers.",
        ),
        Mistake(
            "scaled by the width, not its root",
            with_layer(scale=lambda self, key: key.shape[-1]),
            "The scores are divided by the width of a head. Divide them by its root.",
        ),
        Mistake(
            "heads cut from the tokens",
            with_layer(split=_heads_cut_from_tokens, merge=_heads_not_brought_back),
            "reshape to [batch, heads, T, width] cuts a sentence into heads, several tokens each, and "
            "positions mix. Cut the last axis, [batch, T, heads, width], then transpose.",
        ),
        Mistake(
            "heads not brought back",
            with_layer(merge=_heads_not_brought_back),
            "The heads are put together without being transposed back: reshape takes the numbers in the "
            "order in which they lie. First [batch, T, heads, width], then join the last two axes.",
        ),
        Mistake(
            "heads taken in turns",
            with_layer(split=_heads_interleaved, merge=lambda self, c: c.movedim(-3, -1).flatten(-2)),
            "Head h gets the columns h, h + heads, and so on. With the given state it has neighbours: the "
            "first d_model / num_heads columns are head 0.",
        ),
        Mistake(
            "no output projection",
            with_layer(attend=lambda self, x, cache: _without_output(self, x, cache)),
            "The heads' contexts are added to the tokens as they are. They pass through the output "
            "projection first.",
        ),
        Mistake(
            "ReLU",
            with_layer(active=lambda self, x: x.relu()),
            "Between its two matrices your feed-forward network has a ReLU. A GPT has a GELU: F.gelu.",
        ),
        Mistake(
            "GELU by tanh",
            with_layer(active=lambda self, x: F.gelu(x, approximate="tanh")),
            "Your GELU is the approximation by tanh, as in GPT-2's own code. Here it is the exact one: "
            "F.gelu as it is.",
        ),
        Mistake(
            "embedding scaled",
            with_model(
                embedded=lambda self, tokens, start: (
                    GPT.embedded(self, tokens, start)
                    + (self.token.embedding_dim**0.5 - 1) * self.token(tokens)
                )
            ),
            "The tokens' rows are multiplied by √d_model, as in 2017. A GPT takes them as they are.",
        ),
        Mistake(
            "untied output",
            _Untied,
            "The output has a matrix of its own. A GPT reads its logits with the token embedding itself: "
            "x @ E.T, or head.weight = embedding.weight.",
        ),
        Mistake(
            "a bias on the logits",
            _OutputBias,
            "The logits have a bias, one more parameter for each token. Here they have none: bias=False.",
        ),
        Mistake(
            "softmax in the model",
            with_model(spoken=lambda self, x: GPT.spoken(self, x).softmax(-1)),
            "forward returns probabilities. Cross-entropy takes the softmax itself, and takes it twice then: "
            "return the logits.",
        ),
        Mistake(
            "log-probabilities",
            with_model(spoken=lambda self, x: GPT.spoken(self, x).log_softmax(-1)),
            "forward returns the logarithms of probabilities. Cross-entropy does not notice, but these are "
            "not the logits.",
        ),
        Mistake(
            "dropout that is always on",
            with_layer(dropped=_dropped),
            "F.dropout drops in evaluation, too, unless it is told training=self.training. nn.Dropout knows.",
        ),
        Mistake(
            "dropout that drops nothing",
            with_layer(dropped=lambda self, x: x),
            "In training mode, and built to drop nearly all, your model says what it says in evaluation. "
            "Does each layer get the dropout of __init__, and is it the share that goes, not the one that "
            "stays?",
        ),
        Mistake(
            "dropout on the embedding",
            with_model(embedded=_embedding_dropped),
            "In training your model drops tokens and positions, too. Only what each half tells is dropped, "
            "before it is added.",
        ),
    ),
    hints=(
        "Write the parts first, each with its shape beside it: embeddings, a layer, the last norm, the "
        "output. Then load: which of your parameters holds which of the given numbers?",
        "A layer is x + attention(norm_1(x)), then x + feed(norm_2(x)). If all your names are those of the "
        "table, load is load_state_dict. If one matrix of yours makes query, key and value, join the three "
        "given ones along the rows.",
        "Where logits differ, build with one layer, or set parts of the state to 0: an output projection of "
        "0 takes the attention out, an outer matrix of 0 the feed-forward network. What is left "
        "is embedding, last norm and output. Then put the parts back one at a time.",
    ),
)


def _without_output(self: Layer, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
    return self.merge(self.weights(query @ key.mT / self.scale(key)) @ value), (key, value)
