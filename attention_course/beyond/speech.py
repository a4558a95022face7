"""Listen, attend and spell: frames of sound, a score that knows where it looked, what it got wrong.

The listener turns frames into states, the speller writes one symbol after another and attends before
each (Chan et al. 2016). The speller is chapter 2's ``BahdanauDecoder``; new is that its score may be
told where the step before has looked.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course import masks
from attention_course.attention import attend
from attention_course.inputs import check_at_least, check_range
from attention_course.scores import Additive
from attention_course.seq2seq import BahdanauDecoder, Memory

Lengths = Int[Tensor, " B"]
Sound = Float[Tensor, "B T bands"]
Tokens = Int[Tensor, "B T_q"]


def spectrogram(
    wave: Float[Tensor, "... samples"],
    *,
    window: int = 256,
    hop: int = 160,
    bands: int | None = None,
    floor: float = 1e-2,
) -> Float[Tensor, "... frames bands"]:
    """Return log(floor + magnitude) of each frame's frequencies, the lowest first.

    A frame is ``window`` samples under a Hann window, the next begins ``hop`` samples later, and none
    reaches over an end: ``frames_of`` says how many there are. Band b lies at b/``window`` of the
    sample rate; ``bands`` keeps the lowest so many. Shapes: wave [..., samples] -> [..., frames,
    window // 2 + 1]. Raises a ``ValueError`` for a wave shorter than the window, for sizes below 1, for
    more bands than there are, and for a floor that is not above 0.
    """
    check_at_least(1, window=window, hop=hop)
    most = window // 2 + 1
    bands = most if bands is None else bands
    if not 1 <= bands <= most:
        raise ValueError(f"bands must lie between 1 and window // 2 + 1 = {most}, got {bands}")
    if floor <= 0:
        raise ValueError(f"floor must be above 0, where the logarithm is finite, got {floor}")
    if wave.shape[-1] < window:
        raise ValueError(f"wave must have at least window = {window} samples, got {wave.shape[-1]}")
    shape = torch.hann_window(window, dtype=wave.dtype, device=wave.device)
    flat = wave.reshape(-1, wave.shape[-1])
    # center=False: torch would else mirror the sound at its ends, and begin each frame half a window early.
    found = torch.stft(flat, window, hop, window=shape, center=False, return_complex=True)
    magnitude = found.abs()[:, :bands].mT  # [N, frames, bands]
    return (magnitude + floor).log().reshape(*wave.shape[:-1], -1, bands)


def frames_of(lengths: Lengths, window: int = 256, hop: int = 160) -> Lengths:
    """Return how many whole frames fit into ``lengths`` [B] samples each.

    Raises a ``ValueError`` for a length below ``window`` and for sizes below 1.
    """
    check_at_least(1, window=window, hop=hop)
    if not lengths.is_meta and len(lengths) and lengths.min() < window:
        raise ValueError(f"lengths must be at least window = {window}, got {lengths.min()}")
    return (lengths - window) // hop + 1


def pyramid(x: Float[Tensor, "B T d"], lengths: Lengths) -> tuple[Float[Tensor, "B half twice_d"], Lengths]:
    """Return pairs of neighbouring frames side by side, and how many each clip has (Chan et al. 2016, eq. 5).

    Shapes: x [B, T, d], lengths [B] -> [B, ⌈T/2⌉, 2d] and ⌈lengths/2⌉. An odd last frame is joined with
    zeros, whatever stands behind it. Raises a ``ValueError`` for a length below 0 or above T, and for as
    many lengths as there are no clips.
    """
    B, T, d = x.shape
    _check_lengths(lengths, x)
    x = x.masked_fill(~masks.padding(lengths, T).mT, 0.0)  # else a clip's last pair holds its padding
    if T % 2:
        x = F.pad(x, (0, 0, 0, 1))
    return x.reshape(B, -1, 2 * d), (lengths + 1) // 2


def turned(x: Float[Tensor, "B T d"], lengths: Lengths) -> Float[Tensor, "B T d"]:
    """Return each clip x [B, T, d] from its last frame to its first; what stands behind it stays there.

    Raises a ``ValueError`` for a length below 0 or above T, and for as many lengths as there are no clips.
    """
    _check_lengths(lengths, x)
    time, length = torch.arange(x.shape[1], device=x.device), lengths[:, None]
    place = torch.where(time < length, length - 1 - time, time)  # [B, T]
    return x.gather(1, place.unsqueeze(-1).expand_as(x))


def location_score(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    previous: Float[Tensor, "... T_q T_k"],
    *,
    query_weight: Float[Tensor, "d_q hidden"],
    key_weight: Float[Tensor, "d_k hidden"],
    location_weight: Float[Tensor, "filters hidden"],
    filters: Float[Tensor, "filters width"],
    bias: Float[Tensor, " hidden"],
    v: Float[Tensor, " hidden"],
) -> Float[Tensor, "... T_q T_k"]:
    """Return v·tanh(W s + V h + U f + b), f the filtered weights (Chorowski et al. 2015, eq. 8-9).

    Each query brings with ``previous`` the weights of the step before its own. A filter of odd width is
    centred: tap ``width // 2`` reads the weight of the key itself, earlier taps those of earlier keys.
    Shapes: query [..., T_q, d_q], key [..., T_k, d_k], previous [..., T_q, T_k] -> [..., T_q, T_k]. Raises a
    ``ValueError`` for filters of even width and for ``previous`` of another shape.
    """
    return _with_location(query @ query_weight, key @ key_weight, previous, location_weight, filters, bias, v)


class LocationAware(Additive):
    """The additive score with a look at the step before, as a module (Chorowski et al. 2015, eq. 8-9).

    As with ``Additive``: ``project_key`` once, then ``projected(query, projected_key, previous)`` at each
    step. With ``previous`` all 0, as at the first step, it scores by content alone. Raises a
    ``ValueError`` for widths below 1 and an even ``width``.
    """

    def __init__(self, d_q: int, d_k: int, hidden: int, *, filters: int = 8, width: int = 15) -> None:
        super().__init__(d_q, d_k, hidden)
        check_at_least(1, filters=filters, width=width)
        _check_odd(width)
        self.filters = nn.Parameter(torch.empty(filters, width).uniform_(-1, 1) / width**0.5)
        self.location_weight = nn.Parameter(torch.empty(filters, hidden).uniform_(-1, 1) / filters**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(
        self,
        query: Float[Tensor, "... T_q d_q"],
        key: Float[Tensor, "... T_k d_k"],
        previous: Float[Tensor, "... T_q T_k"],
    ) -> Float[Tensor, "... T_q T_k"]:
        return self.projected(query, self.project_key(key), previous)

    def projected(
        self,
        query: Float[Tensor, "... T_q d_q"],
        projected_key: Float[Tensor, "... T_k hidden"],
        previous: Float[Tensor, "... T_q T_k"],
    ) -> Float[Tensor, "... T_q T_k"]:
        """Return the scores for keys that went through ``project_key`` before."""
        rest = (self.location_weight, self.filters, self.bias, self.v)
        return _with_location(query @ self.query_weight, projected_key, previous, *rest)


class Listener(nn.Module):
    """A GRU in both directions over the frames, and one more on top of each pyramid (Chan et al. 2016, 3.1).

    With ``levels`` 0 there is one state for each frame; each level halves them. Raises a ``ValueError``
    for sizes below 1 and negative levels.
    """

    def __init__(self, bands: int, hidden_size: int, *, levels: int = 0) -> None:
        super().__init__()
        check_at_least(1, bands=bands, hidden_size=hidden_size)
        check_at_least(0, levels=levels)
        widths = [bands] + [4 * hidden_size] * levels  # two directions of two frames
        self.onwards = nn.ModuleList(nn.GRU(width, hidden_size, batch_first=True) for width in widths)
        self.backwards = nn.ModuleList(nn.GRU(width, hidden_size, batch_first=True) for width in widths)
        self.stride = 2**levels  # frames for each state

    def forward(
        self, sound: Sound, lengths: Lengths
    ) -> tuple[Float[Tensor, "B T_k d_k"], Float[Tensor, "B d_k"], Lengths]:
        """Return states, a summary, and how many states each clip has; padding changes none of them.

        Shapes: sound [B, T, bands], lengths [B] in frames -> states [B, T_k, d_k], 0 behind each clip's
        end, summary [B, d_k] and lengths [B] in states: T_k = ⌈T / stride⌉, d_k = 2 hidden_size. Raises
        a ``ValueError`` for no clips and for a length below 1 or above T.
        """
        if not len(lengths):
            raise ValueError("sound must hold at least one clip, got none")
        _check_lengths(lengths, sound, least=1)
        states = sound
        for level, (onwards, backwards) in enumerate(zip(self.onwards, self.backwards, strict=True)):
            if level:
                states, lengths = pyramid(states, lengths)
            # Turned round, each clip ends where its padding begins, so that no state has read any. Packing
            # does the same in twice the time where the clips of a batch differ in length.
            there, _ = onwards(states)
            back, _ = backwards(turned(states, lengths))
            last = (lengths - 1)[:, None, None].expand(-1, 1, there.shape[-1])
            summary = torch.cat((there.gather(1, last), back.gather(1, last)), dim=-1).squeeze(1)
            states = torch.cat((there, turned(back, lengths)), dim=-1)
            states = states.masked_fill(~masks.padding(lengths, states.shape[1]).mT, 0.0)
        return states, summary, lengths


class Written(NamedTuple):
    """What a speller goes on from: its state, and the weights it wrote the last symbol with."""

    state: Float[Tensor, "B hidden"]
    weights: Float[Tensor, "B 1 T_k"]


class Speller(BahdanauDecoder):
    """Chapter 2's decoder with any additive score; one that is ``LocationAware`` gets the weights before.

    (Chan et al. 2016, section 3.2; Chorowski et al. 2015, section 2.1.) Its ``forward`` takes and
    returns a ``Written`` as state.
    """

    def __init__(
        self, num_tokens: int, embedding_dim: int, hidden_size: int, d_k: int, *, score: Additive
    ) -> None:
        super().__init__(num_tokens, embedding_dim, hidden_size, d_k)
        self.score = score

    def forward(
        self, previous: Tokens, memory: Memory, state: Written | None = None
    ) -> tuple[Float[Tensor, "B T_q vocabulary"], Float[Tensor, "B T_q T_k"], Written]:
        """Return the next tokens' logits, the weights they were written with, and what to go on from.

        Shapes: previous [B, T_q] -> logits [B, T_q, num_tokens], weights [B, T_q, T_k].
        """
        if state is None:  # nowhere has been looked yet
            start = self.start(memory.summary).tanh()
            state = Written(start, torch.zeros_like(memory.mask, dtype=start.dtype))
        hidden, weight = state
        embedded = self.embedding(previous)  # [B, T_q, embedding_dim]
        states, contexts, weights = [], [], []
        for word in embedded.unbind(1):  # [B, embedding_dim]
            score = self.score.projected
            if isinstance(self.score, LocationAware):
                score = partial(score, previous=weight)
            context, weight = attend(
                hidden.unsqueeze(1), memory.keys, memory.values, attn_mask=memory.mask, score=score
            )  # [B, 1, d_k], [B, 1, T_k]
            hidden = self.cell(torch.cat((word, context.squeeze(1)), dim=-1), hidden)
            states.append(hidden)
            contexts.append(context)
            weights.append(weight)
        read = (torch.stack(states, 1), torch.cat(contexts, 1), embedded)
        return self.output(torch.cat(read, dim=-1)), torch.cat(weights, 1), Written(hidden, weight)


class ListenAttendSpell(nn.Module):
    """A listener and a speller (Chan et al. 2016)."""

    def __init__(self, listener: Listener, speller: Speller) -> None:
        super().__init__()
        self.listener = listener
        self.speller = speller

    def read(self, sound: Sound, lengths: Lengths) -> Memory:
        """Return what the speller keeps of ``sound`` [B, T, bands] with ``lengths`` [B] frames."""
        return self.speller.remember(*self.listener(sound, lengths))

    def forward(
        self, sound: Sound, lengths: Lengths, previous: Tokens
    ) -> tuple[Float[Tensor, "B T_q vocabulary"], Float[Tensor, "B T_q T_k"]]:
        """Return logits and weights with the right symbols fed in: teacher forcing."""
        logits, weights, _ = self.speller(previous, self.read(sound, lengths))
        return logits, weights


@torch.no_grad()
def spell(
    model: ListenAttendSpell, sound: Sound, lengths: Lengths, *, bos: int, eos: int, max_length: int
) -> tuple[Tokens, Float[Tensor, "B T_q T_k"]]:
    """Return the most likely symbol at every step, each fed back in: ``seq2seq.greedy`` for sound.

    Shapes: sound [B, T, bands], lengths [B] -> tokens [B, T_q] and weights [B, T_q, T_k]. T_q ends with
    the last clip's ``eos``, at ``max_length`` at the latest; behind a clip's first ``eos`` is ``eos``.
    Raises a ``ValueError`` for a ``max_length`` below 1, and a model in training mode.
    """
    if model.training:
        raise ValueError("model must be in evaluation mode, where nothing is dropped: call model.eval()")
    check_at_least(1, max_length=max_length)
    memory, state = model.read(sound, lengths), None
    token = torch.full((len(sound), 1), bos, device=sound.device)
    ended = torch.zeros_like(token, dtype=torch.bool)
    tokens, weights = [], []
    while len(tokens) < max_length and not ended.all():
        logits, weight, state = model.speller(token, memory, state)
        token = logits.argmax(-1).masked_fill(ended, eos)  # [B, 1]
        ended = ended | (token == eos)
        tokens.append(token)
        weights.append(weight)
    return torch.cat(tokens, 1), torch.cat(weights, 1)


def edit_distance(said: Sequence[int], right: Sequence[int]) -> int:
    """Return the fewest symbols to put in, take out or exchange to make one the other (Levenshtein 1966)."""
    row = list(range(len(right) + 1))  # from nothing said to the first so many right ones
    for i, spoken in enumerate(said, start=1):
        before, row = row, [i]
        for j, wanted in enumerate(right, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (spoken != wanted)))
    return row[-1]


def error_rate(said: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    """Return the edit distances of all clips over the symbols of all: 0 is perfect, 1 as bad as silence.

    Both are summed before one is divided by the other, so that every symbol counts the same. More than
    1 is possible. Raises a ``ValueError`` for clips that do not pair up, and where nothing is right.
    """
    if len(said) != len(right):
        raise ValueError(f"said and right must have as many clips, got {len(said)} and {len(right)}")
    symbols = sum(map(len, right))
    if not symbols:
        raise ValueError("right must hold at least one symbol, got none")
    return sum(map(edit_distance, said, right)) / symbols


def _with_location(
    query: Tensor,
    key: Tensor,
    previous: Tensor,
    location_weight: Tensor,
    filters: Tensor,
    bias: Tensor,
    v: Tensor,
) -> Float[Tensor, "... T_q T_k"]:
    """Equation 9 for queries [..., T_q, hidden] and keys [..., T_k, hidden] that are projected already."""
    if previous.shape[-2:] != (query.shape[-2], key.shape[-2]):
        raise ValueError(
            f"previous must have shape [..., T_q, T_k] = [..., {query.shape[-2]}, {key.shape[-2]}], "
            f"got {tuple(previous.shape)}"
        )
    _check_odd(filters.shape[-1])
    rows = previous.reshape(-1, 1, previous.shape[-1])  # [N, 1, T_k]: every row under every filter
    seen = F.conv1d(rows, filters.unsqueeze(1), padding=filters.shape[-1] // 2)  # [N, filters, T_k]
    location = (seen.mT @ location_weight).reshape(*previous.shape, -1)  # [..., T_q, T_k, hidden]
    return (query.unsqueeze(-2) + key.unsqueeze(-3) + location + bias).tanh() @ v


def _check_odd(width: int) -> None:
    if width % 2 == 0:
        raise ValueError(f"a filter's width must be odd, so that it has a middle, got {width}")


def _check_lengths(lengths: Tensor, x: Tensor, least: int = 0) -> None:
    if len(lengths) != len(x):
        raise ValueError(f"lengths must be one for each of {len(x)} clips, got {len(lengths)}")
    check_range("lengths", lengths, least, x.shape[1], f"T = {x.shape[1]}")
