"""Exercise 4: one step of writing."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.speech import shared
from attention_course.checks.speech.shared import NAME

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Weigh = Callable[[Tensor, Tensor], Tensor]


def _filled(fill: float) -> Weigh:
    return lambda scores, real: scores.masked_fill(~real, fill).softmax(-1)


def _renormalised(scores: Tensor, real: Tensor) -> Tensor:
    kept = scores.softmax(-1) * real
    return kept / kept.sum(-1, keepdim=True)


_hidden = _filled(-torch.inf)


def _dot(query: Tensor, memory: Tensor) -> Tensor:
    return (memory @ query[..., None]).squeeze(-1)


def _spelled(
    *,
    reads: Callable[..., tuple[Tensor, ...]] = lambda embedded, context, state: (embedded, context, state),
    step: Callable[[Tensor], Tensor] = torch.tanh,
    asks: Callable[[Tensor, Tensor], Tensor] = lambda before, after: after,
    query: Callable[[Tensor, Tensor], Tensor] = lambda state, w_query: state @ w_query,
    score: Callable[[Tensor, Tensor], Tensor] = _dot,
    real: Callable[[int, Tensor], Tensor] = shared.real,
    weigh: Weigh = _hidden,
    mix: Callable[[Tensor, Tensor], Tensor] = lambda weights, memory: (weights[:, None] @ memory).squeeze(1),
    says: Callable[..., tuple[Tensor, ...]] = lambda before, after, old, new: (after, new),
    finish: Callable[..., tuple[Tensor, ...]] = lambda logits, *rest: (logits, *rest),
) -> Callable[..., tuple[Tensor, ...]]:
    def spell(
        embedded: Tensor, context: Tensor, state: Tensor, memory: Tensor, lengths: Tensor, w_state: Tensor,
        w_query: Tensor, w_out: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        after = step(torch.cat(reads(embedded, context, state), -1) @ w_state)
        scores = score(query(asks(state, after), w_query), memory)
        weights = weigh(scores, real(memory.shape[1], lengths))
        new = mix(weights, memory)
        logits = torch.cat(says(state, after, context, new), -1) @ w_out
        return finish(logits, after, new, weights)

    return spell


def _old_state_back(
    embedded: Tensor, context: Tensor, state: Tensor, memory: Tensor, lengths: Tensor, *rest: Tensor
) -> Four:
    logits, _, new, weights = _spelled()(embedded, context, state, memory, lengths, *rest)
    return logits, state.clone(), new, weights


def _old_context_back(
    embedded: Tensor, context: Tensor, state: Tensor, memory: Tensor, lengths: Tensor, *rest: Tensor
) -> Four:
    logits, after, _, weights = _spelled()(embedded, context, state, memory, lengths, *rest)
    return logits, after, context.clone(), weights


def _attend_first(
    embedded: Tensor, context: Tensor, state: Tensor, memory: Tensor, lengths: Tensor, w_state: Tensor,
    w_query: Tensor, w_out: Tensor,
) -> Four:  # fmt: skip
    """Bahdanau's order: the old state asks, and the new context goes into the new state."""
    real = shared.real(memory.shape[1], lengths)
    weights = _hidden(_dot(state @ w_query, memory), real)
    new = (weights[:, None] @ memory).squeeze(1)
    after = (torch.cat((embedded, new, state), -1) @ w_state).tanh()
    return torch.cat((after, new), -1) @ w_out, after, new, weights


def _silenced(
    embedded: Tensor, context: Tensor, state: Tensor, memory: Tensor, lengths: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    memory = memory * shared.real(memory.shape[1], lengths)[..., None]
    unmasked = _spelled(weigh=lambda scores, real: scores.softmax(-1))
    return unmasked(embedded, context, state, memory, lengths, *rest)


def _in_place(
    embedded: Tensor, context: Tensor, state: Tensor, memory: Tensor, lengths: Tensor, *rest: Tensor
) -> Four:
    right = _spelled()(embedded, context, state, memory, lengths, *rest)
    state.copy_(right[1])
    return right


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    g: Generator, T_k: int, d_e: int, d_h: int, d_s: int, V: int, *lengths: int, dtype=torch.float32
) -> Inputs:
    B = len(lengths)
    return (
        normal(g, B, d_e, dtype=dtype), 0.5 * normal(g, B, d_h, dtype=dtype),
        0.5 * normal(g, B, d_s, dtype=dtype), normal(g, B, T_k, d_h, dtype=dtype), torch.tensor(lengths),
        weight(g, d_e + d_h + d_s, d_s, dtype), 1.5 * weight(g, d_s, d_h, dtype),
        weight(g, d_s + d_h, V, dtype),
    )  # fmt: skip


def _loud(g: Generator, T_k: int, loudness: float, dtype: torch.dtype, *lengths: int) -> Inputs:
    """What lies behind the end scores ``2 * loudness`` more, in numbers that no order of a sum changes."""
    d_e, d_h, d_s = 3, 4, 3
    embedded, context, state, *_ = _drawn(g, T_k, d_e, d_h, d_s, 5, *lengths, dtype=dtype)
    # far enough for the tanh to be 1 or -1: the state's first number is 1, the others have a sign
    embedded = torch.cat((torch.ones(len(lengths), 1), embedded.sign()[:, 1:]), -1).to(dtype)
    w_state = torch.cat((60 * torch.eye(d_e, d_s), halves(g, d_h + d_s, d_s))).to(dtype)
    w_query = torch.randint(1, 9, (d_s, d_h), generator=g).to(dtype) / 8
    w_query[:, 0] = torch.tensor([loudness, 0.0, 0.0])
    behind = 1 - 2 * shared.real(T_k, torch.tensor(lengths)).to(dtype)
    signs = torch.randint(2, (len(lengths), T_k, d_h - 1), generator=g).to(dtype) * 2 - 1
    memory = torch.cat((behind[..., None], signs), -1)
    w_out = weight(g, d_s + d_h, 5, dtype)
    return embedded, context, state, memory, torch.tensor(lengths), w_state, w_query, w_out


SPELL = Exercise(
    name=f"{NAME}.spell",
    title="One step of writing",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_spelled(),
    returns=("logits", "state", "context", "weights"),
    unseen=("memory",),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 2, 2, most=9),
                tenths(g, 2, 2, most=9),
                tenths(g, 2, 3, most=9),
                tenths(g, 2, 3, 2),
                torch.tensor([3, 2]),
                halves(g, 7, 3),
                halves(g, 3, 2),
                halves(g, 5, 4),
            ),
        ),
        Case("three clips", lambda g: _drawn(g, 6, 4, 5, 7, 8, 6, 1, 4)),
        Case("room behind every clip", lambda g: _drawn(g, 8, 3, 6, 4, 5, 5, 7)),
        Case("all widths equal", lambda g: _drawn(g, 5, 4, 4, 4, 6, 3, 5)),
        Case(
            "as many clips as states, float64",
            lambda g: _drawn(g, 3, 2, 4, 5, 6, 2, 3, 1, dtype=torch.float64),
        ),
        Case("loud behind the end", lambda g: _loud(g, 5, 120.0, torch.float32, 3, 2, 5)),
        Case(
            "louder than any number of yours, float64",
            lambda g: _loud(g, 6, 2e9, torch.float64, 4, 3),
        ),
        Case("gradient", lambda g: _drawn(g, 5, 3, 4, 5, 6, 5, 2, 3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "the old state asks",
            _spelled(asks=lambda before, after: before),
            "The state of the step before asks. The speller first takes its step, and the new state asks.",
        ),
        Mistake(
            "attention before the step",
            _attend_first,
            "You attend first, with the old state, and take the step with the new context: chapter 1's "
            "order. Here the step comes first, with the old context, and then the new state asks.",
        ),
        Mistake(
            "the old context in the logits",
            _spelled(says=lambda before, after, old, new: (after, old)),
            "The logits see the context of the step before. They see the new one.",
        ),
        Mistake(
            "the old state in the logits",
            _spelled(says=lambda before, after, old, new: (before, new)),
            "The logits see the state of the step before. They see the new one.",
        ),
        Mistake(
            "context before state in the logits",
            _spelled(says=lambda before, after, old, new: (new, after)),
            "State and context are put side by side in the wrong order. The rows of w_out are the state's "
            "first, then the context's.",
        ),
        Mistake(
            "no context in the logits",
            _spelled(says=lambda before, after, old, new: (after, torch.zeros_like(new))),
            "The logits do not see the context: what is heard at this step cannot be written at it.",
        ),
        Mistake(
            "no context in the step",
            _spelled(reads=lambda embedded, context, state: (embedded, torch.zeros_like(context), state)),
            "The step does not see the context of the step before.",
        ),
        Mistake(
            "context in front of the symbol",
            _spelled(reads=lambda embedded, context, state: (context, embedded, state)),
            "What the step reads is put side by side in another order. The rows of w_state are the symbol's "
            "first, then the context's, then the state's.",
        ),
        Mistake(
            "state in front",
            _spelled(reads=lambda embedded, context, state: (state, embedded, context)),
            "The state stands in front of what the step reads. The rows of w_state are the symbol's first, "
            "then the context's, then the state's.",
        ),
        Mistake(
            "state in the middle",
            _spelled(reads=lambda embedded, context, state: (embedded, state, context)),
            "State and context are in the wrong order. The rows of w_state are the symbol's first, then the "
            "context's, then the state's.",
        ),
        Mistake(
            "a sigmoid for the tanh",
            _spelled(step=torch.sigmoid),
            "The new state goes through a sigmoid. A tanh is asked for.",
        ),
        Mistake(
            "no tanh",
            _spelled(step=lambda x: x),
            "The new state is the plain product. A tanh goes over it.",
        ),
        Mistake(
            "no mask",
            _spelled(weigh=lambda scores, real: scores.softmax(-1)),
            "States behind the clip's end get weight like any other. Look for lengths: is it used?",
        ),
        Mistake(
            "inverted mask",
            _spelled(weigh=lambda scores, real: _hidden(scores, ~real)),
            "The clip is hidden and what lies behind its end is seen; where nothing does, nothing is left, "
            "hence NaN. masked_fill fills where its mask is True.",
        ),
        Mistake(
            "off by one: a state behind the end is seen",
            _spelled(real=lambda T, lengths: shared.real(T, lengths + 1)),
            "One state behind the clip's end is seen as well. States are counted from 0, so the last one is "
            "lengths - 1: look at < and <=.",
        ),
        Mistake(
            "off by one: the last state is hidden",
            _spelled(real=lambda T, lengths: shared.real(T, lengths - 1)),
            "The last state of every clip is hidden; a clip of one state has nothing left, hence NaN.",
        ),
        Mistake(
            "lengths from before the pyramid",
            _spelled(real=lambda T, lengths: shared.real(T, 2 * lengths)),
            "Twice as many states are seen as there are, as if lengths counted frames. It counts states, "
            "behind the pyramid.",
        ),
        Mistake(
            "the first clip's length for all",
            _spelled(real=lambda T, lengths: shared.real(T, lengths[:1])),
            "Every clip is cut where the first one ends. Look for an index 0 or a batch axis that was lost.",
        ),
        Mistake(
            "mask after softmax",
            _spelled(weigh=lambda scores, real: scores.softmax(-1) * real),
            "What lies behind the end gets no weight, but the weights no longer sum to 1: softmax has "
            "already shared out to it. Look at what comes first.",
        ),
        Mistake(
            "mask after softmax, divided by what is left",
            _spelled(weigh=_renormalised),
            "You take the softmax over everything, put zeros behind the end and divide by what is left. "
            "Where the largest scores lie behind the end nothing is left, and 0 divided by 0 is NaN. Hide "
            "before the softmax.",
        ),
        Mistake(
            "zero as a score",
            _spelled(weigh=_filled(0.0)),
            "What lies behind the end has the score 0, and exp(0) = 1: it still gets weight. Which score has "
            "the exponential 0?",
        ),
        Mistake(
            "a large negative number as a score",
            _spelled(weigh=_filled(-1e9)),
            "What lies behind the end gets a score such as -1e9. One case has scores lower than that. Which "
            "score is lower than all others?",
        ),
        Mistake(
            "a large number subtracted",
            _spelled(weigh=lambda scores, real: (scores - 1e9 * ~real).softmax(-1)),
            "A large number is subtracted from scores behind the end. One case has larger differences than "
            "that. Fill with -inf instead.",
        ),
        Mistake(
            "a small number subtracted",
            _spelled(weigh=lambda scores, real: (scores - 20.0 * ~real).softmax(-1)),
            "A number such as 20 is subtracted from hidden scores: exp(-20) of them stays, and where they "
            "are far larger than the others they get all the weight. Fill with -inf: then it is exactly 0.",
        ),
        Mistake(
            "memory made 0 and not hidden",
            _silenced,
            "What lies behind the end is made 0, and nothing is hidden: its score is 0, and exp(0) = 1. It "
            "still gets weight, though the context is spared its numbers.",
        ),
        Mistake(
            "softmax over the clips",
            _spelled(weigh=lambda scores, real: scores.masked_fill(~real, -torch.inf).softmax(0)),
            "The weights sum to 1 over the batch: clips compete for a place (and nobody gets one where all "
            "have ended). The states of one clip should: the last axis.",
        ),
        Mistake(
            "scaled",
            _spelled(score=lambda query, memory: _dot(query, memory) / memory.shape[-1] ** 0.5),
            "The scores are divided by the root of the width. This speller takes plain dot products.",
        ),
        Mistake(
            "w_query left out",
            _spelled(query=lambda state, w_query: state),
            "The state itself asks, which runs only where it is as wide as the memory. It goes through "
            "w_query.",
        ),
        Mistake(
            "w_query transposed",
            _spelled(query=lambda state, w_query: state @ w_query.mT),
            "The query is state @ w_query.mT, as nn.Linear stores it; that runs only where w_query is "
            "square.",
        ),
        Mistake(
            "mean instead of sum",
            _spelled(mix=lambda weights, memory: (weights[..., None] * memory).mean(1)),
            "The weighted states are averaged, which divides by their number once more. The weights sum to 1 "
            "already: add.",
        ),
        Mistake(
            "an axis too many",
            _spelled(
                finish=lambda logits, state, context, weights: (
                    logits[:, None],
                    state,
                    context[:, None],
                    weights[:, None],
                )
            ),
            "An axis of length 1 is left over, for the one query that there is. squeeze it, by its number.",
        ),
        Mistake(
            "probabilities instead of logits",
            _spelled(finish=lambda logits, *rest: (logits.softmax(-1), *rest)),
            "A softmax has gone over the logits. Return them as they are: a loss takes its own logarithm.",
        ),
        Mistake(
            "the old state handed on",
            _old_state_back,
            "All is computed well, but you hand on the old state. The next step needs the new one.",
        ),
        Mistake(
            "the old context handed on",
            _old_context_back,
            "All is computed well, but you hand on the old context. The next step needs the new one.",
        ),
        Mistake(
            "context before state handed on",
            _spelled(finish=lambda logits, state, context, weights: (logits, context, state, weights)),
            "State and context are exchanged in what you return: (logits, state, context, weights).",
        ),
        Mistake(
            "weights before context handed on",
            _spelled(finish=lambda logits, state, context, weights: (logits, state, weights, context)),
            "Context and weights are exchanged in what you return: (logits, state, context, weights).",
        ),
        Mistake(
            "state changed in place",
            _in_place,
            "The result is right, but the new state is written into state itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Four lines: the step, the weights, the context, the logits. For each, write down whether it reads "
        "the old state or the new one, the old context or the new one.",
        "torch.cat((..., ...), dim=-1) puts side by side, in the order of the matrix's rows. The query is "
        "[B, d_h], the memory [B, T_k, d_h]: the query needs an axis for their product, and the scores lose "
        "it again.",
        "Behind a clip's end, where torch.arange(T_k) is not below lengths[:, None], the score is -inf, "
        "before the softmax. The logits come last, from the new state and the new context.",
    ),
)
