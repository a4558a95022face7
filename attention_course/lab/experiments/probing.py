"""Which usual sentences about a Transformer's heads hold for one real encoder?

Chapter 13 asks all heads of all-MiniLM-L6-v2 what they look at: patterns in running text, relations in
generated sentences. Each answer stands beside what it has to beat: even weights or a fixed step, the same
words in random order, the same architecture before training. Then heads are taken out.
"""

import copy
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.inside import probes
from attention_course.inside.gates import gated, importance
from attention_course.inside.pretrained import Batch, Pretrained, pool
from attention_course.lab.data import sentences
from attention_course.lab.data.sentences import Sentence

RELATIONS = {
    "determiner → noun": sentences.determiners,
    "verb → subject": sentences.subjects,
    "pronoun → antecedent": sentences.pronouns,
}
#: how many heads are out at each point of the curves; the model has 72
COUNTS = (0, 12, 24, 36, 48, 60, 72)

Scores = Float[Tensor, "layers h"]


class Pattern(NamedTuple):
    """A pattern's score: the head that was chosen, all heads' means, and the baseline of even weights."""

    probe: probes.Probe
    scores: Scores
    uniform: float


class Relation(NamedTuple):
    """A relation's score and what it has to beat, all of it on sentences that nothing was chosen on.

    ``shuffled`` is what the chosen head scores when the words stand in random order, with its interval;
    ``untrained`` the best head of the model with its first weights, chosen in the same way; ``places``
    the better of a fixed step and a fixed place in the sentence; ``scores`` and ``shuffled_scores`` those of
    all heads; ``by_distance`` the chosen head's.
    """

    probe: probes.Probe
    places: float
    guess: float
    shuffled: float
    shuffled_interval: tuple[float, float]
    untrained: float
    scores: Scores
    shuffled_scores: Scores
    by_distance: dict[int, float]


class Ablation(NamedTuple):
    """Mean cosine to the full model's embedding after so many heads were taken out, for each order.

    ``random`` has a row for each random order; ``alone`` is the cosine when only one head is out, on the
    sentences that the orders were made on; ``strangers`` the mean cosine of two different sentences;
    ``retrieved`` how often the nearest full embedding is still the sentence's own with all heads out.
    """

    counts: tuple[int, ...]
    by_gradient: list[float]
    one_by_one: list[float]
    random: list[list[float]]
    alone: Scores
    importance: Scores
    strangers: float
    retrieved: float


@torch.no_grad()
def weights(pretrained: Pretrained, texts: Sequence[str]) -> tuple[Float[Tensor, "layers B h T T"], Batch]:
    """Return what every head does with the texts, and their tokens."""
    batch = pretrained.tokens(texts)
    _, seen = pretrained.model(batch.tokens, batch.lengths, need_weights=True)
    return torch.stack(seen), batch


def untrained(pretrained: Pretrained, seed: int) -> Pretrained:
    """Return the same architecture with weights as BERT's are before training: normal, deviation 0.02.

    Norms start as the identity and biases at 0 (Devlin et al. 2019).
    """
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(pretrained.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                first = torch.randn(parameter.shape, generator=generator) * 0.02
                parameter.copy_(first)
            else:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return pretrained._replace(model=model)


def patterns(pretrained: Pretrained, number: int, seed: int) -> tuple[dict[str, Pattern], dict[str, Pattern]]:
    """Return every pattern's share of the weight, and how often it gets the largest, in running text.

    The second leaves special tokens out, and with them the patterns that point to one.
    """
    seen, batch = weights(pretrained, sentences.running_text(number, seed))
    shares, counts = {}, {}
    for name, looked in probes.patterns(batch.tokens, batch.lengths).items():
        baseline = probes.uniform(looked, batch.lengths).item()
        shares[name] = _pattern(probes.share(seen, looked), baseline)
        if name not in ("first", "separator"):
            counts[name] = _pattern(probes.largest(seen, looked, batch.lengths), baseline)
    return shares, counts


class Asked(NamedTuple):
    """What every head gives from the word that asks to every word, and which words are what."""

    given: Float[Tensor, "layers h B words"]
    source: Int[Tensor, " B"]
    target: Int[Tensor, " B"]
    words: Bool[Tensor, "B words"]
    nouns: Bool[Tensor, "B words"]


def ask(pretrained: Pretrained, drawn: list[Sentence]) -> Asked:
    """Return what the heads give from each sentence's asking word."""
    seen, batch = weights(pretrained, [sentence.text for sentence in drawn])
    device = seen.device
    source = torch.tensor([sentence.source for sentence in drawn], device=device)
    target = torch.tensor([sentence.target for sentence in drawn], device=device)
    given = probes.from_word(seen, probes.words_of(batch.words).to(device), source)
    shape = (len(drawn), given.shape[-1])
    words, nouns = (torch.zeros(shape, dtype=torch.bool, device=device) for _ in range(2))
    for b, sentence in enumerate(drawn):
        words[b, : len(sentence.words)] = True
        nouns[b, list(sentence.nouns)] = True
    return Asked(given, source, target, words, nouns)


def relation(plain: Asked, mixed: Asked, before: Asked, *, nouns_only: bool = False) -> Relation:
    """Return how well the heads find the right word: in order, with ``mixed`` words, ``before`` training.

    With ``nouns_only`` only nouns compete for the largest weight, and what has to be beaten is the
    commonest place among the nouns: always the first, the second and so on.
    """
    right, without_order, untaught = (_hits(asked, nouns_only) for asked in (plain, mixed, before))
    probe = probes.best_head(right)
    _, odd = probes.halves(right.shape[-1])
    chosen = (probe.layer - 1, probe.head - 1)
    same_head, own = without_order[chosen][odd].float(), right[chosen][odd].float()
    steps = (plain.target - plain.source)[odd]
    candidates = plain.nouns if nouns_only else plain.words
    guess = 1 / (candidates.sum(1) - (0 if nouns_only else 1))  # the asker is a word, and no noun
    return Relation(
        probe,
        _best_place(plain, nouns_only)[odd].float().mean().item(),
        guess[odd].mean().item(),
        same_head.mean().item(),
        probes.interval(same_head),
        probes.best_head(untaught).reported,
        right[..., odd].float().mean(-1),
        without_order[..., odd].float().mean(-1),
        {int(step): own[steps == step].mean().item() for step in steps.unique()},
    )


def ablation(
    pretrained: Pretrained,
    *,
    to_order: Sequence[str],
    to_report: Sequence[str],
    orders: int = 5,
    seed: int = 0,
    counts: Sequence[int] = COUNTS,
) -> Ablation:
    """Take heads out, the least important first, and compare embeddings with the full model's.

    Importance is measured on ``to_order``: by the gradient of a contrastive loss, and by leaving out one
    head at a time. Curves are measured on ``to_report``, and so are ``orders`` random orders.
    """
    practice, test = pretrained.tokens(to_order), pretrained.tokens(to_report)
    by_gradient = gradient_importance(pretrained, practice)
    alone = leave_one_out(pretrained, practice)
    full = embedded(pretrained, test)
    draw = random.Random(seed)
    shuffles = [draw.sample(probes.order(alone), alone.numel()) for _ in range(orders)]

    nothing = embedded(pretrained, test, torch.zeros_like(alone))
    ends = {0: 1.0, alone.numel(): (nothing * full).sum(-1).mean().item()}  # the same for all orders

    def curve(order: list[tuple[int, int]]) -> list[float]:
        return [
            ends[count] if count in ends else _kept(pretrained, test, full, order[:count]) for count in counts
        ]

    every = torch.arange(len(full), device=full.device)
    between = full @ full.mT
    return Ablation(
        tuple(counts),
        curve(probes.order(by_gradient)),
        curve(probes.order(1 - alone)),
        [curve(order) for order in shuffles],
        alone,
        by_gradient,
        ((between.sum() - between.trace()) / (len(full) * (len(full) - 1))).item(),
        ((nothing @ full.mT).argmax(1) == every).float().mean().item(),
    )


@torch.no_grad()
def embedded(pretrained: Pretrained, batch: Batch, gates: Tensor | None = None) -> Float[Tensor, "B d_model"]:
    """Return the sentences' unit vectors, with ``gates`` [layers, h] or [layers, B, h] on the heads."""
    if gates is None:
        return pool(pretrained.model(batch.tokens, batch.lengths)[0], batch.lengths)
    with gated(pretrained.model, gates):
        return pool(pretrained.model(batch.tokens, batch.lengths)[0], batch.lengths)


def contrastive(
    vectors: Float[Tensor, "B d_model"], full: Float[Tensor, "B d_model"], temperature: float = 0.2
) -> Float[Tensor, " B"]:
    """Return InfoNCE (van den Oord et al. 2018): is each vector nearest to its own sentence's full one?

    The cosine to the full vector alone would not do: it is largest at gates of 1, so its gradient is 0.
    At the temperature 0.05 of the model's own training the loss is nearly 0, and so is what it tells.
    """
    own = torch.arange(len(full), device=full.device)
    return F.cross_entropy(vectors @ full.mT / temperature, own, reduction="none")


def gradient_importance(pretrained: Pretrained, batch: Batch) -> Scores:
    """Return |∂loss/∂gate| of every head (Michel et al. 2019), for the ``contrastive`` loss."""
    full = embedded(pretrained, batch)

    def losses() -> Float[Tensor, " B"]:
        return contrastive(pool(pretrained.model(batch.tokens, batch.lengths)[0], batch.lengths), full)

    return importance(pretrained.model, losses, sentences=len(full))


def leave_one_out(pretrained: Pretrained, batch: Batch) -> Scores:
    """Return the mean cosine to the full embedding with one head out, for each of them."""
    full = embedded(pretrained, batch)
    layers, heads = _shape(pretrained)
    B = len(full)
    repeated = Batch(
        batch.tokens.repeat(heads, 1), batch.lengths.repeat(heads), [list(w) for w in batch.words] * heads
    )
    rows = []
    for layer in range(layers):  # all heads of a layer at once: every copy of the sentences lacks another
        gates = torch.ones(layers, heads * B, heads, device=full.device)
        gates[layer] = 1 - torch.eye(heads, device=full.device).repeat_interleave(B, 0)
        rows.append((embedded(pretrained, repeated, gates).unflatten(0, (heads, B)) * full).sum(-1).mean(1))
    return torch.stack(rows)


def _kept(
    pretrained: Pretrained, batch: Batch, full: Float[Tensor, "B d_model"], out: list[tuple[int, int]]
) -> float:
    gates = probes.gates_without(out, *_shape(pretrained)).to(full.device)
    return (embedded(pretrained, batch, gates) * full).sum(-1).mean().item()


def _shape(pretrained: Pretrained) -> tuple[int, int]:
    layers = pretrained.model.stack.layers
    return len(layers), layers[0].attention.num_heads


def _pattern(scores: Float[Tensor, "layers h sentences"], baseline: float) -> Pattern:
    return Pattern(probes.best_head(scores), scores.mean(-1), baseline)


def _hits(asked: Asked, nouns_only: bool) -> Bool[Tensor, "layers h B"]:
    candidates = asked.nouns if nouns_only else asked.words
    return probes.hits(asked.given, asked.source, asked.target, candidates)


def _best_place(asked: Asked, nouns_only: bool) -> Bool[Tensor, " B"]:
    """Where the better of "so many words on" and "always the n-th word" is right; even sentences choose."""
    even, _ = probes.halves(len(asked.source))
    start = torch.zeros_like(asked.source)
    if nouns_only:
        rank = asked.nouns.cumsum(1).gather(1, asked.target[:, None]).squeeze(1)
        return probes.best_offset(start, rank, even)
    steps = [probes.best_offset(source, asked.target, even) for source in (asked.source, start)]
    return max(steps, key=lambda right: right[even].sum().item())
