"""Exercise 5: a decoder that looks back."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.bottleneck import shared
from attention_course.checks.bottleneck.shared import NAME
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _look(query: Tensor, states: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = ((query.unsqueeze(-2) + states).tanh() @ v).softmax(-1)
    return shared.mixed(weights, states), weights


def _looking(
    score: Callable[[Tensor, Tensor, Tensor], Tensor], dim: int = -1
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Another look: ``score(query, states, v)``, the query with an axis for the states, then a softmax."""

    def look(query: Tensor, states: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = score(query.unsqueeze(-2), states, v).softmax(dim)
        return shared.mixed(weights, states), weights

    return look


def _update(word: Tensor, context: Tensor, state: Tensor, start: Tensor) -> Tensor:
    return (word + context + state).tanh()


def _decoder(
    update: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _update,
    *,
    look: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = _look,
    asks: Callable[[Tensor, Tensor], Tensor] = lambda state, start: state,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The loop, with ``asks(state, start)`` as the query of every step."""

    def decode(embedded: Tensor, start: Tensor, states: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        state, decoder_states, weights = start, [], []
        for word in embedded.unbind(1):
            context, row = look(asks(state, start), states, v)
            state = update(word, context, state, start)
            decoder_states.append(state)
            weights.append(row)
        return torch.stack(decoder_states, 1), torch.stack(weights, 1)

    return decode


def _look_after_update(embedded: Tensor, start: Tensor, states: Tensor, v: Tensor):
    state, context = start, torch.zeros_like(start)
    decoder_states, weights = [], []
    for word in embedded.unbind(1):
        state = _update(word, context, state, start)
        context, row = _look(state, states, v)
        decoder_states.append(state)
        weights.append(row)
    return torch.stack(decoder_states, 1), torch.stack(weights, 1)


def _context_one_late(embedded: Tensor, start: Tensor, states: Tensor, v: Tensor):
    state, context = start, torch.zeros_like(start)
    decoder_states, weights = [], []
    for word in embedded.unbind(1):
        found, row = _look(state, states, v)
        state, context = _update(word, context, state, start), found
        decoder_states.append(state)
        weights.append(row)
    return torch.stack(decoder_states, 1), torch.stack(weights, 1)


def _words_one_late(embedded: Tensor, start: Tensor, states: Tensor, v: Tensor):
    words = torch.cat((torch.zeros_like(embedded[:, :1]), embedded[:, :-1]), 1)
    return _decoder()(words, start, states, v)


def _before_the_update(embedded: Tensor, start: Tensor, states: Tensor, v: Tensor):
    after, weights = _decoder()(embedded, start, states, v)
    return torch.cat((start.unsqueeze(1), after[:, :-1]), 1), weights


def _start_in_place(embedded: Tensor, start: Tensor, states: Tensor, v: Tensor):
    state, decoder_states, weights = start, [], []
    for word in embedded.unbind(1):
        context, row = _look(state, states, v)
        state += word + context
        state = state.tanh()
        decoder_states.append(state)
        weights.append(row)
    return torch.stack(decoder_states, 1), torch.stack(weights, 1)


def _step_inputs(
    generator: Generator, B: int, T_q: int, T_k: int, d: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Small words and states, so that no tanh is saturated; a v large enough to choose."""
    shapes = ((B, T_q, d), (B, d), (B, T_k, d), (d,))
    scales = (0.5, 0.5, 0.5, 2.0)
    tensors = (normal(generator, *shape, dtype=dtype) for shape in shapes)
    return tuple(tensor * scale for tensor, scale in zip(tensors, scales, strict=True))


def _far_below(generator: Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores near -800: the first tanh is 1 for every word, and its share is large."""
    embedded, start, states, v = _step_inputs(generator, 2, 3, 5, 4, torch.float64)
    first = torch.arange(4) == 0
    start, states = (one.masked_fill(first, 9.0) for one in (start, states))
    return embedded, start, states, v.masked_fill(first, -800.0)


DECODE = Exercise(
    name=f"{NAME}.decode",
    title="A decoder that looks before it writes",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_decoder(),
    returns=("decoder_states", "weights"),
    distributions=("weights",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                *(tenths(g, *shape, most=9) for shape in ((1, 2, 2), (1, 2), (1, 3, 2))),
                tenths(g, 2),
            ),
        ),
        Case("batch", lambda g: _step_inputs(g, 3, 5, 6, 4)),
        Case("as many sentences as steps", lambda g: _step_inputs(g, 4, 4, 3, 5)),
        Case("one step, float64", lambda g: _step_inputs(g, 3, 1, 5, 4, torch.float64)),
        Case("scores far below 0, float64", _far_below),
        Case("one word to read", lambda g: _step_inputs(g, 2, 3, 1, 4)),
        Case("gradient", lambda g: _step_inputs(g, 2, 4, 3, 5), gradient=True),
    ),
    mistakes=(
        Mistake(
            "looks after the update",
            _look_after_update,
            "You update the state first, with the context of the step before, and then look. That "
            "is Luong's order. In Bahdanau's, the query is the state before the update, and its "
            "context goes into that very update.",
        ),
        Mistake(
            "every query is the first state",
            _decoder(asks=lambda state, start: start),
            "All rows of weights are the same: every step asks with start. Each step asks with the "
            "state that the step before has made.",
        ),
        Mistake(
            "no state is carried on",
            _decoder(
                lambda word, context, state, start: _update(word, context, start, start),
                asks=lambda state, start: start,
            ),
            "Every step begins again from start, as if it were the first. That is what you get "
            "without a loop. What a step makes, the next one must take up: s_(i-1) changes.",
        ),
        Mistake(
            "context left out of the update",
            _decoder(lambda word, context, state, start: (word + state).tanh()),
            "The context is computed and never read: change the source, and the decoder's states "
            "stay as they are. Put it into the update.",
        ),
        Mistake(
            "state left out of the update",
            _decoder(lambda word, context, state, start: (word + context).tanh()),
            "The new state is made from word and context alone; the old state is forgotten. It "
            "belongs into the update.",
        ),
        Mistake(
            "word left out of the update",
            _decoder(lambda word, context, state, start: (context + state).tanh()),
            "The decoder does not read the word it wrote last. Look for embedded: is it used?",
        ),
        Mistake(
            "no tanh in the update",
            _decoder(lambda word, context, state, start: word + context + state),
            "The new state is a plain sum, which grows from step to step. Look for the tanh around it.",
        ),
        Mistake(
            "no tanh in the score",
            _decoder(look=_looking(lambda query, states, v: (query + states) @ v)),
            "Without the tanh the query adds the same number, s · v, to every score, and the softmax "
            "cancels it: the weights do not depend on the query. Look inside the score.",
        ),
        Mistake(
            "tanh of each alone in the score",
            _decoder(look=_looking(lambda query, states, v: (query.tanh() + states.tanh()) @ v)),
            "Query and state each go through a tanh of their own and are added afterwards. The query then "
            "adds the same number to every score, and the softmax cancels it. They must meet inside.",
        ),
        Mistake(
            "tanh after v",
            _decoder(look=_looking(lambda query, states, v: ((query + states) @ v).tanh())),
            "tanh goes over the finished score, which therefore lies between -1 and 1: no word can win by "
            "much. In the formula v comes after the tanh.",
        ),
        Mistake(
            "dot product as the score",
            _decoder(look=_looking(lambda query, states, v: (query * states).sum(-1))),
            "Your score is the dot product of query and state. Here it is the additive one: look at the "
            "first line of the formula, and for v.",
        ),
        Mistake(
            "softmax over the sentences",
            _decoder(look=_looking(lambda query, states, v: (query + states).tanh() @ v, dim=0)),
            "The weights sum to 1 over the batch: the sentences compete for a position. The words of one "
            "sentence should. Look at dim.",
        ),
        Mistake(
            "context of the step before",
            _context_one_late,
            "You look with the right state, but the context that comes of it goes into the next step's "
            "update, and the first step has none. Each look belongs into the update that follows it.",
        ),
        Mistake(
            "words one step late",
            _words_one_late,
            "The words have moved one place: the first step reads zeros. embedded holds the decoder's inputs "
            "already, so that y_(i-1) of step i = 1 is the one with the index 0.",
        ),
        Mistake(
            "the last word read first",
            lambda embedded, *others: _decoder()(embedded.roll(1, dims=1), *others),
            "The first step reads the last word, and every other step the word of the step before. In Python "
            "an index of -1 counts from the end. Steps are numbered from 1 in the formula: which word does "
            "the first of them read?",
        ),
        Mistake(
            "states before the update",
            _before_the_update,
            "The states stand one step late: the first is start, and the last one is missing. Keep "
            "the state after each update.",
        ),
        Mistake(
            "only the last step",
            lambda *inputs: tuple(result[:, -1] for result in _decoder()(*inputs)),
            "This is the last state with its weights. Keep those of every step: a list, and "
            "torch.stack after the loop.",
        ),
        Mistake(
            "steps stacked in front",
            lambda *inputs: tuple(result.transpose(0, 1) for result in _decoder()(*inputs)),
            "Steps come first and sentences second. torch.stack puts the new axis in front unless "
            "told: batch first, so dim=1.",
        ),
        Mistake(
            "start changed in place",
            _start_in_place,
            "state and start are the same tensor at first, so state += ... writes into start. Write "
            "state = state + ... instead.",
        ),
    ),
    hints=(
        "One loop over embedded.unbind(1) or range(T_q). What must be known before the first step, "
        "and what does each step hand to the next?",
        "In a step, the old state needs an axis of length 1 to be added to all states [B, T_k, d]. tanh "
        "and v make a score of each sum; then weights, then the context. Only then the new state.",
        "The new state is the tanh of a sum of three: word, context, old state. Append state and weights "
        "to two lists, and stack each of them after the loop, with the steps on axis 1.",
    ),
)
