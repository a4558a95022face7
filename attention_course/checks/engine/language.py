"""What a learner's language model goes through, on the learner's own side: built, given a state, asked,
trained for a few steps, made to write.

Each scene is a function of a use (plain data), of what one step keeps for the next, of the answer and of the
case's tensors. Of what learners decide for themselves, such as the names of their parameters, nothing is left
in what a scene returns: that is the same for every right answer. What does not fit is told in one sentence.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attention_course.checks.engine.observe import Unfit, is_plain
from attention_course.checks.engine.training import numbers, one_thread

#: so many texts are asked at once: more would take more memory, and no less time
_PIECE = 100

Use = Mapping[str, Any]
Kept = dict[str, Any]

# Building -------------------------------------------------------------------------------------


def built(answer: Any, arguments: Mapping[str, Any]) -> nn.Module:
    """``answer(**arguments)``. Raises :class:`Unfit` for what is no class of modules."""
    if isinstance(answer, nn.Module):
        raise Unfit(
            "A class was to be handed over, but this is a model that is built already. Hand over the class "
            f"itself, without calling it: {type(answer).__name__}."
        )
    if not isinstance(answer, type) or not issubclass(answer, nn.Module):
        kind = answer.__name__ if isinstance(answer, type) else f"a {type(answer).__name__}"
        raise Unfit(f"A class of modules was to be handed over, class GPT(nn.Module), but this is {kind}.")
    try:
        signature(answer).bind(**arguments)
    except TypeError as error:
        call = ", ".join(f"{name}={value}" for name, value in arguments.items())
        raise Unfit(f"It is built as GPT({call}), and __init__ does not take that: {error}.") from None
    return answer(**arguments)


def loaded(answer: Any, use: Use, state: Sequence[Tensor]) -> nn.Module:
    """The model, built, with the given ``state``, in evaluation mode."""
    model = built(answer, use["arguments"])
    if not callable(getattr(model, "load", None)):
        raise Unfit("Your GPT has no method load(state): by it your own parameters get the given numbers.")
    given = dict(zip(use["state"], (tensor.clone() for tensor in state), strict=True))
    with torch.no_grad():
        model.load(given)
    return model.eval()


def on(model: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors where the model's parameters are: a learner's may have gone to a graphics card."""
    first = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
    return tuple(tensor if first is None else tensor.to(first.device) for tensor in tensors)


def back(result: Any) -> Any:
    """A tensor from wherever it is; anything else as it came."""
    return result.cpu() if type(result) is Tensor else result


def asked(model: Any, tokens: Tensor) -> Any:
    """What the model says to ``tokens``, without gradients and on the CPU."""
    with torch.no_grad():
        return back(model(*on(model, tokens)))


# Scenes that are compared ---------------------------------------------------------------------


def tokenized(use: Use, kept: Kept, answer: Any, text: Tensor, sample: Tensor) -> tuple:
    """How many characters there are, the sample's tokens, and the text that comes back from them."""
    tokenizer = answer(_string(text))
    for name in ("encode", "decode", "size"):
        if not hasattr(tokenizer, name):
            raise Unfit(f"Your tokenizer has no {name}.")
    tokens = tokenizer.encode(_string(sample))
    decoded = tokenizer.decode(tokens)
    if not isinstance(decoded, str):
        raise Unfit(f"decode returned a {type(decoded).__name__}; expected a str.")
    size = tokenizer.size() if callable(tokenizer.size) else tokenizer.size
    return torch.tensor(int(size)), _integers(tokens), torch.tensor([ord(one) for one in decoded])


def _string(codes: Tensor) -> str:
    return "".join(map(chr, codes.tolist()))


def _integers(tokens: Any) -> Any:
    """Tokens as one tensor, whether they came as that, as a list or as an array."""
    try:
        tensor = torch.as_tensor(tokens).cpu()
    except Exception:
        raise Unfit(
            f"encode returned {type(tokens).__name__}; expected a tensor or a list of integers."
        ) from None
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise Unfit(f"encode returned {tensor.dtype}; expected integers.")
    return tensor.long()


def said(use: Use, kept: Kept, answer: Any, *tensors: Tensor) -> tuple:
    """The logits of a model with a given state; by how much those before the last token move when it
    changes; and how many parameters there are."""
    *state, tokens = tensors
    model = loaded(answer, use, state)
    logits = _repeatable(model, tokens)
    parameters = torch.tensor(sum(one.numel() for one in model.parameters()))
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % use["arguments"]["vocabulary"]
    moved = asked(model, other)
    if not is_plain(logits) or not is_plain(moved) or logits.dim() != 3 or moved.shape != logits.shape:
        return logits, torch.zeros(len(tokens), tokens.shape[1] - 1), parameters  # its shape is told
    leak = (moved - logits).abs().amax(-1)[:, :-1].float()
    return logits, leak, parameters


def _repeatable(model: nn.Module, tokens: Tensor) -> Any:
    """What the model says, if it says so again: whatever it was asked between, and whatever was drawn."""
    torch.default_generator.manual_seed(0)
    first = asked(model, tokens.clone())
    with suppress(Exception):
        asked(model, tokens.flip(0, 1))
    torch.default_generator.manual_seed(0)
    again = asked(model, tokens.clone())
    if not _alike(first, again):
        raise Unfit(
            "Asked again for the same tokens, your model says something else: it keeps something from one "
            "call to the next. Look for what forward assigns to self."
        )
    torch.default_generator.manual_seed(1)
    if not _alike(first, asked(model, tokens.clone())):
        raise Unfit(
            "Asked again for the same tokens, your model says something else: it draws random numbers. "
            "Dropout must be off after model.eval(): nn.Dropout knows, F.dropout has to be told."
        )
    return first


def _alike(first: Any, again: Any) -> bool:
    if not is_plain(first) or not is_plain(again):
        return True  # whatever is no tensor is for others to judge
    return first.shape == again.shape and torch.allclose(first, again, 1e-4, 1e-5, equal_nan=True)


def overfitted(use: Use, kept: Kept, answer: Any, *tensors: Tensor) -> tuple:
    """Logits after a few steps of plain gradient descent from a given state, which are the same however the
    parameters are cut; and the next tokens that a new model says when it has seen one batch many times."""
    *state, tokens, batch = tensors
    model = loaded(answer, use, state).train()
    _descend(model, torch.optim.SGD(_learned(model), lr=0.1), tokens, 3)
    logits = asked(model.eval(), tokens)
    torch.manual_seed(0)
    model = built(answer, use["arguments"]).train()
    _descend(model, torch.optim.Adam(_learned(model), lr=1e-2), batch, use["steps"])
    answers = asked(model.eval(), batch)
    return logits, answers[:, :-1].argmax(-1) if is_plain(answers) and answers.dim() == 3 else answers


def _learned(model: nn.Module) -> list[nn.Parameter]:
    parameters = [one for one in model.parameters() if one.requires_grad]
    if not parameters:
        raise Unfit("model.parameters() is empty: an optimizer has nothing to learn.")
    return parameters


def _descend(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, steps: int) -> None:
    (tokens,) = on(model, tokens)
    for _ in range(steps):
        logits = model(tokens)[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        if not loss.requires_grad:
            raise Unfit("No gradient reaches any parameter: is there a no_grad or a detach in forward?")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class _Pairs(nn.Module):
    """The model on which a training step is tried: a table, one row for each token, ``times`` which are the
    logits. It says half in evaluation mode, so that whoever forgets to switch is seen."""

    def __init__(self, table: Tensor, times: int) -> None:
        super().__init__()
        self.table, self.times = nn.Parameter(table.clone()), times

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.times * self.table[tokens]
        return logits if self.training else logits / 2


def updated(use: Use, kept: Kept, answer: Callable, table: Tensor, batches: Tensor) -> tuple:
    """How far each step has moved a small model's table, and the loss it told, one batch after the other."""
    model = _Pairs(table, use["arguments"]["times"]).eval()
    if use["arguments"]["adamw"]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    moved, losses = [], []
    for step, batch in enumerate(batches):
        before = model.table.detach().clone()
        loss = answer(model, optimizer, batch, use["arguments"]["first"] + step)
        if not isinstance(loss, float) and not (isinstance(loss, Tensor) and loss.numel() == 1):
            raise Unfit(
                f"It returned {'None' if loss is None else f'a {type(loss).__name__}'}; expected the loss."
            )
        losses.append(float(loss))
        moved.append((model.table.detach() - before) / use["unit"])
    return torch.stack(moved), torch.tensor(losses, dtype=table.dtype)


def written(use: Use, kept: Kept, answer: Any, *tensors: Tensor) -> Any:
    """The tokens that a model with a given state writes when it always takes the likeliest.

    Raises:
        Unfit: it makes far more numbers than with keys and values kept: each step reads all again.
    """
    *state, prompt, number = tensors
    model = loaded(answer, use, state)
    work = _Work()
    with work:
        tokens = back(model.generate(*on(model, prompt), number.item(), temperature=0.0))
    once = _Work()
    if is_plain(tokens) and tokens.dim() == 2 and tokens.shape[1] == prompt.shape[1] + number.item():
        with once:
            asked(model, tokens.long())
        if work.numbers > use["times"] * once.numbers:
            raise Unfit(
                "Each new token costs as much as reading all tokens before it once more: there is no "
                "cache, or it is not used. Give a step the newest token alone, and let it find the others' "
                "keys and values where they were kept."
            )
    return tokens


class _Work(TorchDispatchMode):
    """Inside: counts the numbers that are computed, not those that are only moved, joined or seen anew."""

    _MOVES = frozenset(
        ("cat", "stack", "clone", "copy", "_to_copy", "repeat", "index_select", "constant_pad_nd")
    )

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch's compiler leaves this alone; it is not imported to be asked for that."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(first, Tensor) and func.__name__.partition(".")[0] not in self._MOVES:
            # a view, or what is changed in place, is nothing new
            seen = {one.untyped_storage().data_ptr() for one in args if isinstance(one, Tensor)}
            if first.untyped_storage().data_ptr() not in seen:
                self.numbers += first.numel()
        return result


# Scenes that are measured: what is kept is asked in the next step ------------------------------


def started(use: Use, kept: Kept, answer: Any, seed: Tensor) -> None:
    """A new model, to be asked before it has learned anything."""
    torch.manual_seed(seed.item())
    model = built(answer, use["arguments"]).eval()
    kept["trained"] = lambda tokens: asked(model, tokens)


def drawn(use: Use, kept: Kept, answer: Any, *tensors: Tensor) -> None:
    """A model with a given state, to be asked how often it writes which token."""
    *state, temperature = tensors
    model = loaded(answer, use, state)
    vocabulary, draws = use["arguments"]["vocabulary"], use["draws"]

    def shares(prompts: Tensor) -> Tensor:
        torch.manual_seed(0)
        found = []
        for prompt in prompts:
            (many,) = on(model, prompt.repeat(draws, 1))
            tokens = back(model.generate(many, 1, temperature=temperature.item()))
            if not is_plain(tokens) or tokens.shape != (draws, len(prompt) + 1) or tokens.is_floating_point():
                size = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
                raise Unfit(f"generate returned {size}; expected integers [{draws}, {len(prompt) + 1}].")
            found.append(torch.bincount(tokens[:, -1], minlength=vocabulary)[:vocabulary] / draws)
        return torch.stack(found)

    kept["trained"] = shares


def trained(use: Use, kept: Kept, answer: Callable, *given: Tensor) -> None:
    """Let ``answer`` train, on one thread, and keep the model: it is asked what follows a piece of text."""
    with one_thread():
        model = answer(*numbers(given))
    if not isinstance(model, nn.Module):
        kind = "None" if model is None else f"a {type(model).__name__}"
        raise Unfit(f"It returned {kind}. Return the model that was trained, an nn.Module.")

    def follows(tokens: Tensor) -> Any:
        first, again = (asked(model, tokens[:_PIECE]) for _ in range(2))
        if not is_plain(first) or first.dim() != 3:
            return first
        if not _alike(first, again):
            raise Unfit(
                "Asked twice for the same text, the model says two things: it draws random numbers. "
                "Dropout is for training alone: model.eval() before it is returned."
            )
        return torch.cat([asked(model, piece)[:, -1].float() for piece in tokens.split(_PIECE)])

    kept["trained"] = follows


SCENES: Mapping[str, Callable] = {
    one.__name__: one for one in (tokenized, said, overfitted, updated, written, started, drawn, trained)
}
