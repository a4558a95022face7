"""Acting with memory: what was seen earlier in an episode is attended to when something is to be done.

An agent sees one observation a step, and what it needs for a decision may lie far back. A policy with
attention keeps all observations of the episode and looks among them; a recurrent one carries a state of
fixed size. Both are trained here by the plain policy gradient (Williams 1992: REINFORCE).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_course import masks
from attention_course.heads import MultiHeadAttention
from attention_course.inputs import check_at_least, check_width


def returns(
    rewards: Float[Tensor, "T B"], discount: float, done: Bool[Tensor, "T B"] | None = None
) -> Float[Tensor, "T B"]:
    """Return what each step still brings: its reward and, discounted, all later ones of its episode.

    Shapes: rewards [T, B] -> [T, B], time first. A column is one episode, padded with zeros; with
    ``done``, which is True where an episode ended *with* that step, it may hold several. Raises a
    ``ValueError`` for a discount outside 0 to 1 or a ``done`` of another shape, a ``TypeError`` for one
    that is not boolean (Williams 1992, section 6; Sutton and Barto 2018, equation 3.9).
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"discount must lie between 0 and 1, got {discount}")
    if rewards.dim() != 2:
        raise ValueError(f"rewards must have shape [T, B], got {tuple(rewards.shape)}")
    if done is not None:
        _check_mask("done", done, rewards)
    later = rewards.new_zeros(rewards.shape[1])
    found = []
    for t in reversed(range(len(rewards))):
        if done is not None:
            later = later.masked_fill(done[t], 0)  # what comes behind an end belongs to another episode
        later = rewards[t] + discount * later
        found.append(later)
    return torch.stack(found[::-1]) if found else rewards.clone()


def policy_loss(
    log_probs: Float[Tensor, "T B"],
    returns: Float[Tensor, "T B"],
    alive: Bool[Tensor, "T B"],
    *,
    baseline: bool = True,
) -> Float[Tensor, ""]:
    """Return the number whose gradient is minus the policy gradient: -Σ log π(a|o)·(return - baseline) / B.

    ``log_probs`` [T, B] are those of the actions that were taken, ``alive`` [T, B] is True at steps to
    learn from: not at padding, nor where nothing was to decide. The sum is over these; the ``baseline``
    is the mean of their returns, and without it 0. No gradient goes through the returns. Raises a
    ``TypeError`` for an ``alive`` that is not boolean, a ``ValueError`` for unequal shapes or if no step
    is alive (Williams 1992, section 4).
    """
    if log_probs.shape != returns.shape:
        raise ValueError(
            "log_probs and returns must have the same shape [T, B], got "
            f"{tuple(log_probs.shape)} and {tuple(returns.shape)}"
        )
    _check_mask("alive", alive, log_probs)
    if not alive.is_meta and not alive.any():
        raise ValueError(f"alive must be True at one step at least, got none of {tuple(alive.shape)}")
    # both masked before the product: what stands at padding may be infinite, and 0 · inf is NaN
    weight = returns.detach().masked_fill(~alive, 0)
    if baseline:
        weight = weight - weight.sum() / alive.sum()
    return -(log_probs.masked_fill(~alive, 0) * weight).sum() / log_probs.shape[1]


def same_episode(done: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Return which earlier steps each step may look at: itself and those before it in its own episode.

    Shapes: done [B, T], True where an episode ended *with* that step -> [B, T, T], True = may look,
    queries down. The step behind an end sees only itself. Raises a ``TypeError`` for a ``done`` that is
    not boolean, a ``ValueError`` for one that is not [B, T].
    """
    if done.dtype != torch.bool:
        raise TypeError(f"done must be boolean (True = ended with this step), got {done.dtype}")
    if done.dim() != 2:
        raise ValueError(f"done must have shape [B, T], got {tuple(done.shape)}")
    ended = done.long()
    episode = ended.cumsum(1) - ended  # how many ended before this step
    return (episode[:, :, None] == episode[:, None, :]) & masks.causal(done.shape[1], device=done.device)


class AttentionPolicy(nn.Module):
    """A policy that looks at all observations of its episode so far, and decides by what it finds.

    The present observation asks; the earlier ones and itself are keys and values. ``positions`` is added
    to the embedded observations, such as ``positions.Sinusoidal``, counted along the row; without it
    an observation is found by what it shows, not by when it came. Raises a ``ValueError`` when the heads
    do not divide d_model. A small relative of the agents of Parisotto et al. (2020).
    """

    def __init__(
        self,
        d_observation: int,
        num_actions: int,
        *,
        d_model: int = 24,
        num_heads: int = 1,
        positions: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, d_observation=d_observation, num_actions=num_actions)
        self.d_observation = d_observation
        self.embed = nn.Linear(d_observation, d_model)
        self.positions = positions
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)
        self.hidden = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, num_actions)

    def forward(
        self,
        observations: Float[Tensor, "B T d_observation"],
        done: Bool[Tensor, "B T"] | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T actions"], Float[Tensor, "B h T T"] | None]:
        """Return ``(logits, weights)`` of every step; weights [B, h, T, T] are None unless asked for.

        A row is one episode, or with ``done`` (as in ``same_episode``) several, of which no step sees
        more than its own. Raises a ``ValueError`` for observations of another width.
        """
        check_width("observations", observations, self.d_observation, axis="d_observation=")
        x = self.embed(observations)
        if self.positions is not None:
            x = self.positions(x)
        mask = None if done is None else same_episode(done).unsqueeze(1)  # the same for every head
        found, weights = self.attention(x, attn_mask=mask, is_causal=done is None, need_weights=need_weights)
        return self.output(self.hidden(self.norm(x + found)).relu()), weights


class RecurrentPolicy(nn.Module):
    """A policy whose whole memory is the state of a GRU; 30 wide it has the size of an ``AttentionPolicy``.

    With 3 numbers an observation and 2 actions the two have 3,212 and 3,194 parameters.
    """

    def __init__(self, d_observation: int, num_actions: int, *, d_model: int = 30) -> None:
        super().__init__()
        check_at_least(1, d_observation=d_observation, num_actions=num_actions, d_model=d_model)
        self.d_observation = d_observation
        self.memory = nn.GRU(d_observation, d_model, batch_first=True)
        self.output = nn.Linear(d_model, num_actions)

    def forward(
        self,
        observations: Float[Tensor, "B T d_observation"],
        done: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T actions"], None]:
        """Return ``(logits, None)`` of every step, as ``AttentionPolicy`` does; it has no weights to show.

        With ``done`` the state is 0 again behind every end. Raises a ``ValueError`` for observations of
        another width.
        """
        check_width("observations", observations, self.d_observation, axis="d_observation=")
        if done is None:
            states, _ = self.memory(observations)
            return self.output(states), None
        _check_mask("done", done, observations[..., 0])
        state, states = observations.new_zeros(1, len(observations), self.memory.hidden_size), []
        for t in range(observations.shape[1]):
            _, state = self.memory(observations[:, t : t + 1], state)
            states.append(state[0])
            state = state.masked_fill(done[None, :, t, None], 0)
        return self.output(torch.stack(states, 1)), None


def _check_mask(name: str, mask: Tensor, covers: Tensor) -> None:
    """Refuse what is not one boolean for every number of ``covers``."""
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean, got {mask.dtype}")
    if mask.shape != covers.shape:
        raise ValueError(f"{name} must have shape {tuple(covers.shape)}, got {tuple(mask.shape)}")
