"""Milestone 7: it writes, and keeps what it has read."""

import torch
from torch import Generator, Tensor

from attention_course.checks.capstone.model import GPT, Cache, Layer, with_layer, with_model
from attention_course.checks.capstone.shared import BUILT, NAME, STATE, sizes, state, tokens
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import Scene
from attention_course.checks.engine.surroundings import undisturbed

#: written in evaluation mode, where dropout does nothing
_SIZES = sizes(13, 60, 24, 3, dropout=0.3)
#: two tokens nearer to each other than this might be told apart otherwise on another machine
_GAP = 5e-4


def _drawn(generator: Generator, prompt: tuple[int, int], number: int) -> Inputs:
    """A state and prompts, of which each next token is clearly the likeliest."""
    while True:
        given = state(generator, _SIZES, sharp=2.0)
        start = tokens(generator, _SIZES["vocabulary"], *prompt)
        if _clear(given, start, number):
            return *given, start, torch.tensor(number)


def _clear(given: Inputs, start: Tensor, number: int) -> bool:
    with undisturbed(), torch.no_grad():
        model = GPT(**_SIZES).eval()
        model.load(dict(zip(STATE, given, strict=True)))
        text = model.generate(start, number, 0.0)
        best = model(text[:, :-1])[:, start.shape[1] - 1 :].topk(2).values
    varied = all(len(set(line)) > 3 for line in text[:, start.shape[1] :].tolist()) or number < 10
    return varied and bool((best[..., 0] - best[..., 1] > _GAP).all())


# Usual mistakes -------------------------------------------------------------------------------


def _from(shift: int):
    """Positions that begin ``shift`` too late, but for those of the prompt."""

    def embedded(self: GPT, tokens: Tensor, start: int) -> Tensor:
        return GPT.embedded(self, tokens, max(start + shift, 0) if start else 0)

    return embedded


def _only_the_prompt(self: GPT, tokens: Tensor, newest: Tensor, caches: list[Cache] | None) -> tuple:
    logits, found = self.read(newest, caches)
    return logits, caches or found


def _read_twice(self: GPT, tokens: Tensor, newest: Tensor, caches: list[Cache] | None) -> tuple:
    if caches is None:
        _, caches = self.read(tokens, None)
    return self.read(tokens[:, -1:], caches)


@torch.no_grad()
def _from_the_first(self: GPT, tokens: Tensor, number: int, temperature: float = 1.0) -> Tensor:
    newest, caches = tokens, None
    for _ in range(number):
        logits, caches = self.read(newest, caches)
        newest = self.chosen(logits[:, 0], temperature)
        tokens = torch.cat((tokens, newest), 1)
    return tokens


def _values_not_kept(self: Layer, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
    kept = key, value
    if cache is not None:  # newest in front
        key, value = torch.cat((key, cache[0]), -2), torch.cat((value, cache[1]), -2)
        kept = torch.cat((cache[0], kept[0]), -2), torch.cat((kept[1], cache[1]), -2)
        value = kept[1]
        key = kept[0]
    weights = self.weights(query @ key.mT / self.scale(key))
    return self.output(self.merge(weights @ value)), kept


def _placed(kept: bool) -> type[GPT]:
    """Each token at its own position, but nothing is ``kept`` of those before it, or of the prompt alone."""

    def continued(self: GPT, tokens: Tensor, newest: Tensor, caches: list[Cache] | None) -> tuple:
        self.place = tokens.shape[1] - newest.shape[1]
        logits, found = self.read(newest, caches if kept else None)
        self.place = 0
        return logits, caches or found

    def embedded(self: GPT, tokens: Tensor, start: int) -> Tensor:
        return GPT.embedded(self, tokens, getattr(self, "place", 0) or start)

    return with_model(continued=continued, embedded=embedded)


class _SeesAhead(GPT):
    """Its mask is left out while it writes, for a single query needs none."""

    def continued(self, tokens: Tensor, newest: Tensor, caches: list[Cache] | None) -> tuple:
        for layer in self.layers:
            layer.mask = lambda T_q, T_k: torch.ones(T_q, T_k, dtype=torch.bool)
        found = self.read(newest, caches)
        for layer in self.layers:
            del layer.mask
        return found


def _one_cache(self: GPT, tokens: Tensor, caches: list[Cache] | None) -> tuple[Tensor, list[Cache]]:
    cache = caches and caches[0]
    x = self.embedded(tokens, cache[0].shape[-2] // len(self.layers) if cache else 0)
    for layer in self.layers:
        x, cache = layer(x, cache)
    return self.spoken(self.normed(x)), [cache]


class _GoesOn(GPT):
    """What it has kept is never put away."""

    @torch.no_grad()
    def generate(self, tokens: Tensor, number: int, temperature: float = 1.0) -> Tensor:
        newest, caches = tokens, getattr(self, "caches", None)
        for _ in range(number):
            logits, caches = self.read(newest, caches)
            newest = self.chosen(logits[:, -1], temperature)
            tokens = torch.cat((tokens, newest), 1)
        self.caches = caches
        return tokens


GENERATE = Exercise(
    name=f"{NAME}.generate",
    title="It writes",
    points=3,
    difficulty=3,
    minutes=40,
    reference=GPT,
    asks=Scene(
        "written",
        given=("prompt", "number"),
        called=f"{BUILT}.generate(tokens, number, temperature)",
        state=STATE,
        # with a cache it is about 1, where all is read again 14 and more
        told={"times": 3},
        noun="model",
    ),
    returns=("tokens",),
    cases=(
        Case("three prompts, as long as can be", lambda g: _drawn(g, (3, 4), 56), arguments=_SIZES),
        Case("one token, and one more", lambda g: _drawn(g, (1, 1), 1), arguments=_SIZES),
        Case("a long prompt", lambda g: _drawn(g, (2, 30), 20), arguments=_SIZES),
    ),
    mistakes=(
        Mistake(
            "no cache",
            with_model(continued=lambda self, tokens, newest, caches: self.read(tokens, None)),
            "The text is right, but all of it is read again for each token. Keep the keys and values of "
            "every layer, and let a step read the newest token only.",
        ),
        Mistake(
            "a cache that is never empty again",
            _GoesOn,
            "A second call of generate, or a call of forward behind it, finds what the first has kept.",
        ),
        Mistake(
            "in training mode",
            with_model(
                generate=lambda self, tokens, *rest, **named: GPT.generate(
                    self.train(), tokens, *rest, **named
                )
            ),
            "model.train() is for the step of training. Who writes has called eval() before.",
        ),
        Mistake(
            "every new token at position 0",
            with_model(embedded=lambda self, tokens, start: GPT.embedded(self, tokens, 0)),
            "With a cache a step reads one token, and that one gets position 0. Its position is the number "
            "of tokens that are kept.",
        ),
        Mistake(
            "cache position one too far",
            with_model(embedded=_from(1)),
            "A new token's position is one too large. Behind T tokens, which have positions 0 to T - 1, "
            "comes position T.",
        ),
        Mistake(
            "cache position one too short",
            with_model(embedded=_from(-1)),
            "A new token has the position of the last token before it. Behind T tokens, which have "
            "positions 0 to T - 1, comes position T.",
        ),
        Mistake(
            "the newest token alone",
            with_model(continued=lambda self, tokens, newest, caches: self.read(newest, None)),
            "A step reads the newest token and knows no other: keys and values of those before it are "
            "not kept, or not used.",
        ),
        Mistake(
            "only the prompt is kept",
            with_model(continued=_only_the_prompt),
            "What a step adds to the cache is lost: every new token sees the prompt and itself, not the "
            "tokens written before it.",
        ),
        Mistake(
            "the newest token alone, in its place",
            _placed(kept=False),
            "A step reads the newest token, at its right position, and knows no other: keys and values of "
            "those before it are not kept, or not used.",
        ),
        Mistake(
            "only the prompt is kept, positions right",
            _placed(kept=True),
            "What a step adds to the cache is lost: every new token, at its right position, sees the prompt "
            "and itself, not the tokens written before it.",
        ),
        Mistake(
            "the prompt sees ahead",
            _SeesAhead,
            "While it writes, your model has no mask. A single query needs none, but the prompt goes in as "
            "one piece, and its tokens see those behind them.",
        ),
        Mistake(
            "one cache for all layers",
            with_model(read=_one_cache),
            "All layers put their keys and values into one cache, and each sees those of the others. Every "
            "layer needs its own; [cache] * n is n times the same one.",
        ),
        Mistake(
            "the first row's token for all",
            with_model(
                chosen=lambda self, logits, temperature: GPT.chosen(self, logits[:1], temperature).expand(
                    len(logits), 1
                )
            ),
            "All sentences of the batch go on with the token of the first. Each row has its own.",
        ),
        Mistake(
            "the last token read twice",
            with_model(continued=_read_twice),
            "The prompt is kept whole, and then its last token is read once more: it is there twice, at two "
            "positions. What the prompt was read for already gives the first token's logits.",
        ),
        Mistake(
            "mask from the corner",
            with_layer(mask=lambda self, T_q, T_k: torch.ones(T_q, T_k, dtype=torch.bool).tril()),
            "The newest token sees the first one only. One query stands behind T - 1 others: its row of the "
            "mask is the last one, not the first (is_causal=True takes the first).",
        ),
        Mistake(
            "keys and values in different orders",
            with_layer(attend=_values_not_kept),
            "Keys are kept in one order and values in another: each weight goes to somebody else's value. "
            "Join both in the same way.",
        ),
        Mistake(
            "written from the first position",
            with_model(generate=_from_the_first),
            "The next token is taken from the logits of the first position. What follows the text, the last "
            "one says: logits[:, -1].",
        ),
        Mistake(
            "the prompt left out",
            with_model(
                generate=lambda self, tokens, *rest, **named: GPT.generate(self, tokens, *rest, **named)[
                    :, tokens.shape[1] :
                ]
            ),
            "Only what is new was returned. Return the prompt and what follows it in one tensor.",
        ),
        Mistake(
            "divided by a temperature of 0",
            with_model(
                chosen=lambda self, logits, temperature: torch.multinomial(
                    (logits / temperature).softmax(-1), 1
                )
            ),
            "Logits are divided by 0. At temperature 0 the likeliest token is taken: argmax, and no draw.",
        ),
    ),
    hints=(
        "Write it without a cache first, and print both ways beside each other. What does a layer need of "
        "the tokens before, and what of the newest one?",
        "A layer takes what is kept, joins its new keys and values to it along the tokens, and gives both "
        "back. The position of the first new token is the number of tokens kept. A single query sees all.",
        "The prompt goes in as one piece, with an empty cache. Its last logits give the first "
        "token; from then on the model gets that one token and the cache. Take argmax when the temperature "
        "is 0.",
    ),
)
