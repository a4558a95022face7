"""Chapter 15's listeners: what they write of key tones in noise, and where they look while they do.

Two arms have the same listener and the same speller and as many parameters. One scores by content
alone, the other also by where the step before has looked.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.beyond.speech import (
    ListenAttendSpell,
    Listener,
    LocationAware,
    Speller,
    frames_of,
    spectrogram,
    spell,
)
from attention_course.inputs import check_choice
from attention_course.lab.data import tones
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.scores import Additive

#: frames of 256 samples every 160: 32 and 20 milliseconds
WINDOW, HOP = 256, 160
#: bands of 31.25 hertz each, from 625 to 1750 hertz: the keys' tones lie between
LOW, HIGH = 20, 56
#: the symbols behind the sixteen keys, and what the loss leaves out
BOS, EOS, IGNORED = len(tones.KEYS), len(tones.KEYS) + 1, -1
#: how far the tones stand above the noise of training clips, in decibels
TRAINED = (0.0, 20.0)
#: the scores that are compared, with the width that gives both as many parameters
SCORES = {"content": 71, "location": 64}


class Batch(NamedTuple):
    """Clips as the models hear them, and the keys that they should write."""

    sound: Float[Tensor, "B T bands"]
    lengths: Int[Tensor, " B"]
    keys: Int[Tensor, "B most"]


class Heard(NamedTuple):
    """What a model wrote of each clip, what is right, and where it looked [B, T_q, T_k]."""

    said: list[list[int]]
    right: list[list[int]]
    weights: Float[Tensor, "B T_q T_k"]


def build(kind: str, *, levels: int = 1, hidden: int = 32) -> ListenAttendSpell:
    """Return an untrained model whose score is one of ``SCORES``, over a pyramid of ``levels``.

    Raises a ``ValueError`` for another ``kind``.
    """
    check_choice("kind", kind, SCORES)
    d_k, size = 2 * hidden, 64
    score = (LocationAware if kind == "location" else Additive)(size, d_k, SCORES[kind])
    speller = Speller(len(tones.KEYS) + 2, 16, size, d_k, score=score)
    return ListenAttendSpell(Listener(HIGH - LOW, hidden, levels=levels), speller)


def recorded(clips: tones.Clips, decibels: Float[Tensor, " n"], generator: torch.Generator) -> Batch:
    """Return the spectrograms of ``clips`` under noise; the frames behind a clip's end are noise too."""
    wave = tones.noisy(clips.wave, decibels, generator)
    sound = spectrogram(wave, window=WINDOW, hop=HOP, bands=HIGH)[..., LOW:]
    return Batch(sound, frames_of(clips.lengths, WINDOW, HOP), clips.keys)


def training_data(size: int, seed: int) -> Batch:
    """Return ``size`` clips of three to six keys, each with a noise of its own between 0 and 20 decibels."""
    generator = torch.Generator().manual_seed(seed)
    clips = tones.draw(size, generator)
    low, high = TRAINED
    decibels = low + (high - low) * torch.rand(size, generator=generator)
    return recorded(clips, decibels, generator)


class Asked(NamedTuple):
    """Clips of one kind, without noise, and as the models hear them at some decibels."""

    clips: tones.Clips
    batch: Batch


def held_out(size: int, seed: int) -> dict[str, Asked]:
    """Return ``size`` clips of each kind that the page asks about.

    "20 dB" to "-5 dB" are clips like the training's, the same ones at each noise; "one key" presses one
    key three to six times, and "ten keys" is longer than any clip of the training, both at 10 decibels.
    """
    generator = torch.Generator().manual_seed(seed)
    usual = tones.draw(size, generator)
    one = tones.draw(size, generator, different=1)
    ten = tones.draw(size, generator, count=(10, 10))

    def at(decibels: float, clips: tones.Clips) -> Asked:
        return Asked(clips, recorded(clips, torch.full((size,), decibels), generator))

    sets = {f"{decibels} dB": at(float(decibels), usual) for decibels in (20, 10, 0, -5)}
    return sets | {"one key": at(10.0, one), "ten keys": at(10.0, ten)}


def batches(data: Batch, size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Return an endless stream of ``size`` clips, each time round in a new order.

    Eight batches at a time are sorted by length before they are cut: less padding, a third less time.
    """
    while True:
        for some in torch.randperm(len(data.keys), generator=generator).split(8 * size):
            cut = some[data.lengths[some].argsort()].split(size)
            for i in torch.randperm(len(cut), generator=generator).tolist():
                sound, lengths, keys = (part[cut[i]] for part in data)
                yield Batch(sound[:, : int(lengths.max())], lengths, keys)


def loss(model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of all keys and of the end, the right keys before them fed in."""
    before = F.pad(batch.keys, (1, 0), value=BOS)
    target = F.pad(batch.keys, (0, 1), value=IGNORED)
    count = (batch.keys >= 0).sum(1, keepdim=True)
    target = target.scatter(1, count, EOS)
    logits, _ = model(batch.sound, batch.lengths, before.where(before >= 0, EOS))
    return F.cross_entropy(logits.mT, target, ignore_index=IGNORED)


def hear(model: ListenAttendSpell, batch: Batch) -> Heard:
    """Return what ``model`` writes by itself: its own keys fed back in, nothing of the right ones."""
    most = batch.keys.shape[1]
    tokens, weights = spell(model, batch.sound, batch.lengths, bos=BOS, eos=EOS, max_length=most + 4)
    said = [row[: row.index(EOS)] if EOS in row else row for row in tokens.tolist()]
    right = [[key for key in row if key >= 0] for row in batch.keys.tolist()]
    return Heard(said, right, weights)


class Aim(NamedTuple):
    """Where rightly written clips were looked at."""

    inside: float
    forward: float


def aim(heard: Heard, clips: tones.Clips, stride: int = 1) -> Aim:
    """Return how often the largest weight lies on its key's tone, and how often no look goes back.

    Only clips whose keys are all right count. A state stands for ``stride`` frames; it lies on the tone
    if the stretch of sound that they cover shares a sample with it. ``forward`` is the share of clips
    whose largest weights come in the order of time, the one for the end left out.
    """
    inside, forward = [], []
    for b, (said, right) in enumerate(zip(heard.said, heard.right, strict=True)):
        if said != right:
            continue
        looks = heard.weights[b, : len(right)].argmax(-1)  # [keys], in states
        first = looks * stride * HOP
        last = first + (stride - 1) * HOP + WINDOW
        inside += ((first < clips.end[b, : len(right)]) & (last > clips.begin[b, : len(right)])).tolist()
        forward.append(bool((looks.diff() >= 0).all()))
    return Aim(sum(inside) / max(len(inside), 1), sum(forward) / max(len(forward), 1))


def trial(
    kind: str,
    seed: int,
    data: Batch,
    tests: Mapping[str, Batch],
    *,
    levels: int = 1,
    hidden: int = 32,
    steps: int = 240,
    learning_rate: float = 0.012,
) -> dict[str, Any]:
    """Train one model on ``data``; return it and what it hears of each of ``tests``.

    Besides "model" and "heard": "kind", "losses" of every step, "parameters" and "seconds".
    """
    torch.manual_seed(seed)
    model = build(kind, levels=levels, hidden=hidden)
    stream = batches(data, 64, torch.Generator().manual_seed(seed))
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    return {
        "model": model,
        "kind": kind,
        "heard": {name: hear(model, batch) for name, batch in tests.items()},
        "losses": history.losses,
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }
