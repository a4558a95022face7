"""A recurrent encoder, and decoders that read a fixed vector or attend: before or after each state.

The encoder turns a source sentence into one state per token and one summary of the whole. A decoder
writes the target token by token: given the tokens before it, it returns the logits of the next.
What a decoder may read is its ``memory``, made once per sentence by ``remember``. For the fixed
vector that is the summary; for attention, the states too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course import local, masks
from attention_course.attention import attend
from attention_course.scores import Additive, ScoreModule

Tokens = Int[Tensor, "B T_q"]
States = Float[Tensor, "B T_k d_k"]
Summary = Float[Tensor, "B d_k"]
Lengths = Int[Tensor, " B"]
State = Float[Tensor, "B hidden"]
Logits = Float[Tensor, "B T_q vocabulary"]
Weights = Float[Tensor, "B T_q T_k"]


class Encoder(nn.Module):
    """A GRU over the source, in both directions unless told (Bahdanau et al. 2015, section 3.2)."""

    def __init__(
        self, num_tokens: int, embedding_dim: int, hidden_size: int, *, bidirectional: bool = True
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding_dim)
        self.rnn = nn.GRU(embedding_dim, hidden_size, batch_first=True, bidirectional=bidirectional)

    def forward(self, source: Int[Tensor, "B T_k"], lengths: Lengths) -> tuple[States, Summary]:
        """Return one state per token and a summary of the sentence; padding changes neither.

        Shapes: source [B, T_k], lengths [B] -> states [B, T_k, d_k], 0 behind each sentence's end,
        and summary [B, d_k]: the last state read forwards, beside it the last state read backwards.
        d_k is hidden_size for each direction. Raises a ``ValueError`` for no sentences and for a
        length below 1 or above T_k.
        """
        if not len(lengths):
            raise ValueError("source must hold at least one sentence, got none")
        if lengths.min() < 1 or lengths.max() > source.shape[1]:
            raise ValueError(
                f"lengths must lie between 1 and T_k = {source.shape[1]}, "
                f"got {lengths.min()} to {lengths.max()}"
            )
        embedded = self.embedding(source)  # [B, T_k, embedding_dim]
        if (lengths == source.shape[1]).all():  # nothing is padding, and packing costs a third of the time
            states, last = self.rnn(embedded)
        else:
            # Packed, the backward GRU starts at each sentence's own last token, not in its padding.
            packed = nn.utils.rnn.pack_padded_sequence(
                embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            states, last = self.rnn(packed)  # last [directions, B, hidden_size]
            states, _ = nn.utils.rnn.pad_packed_sequence(
                states, batch_first=True, total_length=source.shape[1]
            )
        return states, torch.cat(tuple(last), dim=-1)


class FixedVectorDecoder(nn.Module):
    """A GRU that reads one vector of the source at every step (Cho et al. 2014, section 2.2)."""

    def __init__(self, num_tokens: int, embedding_dim: int, hidden_size: int, d_k: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding_dim)
        self.start = nn.Linear(d_k, hidden_size)
        self.rnn = nn.GRU(embedding_dim + d_k, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size + d_k + embedding_dim, num_tokens)

    def remember(self, states: States, summary: Summary, lengths: Lengths) -> Summary:
        """Return all that this decoder keeps of the source: the summary."""
        return summary

    def forward(
        self, previous: Tokens, memory: Summary, state: State | None = None
    ) -> tuple[Logits, None, State]:
        """Return the next tokens' logits, no weights, and the last state to go on from.

        Shapes: previous [B, T_q], memory [B, d_k], state [B, hidden] or ``None`` at the start ->
        logits [B, T_q, num_tokens], None, state [B, hidden].
        """
        if state is None:
            state = self.start(memory).tanh()
        embedded = self.embedding(previous)  # [B, T_q, embedding_dim]
        context = memory.unsqueeze(1).expand(-1, previous.shape[1], -1)  # [B, T_q, d_k]: T_q times the same
        states, _ = self.rnn(torch.cat((embedded, context), dim=-1), state.unsqueeze(0))  # [B, T_q, hidden]
        logits = self.output(torch.cat((states, context, embedded), dim=-1))
        return logits, None, states[:, -1]


class Memory(NamedTuple):
    """What an attending decoder keeps of the source: keys to score, values to mix, who is padding."""

    keys: Float[Tensor, "B T_k prepared"]
    values: States
    mask: Bool[Tensor, "B 1 T_k"]
    summary: Summary


class BahdanauDecoder(nn.Module):
    """A GRU that attends before each update of its state (Bahdanau et al. 2015, section 3.1)."""

    def __init__(self, num_tokens: int, embedding_dim: int, hidden_size: int, d_k: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding_dim)
        self.start = nn.Linear(d_k, hidden_size)
        self.score = Additive(hidden_size, d_k, hidden_size)
        self.cell = nn.GRUCell(embedding_dim + d_k, hidden_size)
        self.output = nn.Linear(hidden_size + d_k + embedding_dim, num_tokens)

    def remember(self, states: States, summary: Summary, lengths: Lengths) -> Memory:
        """Return the states as values and, projected once for all steps, as keys."""
        mask = masks.padding(lengths, states.shape[1])
        return Memory(self.score.project_key(states), states, mask, summary)

    def forward(
        self, previous: Tokens, memory: Memory, state: State | None = None
    ) -> tuple[Logits, Weights, State]:
        """Return the next tokens' logits, the weights they were written with, and the last state.

        Shapes: previous [B, T_q], state [B, hidden] or ``None`` at the start -> logits
        [B, T_q, num_tokens], weights [B, T_q, T_k], state [B, hidden].
        """
        if state is None:
            state = self.start(memory.summary).tanh()
        embedded = self.embedding(previous)  # [B, T_q, embedding_dim]
        states, contexts, weights = [], [], []
        for word in embedded.unbind(1):  # [B, embedding_dim]
            query = state.unsqueeze(1)  # [B, 1, hidden]: the state *before* this step
            context, weight = attend(
                query, memory.keys, memory.values, attn_mask=memory.mask, score=self.score.projected
            )  # [B, 1, d_k], [B, 1, T_k]
            state = self.cell(torch.cat((word, context.squeeze(1)), dim=-1), state)
            states.append(state)
            contexts.append(context)
            weights.append(weight)
        read = (torch.stack(states, 1), torch.cat(contexts, 1), embedded)
        logits = self.output(torch.cat(read, dim=-1))
        return logits, torch.cat(weights, 1), state


class LuongDecoder(nn.Module):
    """A GRU that attends after each update of its state, with any score (Luong et al. 2015, section 3.1).

    Without the paper's input feeding: the context does not enter the GRU, so all steps of a known
    target are one call of it, and one call of the score.
    """

    def __init__(
        self, num_tokens: int, embedding_dim: int, hidden_size: int, d_k: int, *, score: ScoreModule
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, embedding_dim)
        self.start = nn.Linear(d_k, hidden_size)
        self.rnn = nn.GRU(embedding_dim, hidden_size, batch_first=True)
        self.score = score
        self.combine = nn.Linear(d_k + hidden_size, hidden_size, bias=False)
        self.output = nn.Linear(hidden_size, num_tokens)

    def remember(self, states: States, summary: Summary, lengths: Lengths) -> Memory:
        """Return the states as values and, prepared once for all steps, as keys."""
        mask = masks.padding(lengths, states.shape[1])
        return Memory(self.score.project_key(states), states, mask, summary)

    def forward(
        self, previous: Tokens, memory: Memory, state: State | None = None
    ) -> tuple[Logits, Weights, State]:
        """Return the next tokens' logits, the weights they were written with, and the last state.

        Shapes: previous [B, T_q], state [B, hidden] or ``None`` at the start -> logits
        [B, T_q, num_tokens], weights [B, T_q, T_k], state [B, hidden].
        """
        queries = self.advance(previous, memory, state)  # [B, T_q, hidden]: the states *after* each step
        context, weights = attend(
            queries, memory.keys, memory.values, attn_mask=memory.mask, score=self.score.projected
        )  # [B, T_q, d_k], [B, T_q, T_k]
        return self.write(queries, context), weights, queries[:, -1]

    def advance(self, previous: Tokens, memory: Memory, state: State | None) -> Float[Tensor, "B T_q hidden"]:
        """Return the state after each of the tokens ``previous`` [B, T_q]."""
        if state is None:
            state = self.start(memory.summary).tanh()
        states, _ = self.rnn(self.embedding(previous), state.unsqueeze(0))
        return states

    def write(self, states: Float[Tensor, "B T_q hidden"], context: Float[Tensor, "B T_q d_k"]) -> Logits:
        """Return the logits of the attentional vector tanh(W_c [c; s]) (Luong et al. 2015, equations 5-6)."""
        return self.output(self.combine(torch.cat((context, states), dim=-1)).tanh())


class Progress(NamedTuple):
    """How far a ``LocalDecoder`` has come: its state, and the number of tokens it has read."""

    state: State
    steps: int


class LocalDecoder(LuongDecoder):
    """As ``LuongDecoder``, but each query sees a window of the source (Luong et al. 2015, section 3.2).

    ``where`` says which window: ``local.Monotonic`` or ``local.Predictive``.
    """

    def __init__(
        self,
        num_tokens: int,
        embedding_dim: int,
        hidden_size: int,
        d_k: int,
        *,
        score: ScoreModule,
        where: local.Monotonic | local.Predictive,
    ) -> None:
        super().__init__(num_tokens, embedding_dim, hidden_size, d_k, score=score)
        self.where = where

    def forward(
        self, previous: Tokens, memory: Memory, state: Progress | None = None
    ) -> tuple[Logits, Weights, Progress]:
        """Return logits [B, T_q, num_tokens], weights [B, T_q, T_k] and how far the decoder has come."""
        before, steps = (None, 0) if state is None else state
        queries = self.advance(previous, memory, before)
        context, weights = self.where(
            queries, memory.keys, memory.values, memory.mask, first=steps, score=self.score.projected
        )
        progress = Progress(queries[:, -1], steps + previous.shape[1])
        return self.write(queries, context), weights, progress


class EncoderDecoder(nn.Module):
    """An encoder and a decoder (Sutskever et al. 2014; Cho et al. 2014)."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def read(self, source: Int[Tensor, "B T_k"], lengths: Lengths) -> Any:
        """Return what the decoder keeps of ``source`` [B, T_k] with ``lengths`` [B]."""
        return self.decoder.remember(*self.encoder(source, lengths), lengths)

    def forward(
        self, source: Int[Tensor, "B T_k"], lengths: Lengths, previous: Tokens
    ) -> tuple[Logits, Weights | None]:
        """Return logits and weights with the right tokens fed in: teacher forcing.

        Shapes: source [B, T_k], lengths [B], previous [B, T_q] -> logits [B, T_q, num_tokens],
        weights [B, T_q, T_k], or ``None`` from a decoder without attention.
        """
        logits, weights, _ = self.decoder(previous, self.read(source, lengths))
        return logits, weights


def recurrent(
    decoder: Callable[..., nn.Module],
    num_source: int,
    num_target: int,
    *,
    embedding_dim: int,
    hidden_size: int,
    bidirectional: bool = True,
) -> EncoderDecoder:
    """Return an encoder-decoder: ``hidden_size`` numbers in a decoder's state and in an encoder's.

    ``decoder`` is a decoder's class, or a ``partial`` of one that needs more than sizes. Where the
    encoder has two directions, each has half of ``hidden_size``. Raises a ``ValueError`` for an odd
    number then.
    """
    if bidirectional and hidden_size % 2:
        raise ValueError(f"hidden_size must be even, got {hidden_size}")
    per_direction = hidden_size // 2 if bidirectional else hidden_size
    return EncoderDecoder(
        Encoder(num_source, embedding_dim, per_direction, bidirectional=bidirectional),
        decoder(num_target, embedding_dim, hidden_size, d_k=hidden_size),
    )


@torch.no_grad()
def greedy(
    model: EncoderDecoder,
    source: Int[Tensor, "B T_k"],
    lengths: Lengths,
    *,
    bos: int,
    eos: int,
    max_length: int,
) -> tuple[Tokens, Weights | None]:
    """Return the most likely token at every step, each fed back in as the next step's input.

    Shapes: source [B, T_k], lengths [B] -> tokens [B, T_q] and weights [B, T_q, T_k] (``None``
    without attention). T_q ends with the last sentence's ``eos``, at ``max_length`` at the latest;
    what follows a sentence's first ``eos`` is ``eos`` too. Raises a ``ValueError`` for a
    ``max_length`` below 1, and a model in training mode (call ``model.eval()``).
    """
    if model.training:
        raise ValueError("model must be in evaluation mode, where nothing is dropped: call model.eval()")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    memory, state = model.read(source, lengths), None
    token = torch.full((len(source), 1), bos, device=source.device)
    ended = torch.zeros_like(token, dtype=torch.bool)
    tokens, weights = [], []
    for _ in range(max_length):
        logits, weight, state = model.decoder(token, memory, state)  # [B, 1, num_tokens]
        token = logits.argmax(-1).masked_fill(ended, eos)  # [B, 1]
        ended = ended | (token == eos)
        tokens.append(token)
        weights.append(weight)
        if ended.all():
            break
    return torch.cat(tokens, 1), None if weights[0] is None else torch.cat(weights, 1)
