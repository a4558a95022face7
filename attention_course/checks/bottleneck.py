"""Chapter 1: a sentence's summary, teacher forcing, the loss, one look back, and a decoder that looks.

Inputs are drawn so that the usual mistakes show: what stands in the padding is noise, never zeros;
in one batch the longest sentence is shorter than the batch is wide; sentences are not sorted.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake
from attention_course.lab.data.pairs import BOS, EOS, PAD

NAME = "01_bottleneck"


# Drawing inputs -------------------------------------------------------------------------------


def _targets(generator: Generator, T: int, *words: int, vocabulary: int = 30) -> Tensor:
    """[batch, T]: sentence i has words[i] words, <eos> where there is room for it, then padding."""
    tokens = torch.randint(EOS + 1, vocabulary, (len(words), T), generator=generator)
    behind = torch.arange(T) - torch.tensor(words)[:, None]
    return tokens.masked_fill(behind == 0, EOS).masked_fill(behind > 0, PAD)


def _real(T: int, lengths: Tensor) -> Tensor:
    """[batch, T]: True for a word, False for the padding behind it."""
    return torch.arange(T) < lengths[:, None]


# 1. The summary of a padded sentence ----------------------------------------------------------


def _summary(states: Tensor, lengths: Tensor) -> Tensor:
    return _ends(states, lengths - 1, 0)


def _halves(states: Tensor, forward_at: int | Tensor, backward_at: int | Tensor) -> tuple[Tensor, Tensor]:
    """The forward half of one column and the backward half of another, for each sentence."""
    rows = torch.arange(len(states))
    forward, backward = states.chunk(2, dim=-1)
    return forward[rows, forward_at], backward[rows, backward_at]


def _ends(states: Tensor, forward_at: int | Tensor, backward_at: int | Tensor) -> Tensor:
    return torch.cat(_halves(states, forward_at, backward_at), dim=-1)


def _every_length_for_every_sentence(states: Tensor, lengths: Tensor) -> Tensor:
    forward, backward = states.chunk(2, dim=-1)
    return torch.cat((forward[:, lengths - 1], backward[:, 0]), dim=-1)


SUMMARY = Exercise(
    name=f"{NAME}.summary",
    title="Where a padded sentence ends",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_summary,
    returns=("summary",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 4), torch.tensor([2, 3]))),
        Case("batch", lambda g: (normal(g, 4, 6, 6), torch.tensor([3, 6, 1, 5]))),
        Case(
            "room behind every sentence, float64",
            lambda g: (normal(g, 3, 7, 4, dtype=torch.float64), torch.tensor([4, 2, 5])),
        ),
        Case("one word each", lambda g: (normal(g, 3, 1, 4), torch.tensor([1, 1, 1]))),
        Case("gradient", lambda g: (normal(g, 3, 5, 8), torch.tensor([5, 2, 4])), gradient=True),
    ),
    mistakes=(
        Mistake(
            "last column for both halves",
            lambda states, lengths: _ends(states, -1, -1),
            "Both halves come from states[:, -1]. For a short sentence that column is padding, and "
            "for the backward direction it is where reading begins. Where has each direction read "
            "the whole sentence?",
        ),
        Mistake(
            "last column for the forward half",
            lambda states, lengths: _ends(states, -1, 0),
            "The forward half comes from the last column, which is padding for every sentence but "
            "the longest. Look for lengths: is it used?",
        ),
        Mistake(
            "the longest sentence's end for all",
            lambda states, lengths: _ends(states, lengths.max() - 1, 0),
            "The forward half of every sentence is read where the longest one ends. Each sentence "
            "has an end of its own: look for a max, or for padding that is cut off first.",
        ),
        Mistake(
            "backward half from the last word",
            lambda states, lengths: _ends(states, lengths - 1, lengths - 1),
            "Both halves are read at the last word. The backward direction has only begun there: it "
            "has read one word. Where does it end?",
        ),
        Mistake(
            "backward half in front",
            lambda states, lengths: torch.cat(_halves(states, lengths - 1, 0)[::-1], dim=-1),
            "Both halves are right, but the backward one stands first. Keep the order that the states have.",
        ),
        Mistake(
            "off by one: behind the last word",
            lambda states, lengths: _ends(states, lengths, 0),
            "The forward half is read one place behind the last word: that is padding, or, for the "
            "longest sentence, no column at all. Positions count from 0.",
        ),
        Mistake(
            "off by one: the last word but one",
            lambda states, lengths: _ends(states, lengths - 2, 0),
            "The forward half is read one word too early, so the last word is not in it; for a "
            "sentence of one word the index is -1, the last column. Positions count from 0.",
        ),
        Mistake(
            "every length for every sentence",
            _every_length_for_every_sentence,
            "states[:, lengths - 1] takes the columns of all sentences from each sentence, a third "
            "axis too many. Sentence i wants its own column only: index both axes, the first with "
            "torch.arange.",
        ),
        Mistake(
            "directions added",
            lambda states, lengths: sum(_halves(states, lengths - 1, 0)),
            "The two directions are added up. They stand side by side: the summary is as wide as a state.",
        ),
    ),
    hints=(
        "The forward direction has read the whole sentence after its last word, the backward one "
        "after its first. Which columns are these? Which half of each do you need?",
        "states.chunk(2, dim=-1) gives the two halves. For the forward half, sentence i needs the "
        "row lengths[i] - 1 of forward[i].",
        "Two indices side by side pick one entry for each sentence: "
        "forward[torch.arange(B), lengths - 1] is [B, hidden]. Put backward[:, 0] beside it with torch.cat.",
    ),
)


# 2. Teacher forcing ---------------------------------------------------------------------------


def _shifted(target: Tensor) -> Tensor:
    start = torch.full_like(target[:, :1], BOS)
    return torch.cat((start, target[:, :-1]), dim=1)


def _previous_tokens(target: Tensor) -> Tensor:
    return _shifted(target).masked_fill(target == PAD, PAD)


def _first_overwritten(target: Tensor) -> Tensor:
    previous = target.clone()
    previous[:, 0] = BOS
    return previous


def _one_too_many(target: Tensor) -> Tensor:
    return torch.cat((torch.full_like(target[:, :1], BOS), target), dim=1)


def _shifted_along_the_batch(target: Tensor) -> Tensor:
    return torch.cat((torch.full_like(target[:1], BOS), target[:-1]), dim=0)


def _as_floats(target: Tensor) -> Tensor:
    start = torch.full((len(target), 1), float(BOS))
    return torch.cat((start, target[:, :-1]), dim=1).masked_fill(target == PAD, PAD)


def _target_in_place(target: Tensor) -> Tensor:
    padding = target == PAD
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = BOS
    return target.masked_fill(padding, PAD)


PREVIOUS_TOKENS = Exercise(
    name=f"{NAME}.previous_tokens",
    title="What the teacher feeds in",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_previous_tokens,
    returns=("previous",),
    cases=(
        Case("two sentences", lambda g: (_targets(g, 4, 3, 1),)),
        Case("batch", lambda g: (_targets(g, 7, 3, 6, 0, 4),)),
        Case("as many sentences as columns", lambda g: (_targets(g, 4, 2, 3, 1, 3),)),
        Case("cut off before <eos>", lambda g: (_targets(g, 5, 5, 2, 5),)),
        Case("one column", lambda g: (_targets(g, 1, 1, 0, 1),)),
    ),
    mistakes=(
        Mistake(
            "not shifted",
            lambda target: target.clone(),
            "The decoder is fed the very word it has to write. It learns to copy: the loss falls to "
            "almost nothing, and without a teacher it writes nonsense. Where is word t - 1?",
        ),
        Mistake(
            "shifted left",
            lambda target: F.pad(target[:, 1:], (0, 1), value=PAD),
            "Position t holds the word after target t: the decoder is shown the future. It must see "
            "the word before. Look at the direction of the shift.",
        ),
        Mistake(
            "one token too many",
            _one_too_many,
            "<bos> is put in front and nothing is taken off at the end, so there is one input more "
            "than there are words to write. Nothing is written after the last target.",
        ),
        Mistake(
            "<bos> written over the first word",
            _first_overwritten,
            "Only the first word has become <bos>. The others still stand at their own place, where "
            "they are to be written. They have to move as well.",
        ),
        Mistake(
            "last column rolled to the front",
            lambda target: target.roll(1, dims=1),
            "roll brings the last column round to the front: <eos> or padding stands where <bos> "
            "should. At the first step nothing has been written yet.",
        ),
        Mistake(
            "padding in front instead of <bos>",
            lambda target: F.pad(target[:, :-1], (1, 0), value=PAD),
            "The free place in front holds 0, which is padding. Writing starts with <bos>, so that "
            "the decoder can tell a beginning from nothing at all.",
        ),
        Mistake(
            "<eos> fed in",
            _shifted,
            "After a short sentence <eos> is fed in, where the target is padding. Nothing is to be "
            "written there any more: where the target is padding, the input is padding too.",
        ),
        Mistake(
            "shifted twice",
            lambda target: _previous_tokens(_previous_tokens(target)),
            "Everything has moved two places. Shift once, either here or in the model, not in both.",
        ),
        Mistake(
            "shifted along the sentences",
            _shifted_along_the_batch,
            "Each sentence is given the words of the sentence above it. The batch comes first here: "
            "words follow each other along the last axis.",
        ),
        Mistake(
            "tokens turned into floats",
            _as_floats,
            "The values are right, but they are floats, and an embedding wants integers. A new "
            "tensor is float32 unless told: torch.full_like and new_full keep the dtype.",
        ),
        Mistake(
            "target changed in place",
            _target_in_place,
            "You write into target itself, and the loss still needs it. Make a new tensor.",
        ),
    ),
    hints=(
        "Write both rows down for “I am a cat”: what has been written before “I”, before “am”, and "
        "before <eos>?",
        "A column of <bos>, torch.full_like(target[:, :1], BOS), beside target without its last column.",
        "In a short sentence, <eos> has now moved on to where the target is padding. "
        "masked_fill(target == PAD, PAD) takes it away.",
    ),
)


# 3. The loss of a batch -----------------------------------------------------------------------


def _of_target(values: Tensor, target: Tensor) -> Tensor:
    """[runs, B, T_q, words] -> [runs, B, T_q]: the entry of the right word."""
    right = target.expand(values.shape[:-1]).unsqueeze(-1)
    return values.gather(-1, right).squeeze(-1)


def _losses(logits: Tensor, target: Tensor) -> Tensor:
    return -_of_target(logits.log_softmax(-1), target)


def _mean(losses: Tensor, counted: Tensor) -> Tensor:
    return (losses * counted).sum((-2, -1)) / counted.sum()


def _token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return _mean(_losses(logits, target), target != PAD)


def _from(losses: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The right mean of other losses per token."""
    return lambda logits, target: _mean(losses(logits, target), target != PAD)


def _summed(divisor: Callable[[Tensor], int]) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum over the words, divided by something else than their number."""
    return lambda logits, target: (_losses(logits, target) * (target != PAD)).sum((-2, -1)) / divisor(target)


def _mean_of_means(logits: Tensor, target: Tensor) -> Tensor:
    word = target != PAD
    return ((_losses(logits, target) * word).sum(-1) / word.sum(-1)).mean(-1)


def _large_logits(generator: Generator) -> tuple[Tensor, Tensor]:
    """Some words stand 200 above the rest: in float32 the probability of the rest is 0."""
    logits, target = normal(generator, 2, 3, 4, 6), _targets(generator, 4, 3, 1, 2, vocabulary=6)
    logits[0, ..., PAD] += 200
    logits[1, 0, :, BOS] += 200
    return logits, target


TOKEN_LOSS = Exercise(
    name=f"{NAME}.token_loss",
    title="A mean over words",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_token_loss,
    returns=("loss",),
    forbidden=("cross_entropy", "nll_loss"),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 1, 2, 3, 5), _targets(g, 3, 2, 0, vocabulary=5)),
        ),
        Case(
            "three runs",
            lambda g: (normal(g, 3, 4, 6, 9), _targets(g, 6, 2, 5, 0, 3, vocabulary=9)),
        ),
        Case(
            "no padding, float64",
            lambda g: (
                normal(g, 2, 3, 4, 7, dtype=torch.float64),
                _targets(g, 4, 3, 3, 3, vocabulary=7),
            ),
        ),
        Case("large logits", _large_logits),
        Case(
            "gradient",
            lambda g: (normal(g, 2, 3, 5, 6), _targets(g, 5, 4, 1, 2, vocabulary=6)),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "padding counted as a word",
            lambda logits, target: _losses(logits, target).mean((-2, -1)),
            "The mean runs over all positions, also those where the target is padding: the model is "
            "paid for writing <pad>. Only words and <eos> count.",
        ),
        Mistake(
            "divided by all positions",
            _summed(lambda target: target.numel()),
            "Padding adds nothing to the sum, but it is counted in the number you divide by: the "
            "more padding, the smaller the loss. mean() after a mask does this.",
        ),
        Mistake(
            "mean of the sentences' means",
            _mean_of_means,
            "You take a mean for each sentence and then the mean of these, so a word in a short "
            "sentence weighs more than one in a long sentence. Here every word weighs the same: "
            "one sum, one number of words.",
        ),
        Mistake(
            "sum instead of mean",
            _summed(lambda target: 1),
            "This is the sum over the words. It grows with the batch, and the best learning rate "
            "with it. By what do you divide?",
        ),
        Mistake(
            "divided by the number of sentences",
            _summed(len),
            "The sum is divided by the number of sentences, so long sentences make a larger loss. "
            "Divide by the number of words.",
        ),
        Mistake(
            "sign turned",
            lambda logits, target: -_token_loss(logits, target),
            "The loss is negative: a logarithm of a probability is. It must become smaller as the "
            "right word becomes likelier. Look for the minus.",
        ),
        Mistake(
            "softmax twice",
            _from(lambda logits, target: -_of_target(logits.softmax(-1).log_softmax(-1), target)),
            "The logits go through softmax, and the result through log_softmax, which holds a "
            "softmax of its own. Twice flattens: even a sure and right model keeps a large loss.",
        ),
        Mistake(
            "no softmax",
            _from(lambda logits, target: -_of_target(logits, target)),
            "You take the right word's logit itself. A logit says nothing alone: the loss compares "
            "it with those of all other words, which is what the softmax is for.",
        ),
        Mistake(
            "softmax over the positions",
            _from(lambda logits, target: -_of_target(logits.log_softmax(-2), target)),
            "The probabilities sum to 1 over the positions of a sentence. At each position the "
            "words of the vocabulary compete: they are the last axis. Look at dim.",
        ),
        Mistake(
            "<eos> left out",
            lambda logits, target: _mean(_losses(logits, target), target > EOS),
            "<eos> is not counted, so the model never learns to stop. Only padding is left out.",
        ),
        Mistake(
            "shifted a second time",
            lambda logits, target: _token_loss(logits[..., :-1, :], target[:, 1:]),
            "Logits at t are compared with the target at t + 1. The inputs were shifted already, so "
            "logits and target stand at the same t.",
        ),
        Mistake(
            "one loss for all runs",
            lambda logits, target: _token_loss(logits, target).mean(),
            "All runs end up in one number. Each run is a model of its own and has its own loss: "
            "sum over sentences and positions, not over the first axis.",
        ),
        Mistake(
            "logarithm of 0",
            _from(lambda logits, target: -_of_target(logits.softmax(-1).log(), target)),
            "With large logits the right word's probability is rounded to 0, and log 0 is -inf. "
            "log_softmax never makes the probability: it takes log Σ exp away from the logit.",
        ),
    ),
    hints=(
        "For each position: the logarithm of a softmax over the words, and of that the entry of the "
        "right word, with a minus. Then a mean over what is not padding.",
        "gather(-1, index) takes one entry of each row. index needs the shape [runs, B, T_q, 1]: "
        "target.expand(logits.shape[:-1]).unsqueeze(-1).",
        "With word = target != PAD, the loss is (losses * word).sum((-2, -1)) / word.sum().",
    ),
)


# 4. One look back -----------------------------------------------------------------------------


def _hidden(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill(~real, -torch.inf).softmax(-1)


def _mixed(weights: Tensor, states: Tensor) -> Tensor:
    return (weights.unsqueeze(-2) @ states).squeeze(-2)


def _look_back(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    weights = _hidden(scores, _real(scores.shape[-1], lengths))
    return _mixed(weights, states), weights


def _weighing(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The right mixture with the weights ``weigh(scores, lengths)``."""

    def look_back(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        weights = weigh(scores, lengths)
        return _mixed(weights, states), weights

    return look_back


def _mixing(mix: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The right weights, mixed by ``mix(weights, states)``."""

    def look_back(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        _, weights = _look_back(scores, states, lengths)
        return mix(weights, states), weights

    return look_back


def _look_back_in_place(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    scores[~_real(scores.shape[-1], lengths)] = -torch.inf
    return _look_back(scores, states, lengths)


def _scores_states(
    generator: Generator, T: int, d: int, *lengths: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    scores = normal(generator, len(lengths), T, dtype=dtype)
    return scores, normal(generator, len(lengths), T, d, dtype=dtype), torch.tensor(lengths)


def _far_below(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores below -1e9, in float64, where they still differ."""
    scores, states, lengths = _scores_states(generator, 5, 3, 2, 4, dtype=torch.float64)
    return scores - 2e9, states, lengths


LOOK_BACK = Exercise(
    name=f"{NAME}.look_back",
    title="One look back",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_look_back,
    returns=("context", "weights"),
    distributions=("weights",),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 3), tenths(g, 2, 3, 2), torch.tensor([2, 3])),
        ),
        Case("batch", lambda g: _scores_states(g, 6, 5, 3, 6, 1, 5)),
        Case(
            "room behind every sentence, float64",
            lambda g: _scores_states(g, 7, 4, 4, 2, 5, dtype=torch.float64),
        ),
        Case("as many sentences as words", lambda g: _scores_states(g, 4, 3, 2, 4, 1, 3)),
        Case("scores below -1e9, float64", _far_below),
        Case("gradient", lambda g: _scores_states(g, 5, 4, 5, 2, 4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            _weighing(lambda scores, lengths: scores.softmax(-1)),
            "Padding gets weight like any word. A sentence alone and the same sentence beside a "
            "longer one would get two contexts. Look for lengths: is it used?",
        ),
        Mistake(
            "inverted mask",
            _weighing(lambda scores, lengths: _hidden(scores, ~_real(scores.shape[-1], lengths))),
            "The words are hidden and the padding is seen; where there is no padding, nothing is "
            "left, hence NaN. masked_fill fills where its mask is True: look for a missing ~.",
        ),
        Mistake(
            "off by one: some padding is seen",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths + 1))),
            "One place behind the last word is seen as well. Positions count from 0, so the last "
            "word stands at lengths - 1: look at < and <=.",
        ),
        Mistake(
            "off by one: the last word is hidden",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths - 1))),
            "The last word of every sentence is hidden; a sentence of one word has nothing left, "
            "hence NaN. Positions count from 0 and lengths do not.",
        ),
        Mistake(
            "mask after softmax",
            _weighing(lambda scores, lengths: scores.softmax(-1) * _real(scores.shape[-1], lengths)),
            "Padding gets no weight, but the weights of the words no longer sum to 1: softmax has "
            "already shared out to padding. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "zero as a score",
            _weighing(lambda scores, lengths: (scores * _real(scores.shape[-1], lengths)).softmax(-1)),
            "Padding has the score 0, and exp(0) = 1: it still gets weight. Which score has the "
            "exponential 0?",
        ),
        Mistake(
            "-1e9 as a score",
            _weighing(
                lambda scores, lengths: scores.masked_fill(~_real(scores.shape[-1], lengths), -1e9).softmax(
                    -1
                )
            ),
            "Padding has the score -1e9. One case has scores lower than that, and there padding gets "
            "all the weight. Which score is lower than all others?",
        ),
        Mistake(
            "the first sentence's length for all",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths[:1]))),
            "Every sentence is cut where the first one ends. Look for an index 0, or for a batch "
            "axis that was lost.",
        ),
        Mistake(
            "softmax over the sentences",
            _weighing(
                lambda scores, lengths: scores.masked_fill(
                    ~_real(scores.shape[-1], lengths), -torch.inf
                ).softmax(0)
            ),
            "The weights sum to 1 over the batch: the sentences compete for a position. The words "
            "of one sentence should. They are the last axis: look at dim.",
        ),
        Mistake(
            "states not summed",
            _mixing(lambda weights, states: weights.unsqueeze(-1) * states),
            "Every state is multiplied by its weight, and there it ends: one vector per word. The "
            "context is their sum.",
        ),
        Mistake(
            "mean instead of sum",
            _mixing(lambda weights, states: (weights.unsqueeze(-1) * states).mean(-2)),
            "The weighted states are averaged, which divides by T_k once more. The weights sum to 1 "
            "already, so a sum is the mean.",
        ),
        Mistake(
            "an axis too many",
            _mixing(lambda weights, states: weights.unsqueeze(-2) @ states),
            "The numbers are right, but an axis of length 1 is left over from the product. There is "
            "one query per sentence: [B, d_k]. squeeze it, by name of the axis.",
        ),
        Mistake(
            "weights returned first",
            lambda scores, states, lengths: _look_back(scores, states, lengths)[::-1],
            "The two results are the wrong way round. Return (context, weights), in this order, as "
            "the whole course does.",
        ),
        Mistake(
            "scores changed in place",
            _look_back_in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "Three steps: hide the padding, turn the scores into weights, mix the states.",
        "torch.arange(T_k) < lengths[:, None] is [B, T_k] and True for words. Scores where it is "
        "False become -inf before the softmax.",
        "weights is [B, T_k] and states [B, T_k, d_k]. weights[:, None] @ states is [B, 1, d_k], "
        "or use torch.einsum.",
    ),
)


# 5. A decoder that looks back -----------------------------------------------------------------


def _look(query: Tensor, states: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = ((query.unsqueeze(-2) + states).tanh() @ v).softmax(-1)
    return _mixed(weights, states), weights


def _look_without_tanh(query: Tensor, states: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = ((query.unsqueeze(-2) + states) @ v).softmax(-1)
    return _mixed(weights, states), weights


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
    drawn = (normal(generator, *shape, dtype=dtype) for shape in shapes)
    return tuple(one * scale for one, scale in zip(drawn, scales, strict=True))


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
            _decoder(look=_look_without_tanh),
            "Without the tanh the query adds the same number, s · v, to every score, and the softmax "
            "cancels it: the weights do not depend on the query. Look inside the score.",
        ),
        Mistake(
            "states before the update",
            _before_the_update,
            "The states stand one step late: the first is start, and the last one is missing. Keep "
            "the state after each update.",
        ),
        Mistake(
            "only the last step",
            lambda *inputs: tuple(one[:, -1] for one in _decoder()(*inputs)),
            "This is the last state with its weights. Keep those of every step: a list, and "
            "torch.stack after the loop.",
        ),
        Mistake(
            "steps stacked in front",
            lambda *inputs: tuple(one.transpose(0, 1) for one in _decoder()(*inputs)),
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
        "In a step: scores = (state[:, None] + states).tanh() @ v, then weights, then the context. "
        "Only then the new state.",
        "state = (word + context + state).tanh(). Append state and weights to two lists, and "
        "torch.stack(..., dim=1) them after the loop.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="1. The bottleneck",
    exercises=(SUMMARY, PREVIOUS_TOKENS, TOKEN_LOSS, LOOK_BACK, DECODE),
)
