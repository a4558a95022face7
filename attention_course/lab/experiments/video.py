"""Clips: which frames matter, found by three ways to make one vector of many; and what looking costs.

Two of sixteen frames are clear, and their digits are to be added up. The models read every frame with
the same small network and differ in how they pool: the mean, attention by one learned query, or a GRU.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attention_course.attention import attend
from attention_course.beyond.video import divided, joint
from attention_course.heads import MultiHeadAttention
from attention_course.inputs import check_choice
from attention_course.lab.data.clips import Clips, clip_batches, clips
from attention_course.lab.data.digits import SIDE, digits
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train

#: frames of a clip in training, and in tests
LENGTH, LENGTHS = 16, (16, 32, 64)
#: sums of two digits: 0 to 18
SUMS = 19

Pool = Literal["mean", "attention", "GRU"]
#: width of a frame's vector; and inside the frames' network, so that all models have some 19,000 parameters
WIDTH, HIDDEN = 32, {"mean": 161, "attention": 139, "GRU": 96}
#: of those tried (.005, .01, .02), the best on validation data
LEARNING_RATES = {"mean": 0.01, "attention": 0.01, "GRU": 0.005}


class Mean(nn.Module):
    """All frames alike."""

    def __init__(self, d: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "B T d"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B T"]]:
        """Return the mean over time, and its weights, 1/T each."""
        return x.mean(1), torch.full(x.shape[:2], 1 / x.shape[1], device=x.device)


class Attention(nn.Module):
    """One learned query asks every frame: score → softmax → mix."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, d))
        self.key, self.value = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Float[Tensor, "B T d"]) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B T"]]:
        """Return what the query found, and its weights over the frames."""
        query = self.query.expand(len(x), 1, -1)
        context, weights = attend(query, self.key(x), self.value(x))
        return context.squeeze(1), weights.squeeze(1)


class Recurrent(nn.Module):
    """A GRU's last state."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gru = nn.GRU(d, d, batch_first=True)

    def forward(self, x: Float[Tensor, "B T d"]) -> tuple[Float[Tensor, "B d"], None]:
        """Return the state behind the last frame; it has no weights to show."""
        _, state = self.gru(x)
        return state[-1], None


class ClipReader(nn.Module):
    """Every frame through one network, then one vector for the clip, then the sum's logits."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        check_choice("pool", pool, get_args(Pool))
        inside = HIDDEN[pool]
        self.frame = nn.Sequential(nn.Linear(SIDE * SIDE, inside), nn.ReLU(), nn.Linear(inside, WIDTH))
        self.pool = {"mean": Mean, "attention": Attention, "GRU": Recurrent}[pool](WIDTH)
        self.answer = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, SUMS))

    def read(
        self, frames: Float[Tensor, "B T 8 8"]
    ) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B T"] | None]:
        """Return one vector for the clip, and the frames' weights where the pool has such."""
        return self.pool(self.frame(frames.flatten(2)))

    def forward(
        self, frames: Float[Tensor, "B T 8 8"]
    ) -> tuple[Float[Tensor, "B sums"], Float[Tensor, "B T"] | None]:
        """Return the logits of every sum, and the frames' weights where the pool has such."""
        vector, weights = self.read(frames)
        return self.answer(vector), weights


def loss(model: nn.Module, clip: Clips) -> Float[Tensor, ""]:
    """Return the cross-entropy of the right sums."""
    return F.cross_entropy(model(clip.frames)[0], clip.total)


def trial(
    pool: Pool,
    seed: int,
    *,
    steps: int = 600,
    batch_size: int = 128,
    learning_rate: float | None = None,
    part: str = "test",
) -> dict[str, Any]:
    """Train one model on clips of 16 frames; return it and how it does on clips of 16, 32 and 64.

    "right" maps each length to the share of right sums, "rescaled" too, if the clip's vector is taken
    length/16 times, as if the mean were a sum. "on_clear" maps it to the mean weight on the two clear frames
    together (None for the GRU). All on fresh clips of the digits of ``part``. Besides: "model", "parameters",
    "seconds".
    """
    data = digits(seed)
    torch.manual_seed(seed)
    model = ClipReader(pool)
    stream = clip_batches(data.train, batch_size, LENGTH, seed)
    rate = LEARNING_RATES[pool] if learning_rate is None else learning_rate
    history = train(model, stream, loss, steps=steps, learning_rate=rate, seed=seed)
    right, rescaled, on_clear = {}, {}, {}
    generator = torch.Generator().manual_seed(seed + 1000)
    for length in LENGTHS:
        asked = clips(getattr(data, part), 1000, length, generator)
        with torch.no_grad():
            vector, weights = model.read(asked.frames)
            for factor, found in ((1, right), (length / LENGTH, rescaled)):
                said = model.answer(vector * factor).argmax(-1)
                found[length] = (said == asked.total).double().mean().item()
        on_clear[length] = None if weights is None else (weights * asked.clear).sum(1).mean().item()
    return {
        "model": model,
        "right": right,
        "rescaled": rescaled,
        "on_clear": on_clear,
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }


class Cost(NamedTuple):
    """Scores of one head, and milliseconds of one forward pass, each the best of several."""

    frames: int
    places: int
    joint_scores: int
    divided_scores: int
    joint: float
    divided: float


@torch.no_grad()
def cost(sizes: Sequence[tuple[int, int]], *, d_model: int = 32, repeats: int = 7) -> list[Cost]:
    """Return what joint and divided attention cost for clips of T frames and N places.

    Joint attention has one layer of projections, divided attention two.
    """
    torch.manual_seed(0)
    one, two, three = (MultiHeadAttention(d_model, 4) for _ in range(3))
    found = []
    for T, N in sizes:
        x = torch.randn(1, T, N, d_model)
        ways = (lambda x=x: joint(one, x), lambda x=x: divided(two, three, x))
        best = [float("inf"), float("inf")]
        for _ in range(repeats):  # in turn, so that a busy moment hits both
            for i, way in enumerate(ways):
                began = time.perf_counter()
                way()
                best[i] = min(best[i], 1000 * (time.perf_counter() - began))
        found.append(Cost(T, N, (T * N) ** 2, N * T**2 + T * N**2, *best))
    return found
