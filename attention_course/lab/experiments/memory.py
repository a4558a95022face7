"""Agents that must remember: two policies of one size learn to turn where a cue told them to.

Chapter 18 trains an attention policy and a GRU by the plain policy gradient, on corridors of growing
length, and asks how often they learn it, after how many updates, and where the one with attention looks.
"""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.beyond.memory import AttentionPolicy, RecurrentPolicy, policy_loss, returns
from attention_course.inputs import check_at_least, check_choice
from attention_course.lab.data.corridor import ACTIONS, SEEN, Walks, draw, rewards
from attention_course.lab.measure.numbers import count_parameters
from attention_course.positions import Sinusoidal

Kind = Literal["attention", "attention, positions", "GRU"]
#: Each has the rate at which it did best, of .002, .003, .005 and .01, on seeds that no page uses.
RATE = {"attention": 0.002, "attention, positions": 0.002, "GRU": 0.01}
#: solved: the last so many updates brought this mean return, sampled actions and all
LAST, SOLVED = 10, 0.98


def policy_for(kind: Kind) -> AttentionPolicy | RecurrentPolicy:
    """Return an untrained policy; raises a ``ValueError`` for a kind that is none."""
    check_choice("kind", kind, get_args(Kind))
    if kind == "GRU":
        return RecurrentPolicy(SEEN, ACTIONS)
    return AttentionPolicy(SEEN, ACTIONS, positions=Sinusoidal(24) if kind != "attention" else None)


def chosen(logits: Float[Tensor, "B T actions"], generator: torch.Generator) -> Int[Tensor, "B T"]:
    """Return actions drawn from the policy: each as often as it is likely."""
    drawn = torch.multinomial(logits.detach().softmax(-1).flatten(0, 1), 1, generator=generator)
    return drawn.view(logits.shape[:-1])


def loss_of(
    logits: Float[Tensor, "B T actions"], walks: Walks, actions: Int[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Return the policy's loss, where actions count: at the junctions."""
    log_probs = logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]
    gains = returns(rewards(walks, actions).T, 1.0, walks.junction.T)
    return policy_loss(log_probs.T, gains, walks.junction.T)


def mean_return(walks: Walks, actions: Int[Tensor, "B T"]) -> float:
    """Return the reward of the average walk."""
    return (rewards(walks, actions).sum() / walks.junction.sum()).item()


@torch.no_grad()
def tried(policy: nn.Module, walks: Walks, generator: torch.Generator, *, reset: bool = True) -> float:
    """Return the mean return on ``walks``, with actions drawn as in training."""
    logits, _ = policy(walks.observations, walks.junction if reset else None)
    return mean_return(walks, chosen(logits, generator))


def trial(
    kind: Kind,
    length: int,
    seed: int,
    *,
    updates: int = 300,
    batch: int = 64,
    learning_rate: float | None = None,
    shortest: int | None = None,
    walks: int = 1,
    flagged: bool = True,
    reset: bool = True,
) -> dict[str, Any]:
    """Train one policy until it has solved the corridor, for ``updates`` at most; return what it did.

    "returns" has the mean return of every update's batch, "solved" the number of updates it took or
    ``None``, "return" that on 512 new rows, "policy" the policy and "parameters" their number. The
    ``learning_rate`` is the one in ``RATE`` unless given. Without ``reset`` memory runs on from one walk of
    a row into the next.
    """
    check_at_least(1, updates=updates, batch=batch)
    rate = RATE[kind] if learning_rate is None else learning_rate
    torch.manual_seed(seed)
    policy = policy_for(kind)
    generator = torch.Generator().manual_seed(seed + 1000)
    optimiser = torch.optim.Adam(policy.parameters(), lr=rate, fused=True)
    rows = {"length": length, "shortest": shortest, "walks": walks, "flagged": flagged}
    several, gained, solved = walks > 1 and reset, [], None
    for update in range(1, updates + 1):
        batch_of = draw(batch, generator, **rows)
        logits, _ = policy(batch_of.observations, batch_of.junction if several else None)
        actions = chosen(logits, generator)
        loss = loss_of(logits, batch_of, actions)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        gained.append(mean_return(batch_of, actions))
        if update >= LAST and sum(gained[-LAST:]) / LAST >= SOLVED:
            solved = update
            break
    new = draw(512, torch.Generator().manual_seed(seed + 2000), **rows)
    return {
        "policy": policy.eval(),
        "parameters": count_parameters(policy),
        "returns": gained,
        "solved": solved,
        "return": tried(policy, new, generator, reset=several),
    }
