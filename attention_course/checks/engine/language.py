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

from attention_course.checks.engine.observe import Unfit, describe, identical, is_plain
from attention_course.checks.engine.training import numbers, one_thread
from attention_course.checks.engine.words import printable

#: so many texts are asked at once: more would take more memory, and no less time
_PIECE = 100
#: so near to 1 that nothing is left, and not 1: whoever divides by what is kept may do so
_ALL = 1 - 1e-12
#: with fewer new tokens a cache saves little
_MANY = 10

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
    given = dict(zip(use["state"], state, strict=True))
    try:
        with torch.no_grad():
            model.load(given)
    except NotImplementedError:
        raise  # it is not written yet
    except Exception as error:
        raise Unfit(_not_loaded(error)) from None
    return model.eval()


def _not_loaded(error: Exception) -> str:
    raised = describe(error)
    if "Missing key(s)" in raised.text:
        missing = printable(raised.text.partition("Missing key(s) in state_dict:")[2], 60)
        return (
            f"load(state) raised {raised.type}: your model asks for more than the state has: {missing} "
            "A buffer such as a mask may be registered as not persistent; other names, and a second name of "
            "the tied matrix, need a line in load."
        )
    text = f"load(state) raised {raised.type}" + (f": {printable(raised.text, 160)}" if raised.text else "")
    return f"{text} At {raised.line}" if raised.line else text


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
    if _reordered(tokenizer, sorted(set(_string(text)))):
        raise Unfit("The right characters have the right numbers, but in another order than sorted.")
    return torch.tensor(int(size)), _integers(tokens), torch.tensor([ord(one) for one in decoded])


def _reordered(tokenizer: Any, characters: list[str]) -> bool:
    """Whether the characters have the numbers from 0, each its own, but not in this order."""
    try:
        numbers = [_integers(tokenizer.encode(one)).tolist() for one in characters]
    except Exception:
        return False  # what is wrong with it shows elsewhere
    right = [[number] for number in range(len(characters))]
    return numbers != right and sorted(numbers) == right


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
    changes; how many parameters there are; and the logits where all is dropped that can be."""
    *state, tokens = tensors
    model = loaded(answer, use, state)
    logits = _repeatable(model, tokens)
    _all_loaded(answer, use, state, tokens)
    dropped = _dropped(answer, use, state, tokens)
    parameters = torch.tensor(sum(one.numel() for one in model.parameters()))
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % use["arguments"]["vocabulary"]
    moved = asked(model, other)
    if not is_plain(logits) or not is_plain(moved) or logits.dim() != 3 or moved.shape != logits.shape:
        return logits, torch.zeros(len(tokens), tokens.shape[1] - 1), parameters, dropped  # its shape is told
    leak = (moved - logits).abs().amax(-1)[:, :-1].float()
    return logits, leak, parameters, dropped


def _all_loaded(answer: Any, use: Use, state: Sequence[Tensor], tokens: Tensor) -> None:
    """Whether nothing is left of what a new model draws."""
    said = []
    for seed in (0, 1):
        torch.default_generator.manual_seed(seed)
        said.append(asked(loaded(answer, use, state), tokens.clone()))
    if not _alike(*said):
        raise Unfit(
            "Built twice and given the same state, your model says two things: load leaves some parameters "
            "as they were drawn. Print the names in dict(model.named_parameters()) beside those of the "
            "state; strict=False passes in silence over what does not fit."
        )


def _dropped(answer: Any, use: Use, state: Sequence[Tensor], tokens: Tensor) -> Any:
    """What the model says in training mode, built to drop all that its halves tell."""
    arguments = {**use["arguments"], "dropout": _ALL}
    model = loaded(answer, {**use, "arguments": arguments}, state).train()
    said = []
    for seed in (0, 1):
        torch.default_generator.manual_seed(seed)
        said.append(asked(model, tokens.clone()))
    if not _alike(*said):
        raise Unfit(
            f"Built with dropout={_ALL}, your model in training mode says something else each time: not all "
            "that its halves tell is dropped. Is the share that you drop the one that __init__ gets?"
        )
    return said[0]


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
            "Dropout must be off after model.eval(): nn.Dropout knows, F.dropout has to be told. If yours "
            "has been told: eval() does not reach layers that lie in a plain list. nn.ModuleList registers "
            "them."
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
    own = [tensor.clone() for tensor in state]
    model = loaded(answer, use, own).train()
    _descend(model, torch.optim.SGD(_learned(model), lr=0.1), tokens, 3)
    if not all(map(identical, state, own)):
        raise Unfit(
            "Training your model has changed the state that load was given: your parameters are those very "
            "tensors. Copy the numbers into your own."
        )
    logits = asked(model.eval(), tokens)
    torch.manual_seed(0)
    model = built(answer, use["arguments"]).train()
    _descend(model, torch.optim.Adam(_learned(model), lr=1e-2), batch, use["steps"])
    answers = asked(model.eval(), batch)
    return logits, answers[:, :-1].argmax(-1) if is_plain(answers) and answers.dim() == 3 else answers


def _learned(model: nn.Module) -> list[nn.Parameter]:
    parameters = [one for one in model.parameters() if one.requires_grad]
    if not parameters:
        raise Unfit(
            "None of model.parameters() requires a gradient, or there is none: an optimizer has nothing to "
            "learn."
        )
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
    """The model on which a training step is tried: a row for each token and one for all of them, which is
    the table's last; ``times`` their sum are the logits. These are two parameters, each in a group of its
    own. It says half in evaluation mode, so that whoever forgets to switch is seen."""

    def __init__(self, table: Tensor, times: int) -> None:
        super().__init__()
        self.rows, self.every, self.times = (
            nn.Parameter(table[:-1].clone()),
            nn.Parameter(table[-1:].clone()),
            times,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.times * (self.rows[tokens] + self.every)
        return logits if self.training else logits / 2

    def table(self) -> Tensor:
        return torch.cat((self.rows, self.every)).detach()


def updated(use: Use, kept: Kept, answer: Callable, table: Tensor, batches: Tensor) -> tuple:
    """How far each step has moved a small model's table, and the loss it told, one batch after the other."""
    model = _Pairs(table, use["arguments"]["times"]).eval()
    groups = [{"params": [one]} for one in model.parameters()]
    if use["arguments"]["adamw"]:
        optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.5)
    moved, losses = [], []
    for step, batch in enumerate(batches):
        before = model.table()
        loss = answer(model, optimizer, batch, use["arguments"]["first"] + step)
        if not isinstance(loss, float) and not (isinstance(loss, Tensor) and loss.numel() == 1):
            raise Unfit(
                f"It returned {'None' if loss is None else f'a {type(loss).__name__}'}; expected the loss."
            )
        if isinstance(loss, Tensor) and loss.requires_grad:
            raise Unfit(
                "It returned the loss with all that its gradients need: whoever keeps the losses of a "
                "training keeps all its graphs. Return the number."
            )
        losses.append(float(loss))
        moved.append((model.table() - before) / use["unit"])
    return torch.stack(moved), torch.tensor(losses, dtype=table.dtype)


def written(use: Use, kept: Kept, answer: Any, *tensors: Tensor) -> Any:
    """The tokens that a model with a given state writes when it always takes the likeliest.

    Raises:
        Unfit: it makes far more numbers than with keys and values kept: each step reads all again. Or a call
            leaves something behind, or it draws.
    """
    *state, prompt, number = tensors
    model = loaded(answer, use, state)
    work = _Work()
    with work:
        tokens = _generated(model, prompt, number.item(), 0.0)
    once = _Work()
    if is_plain(tokens) and tokens.dim() == 2 and tokens.shape[1] == prompt.shape[1] + number.item():
        _leaves_nothing(answer, use, state, model, prompt)
        with once:
            asked(model, tokens.long())
        if number >= _MANY and work.numbers > use["times"] * once.numbers:
            raise Unfit(
                "Each new token costs as much as reading all tokens before it once more: there is no "
                "cache, or it is not used. Give a step the newest token alone, and let it find the others' "
                "keys and values where they were kept."
            )
    return tokens


def _generated(model: nn.Module, prompt: Tensor, number: int, temperature: float) -> Any:
    if not callable(getattr(model, "generate", None)):
        raise Unfit("Your GPT has no method generate(tokens, number, temperature).")
    return back(model.generate(*on(model, prompt), number, temperature=temperature))


def _leaves_nothing(answer: Any, use: Use, state: Sequence[Tensor], model: nn.Module, prompt: Tensor) -> None:
    """Whether a ``model`` that has written writes and says what one does that never has.

    Raises:
        Unfit: it does not.
    """
    if model.training:
        raise Unfit(
            "generate was called in evaluation mode, and behind it your model is in training mode: dropout "
            "is on while it writes. Leave the mode as it is."
        )
    # another text, and short, for this is no measure of anything
    start, number = (
        (prompt[:, :2] + 1) % use["arguments"]["vocabulary"],
        min(4, use["arguments"]["length"] - 2),
    )
    fresh = []
    for seed in (0, 1):
        one = loaded(answer, use, state)
        said = asked(one, start.clone())
        torch.default_generator.manual_seed(seed)
        fresh.append(_generated(one, start.clone(), number, 0.0))
    if not _alike(*fresh):
        raise Unfit(
            "Asked twice for the same text at temperature 0, your model writes two: it draws. Is the "
            "likeliest token taken then, and is dropout off after model.eval()?"
        )
    with suppress(Exception):
        torch.default_generator.manual_seed(0)
        if _alike(said, asked(model, start.clone())) and _alike(
            fresh[0], _generated(model, start.clone(), number, 0.0)
        ):
            return
    raise Unfit(
        "What generate has written once changes what comes after it: called again, or asked for the logits "
        "of a text, your model goes on with what it has kept. Begin every call of generate with an empty "
        "cache, and leave none behind for forward."
    )


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
    """A model with a given state, to be asked how often it writes which token, one behind the other."""
    *state, temperature = tensors
    model = loaded(answer, use, state)
    vocabulary, number = use["arguments"]["vocabulary"], use["number"]

    def shares(prompts: Tensor) -> Tensor:
        torch.manual_seed(0)
        many = prompts.repeat(use["draws"] // use["calls"], 1)  # different prompts side by side
        drawn = [_drawn(model, many.clone(), number, temperature.item()) for _ in range(use["calls"])]
        drawn = [one.unflatten(0, (-1, len(prompts))) for one in drawn]
        varied = (drawn[0] != drawn[0][:1]).any()  # or there is nothing to draw
        if varied and all(torch.equal(one, drawn[0]) for one in drawn[1:]):
            raise Unfit(
                "Called again, generate draws the very same tokens: it sets a seed. Whoever calls it may set "
                "one; leave the random numbers to go on."
            )
        columns = torch.cat(drawn).flatten(1).T
        counts = [torch.bincount(one, minlength=vocabulary)[:vocabulary] for one in columns]
        return torch.stack(counts).unflatten(0, (len(prompts), number)) / len(columns.T)

    kept["trained"] = shares


def _drawn(model: nn.Module, prompts: Tensor, number: int, temperature: float) -> Tensor:
    """The new tokens alone."""
    tokens = _generated(model, prompts, number, temperature)
    shape = [len(prompts), prompts.shape[1] + number]
    if not is_plain(tokens) or list(tokens.shape) != shape or tokens.is_floating_point():
        size = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise Unfit(f"generate returned {size}; expected integers {shape}.")
    return tokens[:, -number:].long()


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
