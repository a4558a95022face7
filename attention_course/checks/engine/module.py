"""A class of modules as a function of tensors: it is built, given a state, and called.

What does not fit is told in one sentence, as the text of :class:`Unfit`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attention_course.checks.engine.observe import Unfit, describe, is_plain

State = Mapping[str, Tensor]
#: of many names, so many are told
_NAMES = 3


def called(
    answer: Any, names: Sequence[str], arguments: Mapping[str, Any], training: bool, *tensors: Tensor
) -> Any:
    """What ``answer(**arguments)`` returns when its state is the first of the ``tensors``, called ``names``,
    and the others are given to ``forward``.

    Without gradients it is called more than once: a module is a function of its state and its inputs.

    Raises:
        Unfit: ``answer`` is no class of modules, is built otherwise, has another state, or keeps one.
    """
    module = _built(answer, arguments)
    state, inputs = dict(zip(names, tensors[: len(names)], strict=True)), tensors[len(names) :]
    wrong = _another_state(module, state)
    if wrong:
        raise Unfit(wrong)
    module.train(training)
    if any(tensor.requires_grad for tensor in tensors):
        return _call(module, state, inputs)
    # whatever forward does to its tensors, each call gets them as they were
    copies = [(_copied(state), [tensor.clone() for tensor in inputs]) for _ in range(3)]
    first = _call(module, state, inputs)
    with suppress(Exception):  # what is kept of other inputs shows; of the same ones it may not
        _call(module, copies[2][0], [_others(tensor) for tensor in inputs])
    what = f"Called again with the same {', '.join(_forward(module))}, your module"
    try:
        again, reseeded = (_call(module, *copy, seed) for seed, copy in enumerate(copies[:2]))
    except Exception as error:
        raise Unfit(f"{what} raises {type(error).__name__}. {_KEEPS}") from error
    if not _alike(first, again):
        raise Unfit(f"{what} returns something else. {_KEEPS}")
    if not _alike(first, reseeded):
        raise Unfit(f"{what} returns something else: it draws random numbers. {_DRAWS}")
    return first


def loaded(answer: Any, names: Sequence[str], arguments: Mapping[str, Any], *tensors: Tensor) -> Any:
    """What ``answer(**arguments)`` returns when the first of the ``tensors``, called ``names``, have gone
    through its ``load_torch``, and the others are given to ``forward``.

    Before they are loaded all its parameters are NaN, so that one that is left as it was shows.

    Raises:
        Unfit: ``answer`` is no class of modules, is built otherwise, has no such method, or this raises an
            error, leaves out some, or changes the dictionary.
    """
    module = _built(answer, arguments)
    if not callable(getattr(module, "load_torch", None)):
        raise Unfit(f"{type(module).__name__} has no method load_torch(self, state).")
    state, inputs = dict(zip(names, tensors[: len(names)], strict=True)), tensors[len(names) :]
    module.to(tensors[0].dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    given = dict(state)
    try:
        module.load_torch(given)
    except NotImplementedError:  # a starter
        raise
    except Exception as error:
        raise Unfit(_not_loaded(error)) from error
    if list(given) != list(names):
        raise Unfit(
            "load_torch changes the dictionary that it is given: names are gone, or new ones are in it. "
            "Whoever called it still needs it. Work on a copy, dict(state), or fill one of your own."
        )
    result = module.eval()(*inputs)
    left = [name for name, parameter in module.named_parameters() if bool(parameter.isnan().any())]
    if left and is_plain(result) and bool(result.isnan().any()):
        raise Unfit(f"load_torch leaves {_listed(left)} as they were built, and forward reads them.")
    return result


_KEYS = re.compile(r"(Missing|Unexpected) key\(s\) in state_dict: (.*?)\. ?$", re.MULTILINE)
_SIZES = re.compile(r"size mismatch for (\S+): .*?Size\((.*?)\) from .*?Size\((.*?)\)\.")


def _not_loaded(error: Exception) -> str:
    """The error and its line; of torch's long lists of names as many as one reads."""
    raised, text = describe(error), str(error)
    words = [f"{what.lower()} {_listed(keys.replace(chr(34), '').split(', '), 1)}"
             for what, keys in _KEYS.findall(text)]  # fmt: skip
    sizes = _SIZES.findall(text)
    for name, came, own in sizes[:1]:
        words.append(f"{name} is {own}, and {came} came{_and_more(len(sizes) - 1)}")
    told = f"load_torch raised {raised.type}: {'; '.join(words) or raised.text}"
    return f"{told} (at {raised.line})" if raised.line else told


_KEEPS = (
    "It keeps something from one call to the next: look for what forward assigns to self or changes in it."
)
_DRAWS = (
    "Dropout must be off when a module does not train: nn.Dropout knows, F.dropout has to be told. And a "
    "layer that is made in forward has new weights in each call: make it in __init__."
)


def _call(module: nn.Module, state: State, inputs: Sequence[Tensor], seed: int = 0) -> Any:
    # torch.manual_seed goes on to every device, which takes longer than most modules
    torch.default_generator.manual_seed(seed)
    return functional_call(module, dict(state), tuple(inputs), tie_weights=False)


def _copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def _others(tensor: Tensor) -> Tensor:
    """Other numbers of the same kind: none that ``tensor`` has not, where they are integers."""
    return tensor * -2 + 1 if tensor.is_floating_point() else tensor.flip(tuple(range(tensor.dim())))


def _forward(module: nn.Module) -> tuple[str, ...]:
    return tuple(signature(module.forward).parameters)


def _alike(first: Any, again: Any) -> bool:
    """Nearly the same numbers; whatever is no tensor is for others to judge."""
    if isinstance(first, tuple) and isinstance(again, tuple):
        return len(first) == len(again) and all(map(_alike, first, again))
    if not is_plain(first) or not is_plain(again):
        return True
    same = first.shape == again.shape and first.dtype == again.dtype
    return same and torch.allclose(first, again, rtol=1e-4, atol=1e-5, equal_nan=True)


# Building -------------------------------------------------------------------------------------


def _built(answer: Any, arguments: Mapping[str, Any]) -> nn.Module:
    if isinstance(answer, nn.Module):
        raise Unfit(
            f"A class was to be handed over, but this is a module that is built already. Hand over the class "
            f"itself, without calling it: {type(answer).__name__}."
        )
    if not isinstance(answer, type):
        raise Unfit(f"A class was to be handed over, but this is a {type(answer).__name__}.")
    if not issubclass(answer, nn.Module):
        name = answer.__name__
        raise Unfit(f"{name} is a class, but no module: its first line is class {name}(nn.Module).")
    call = f"{answer.__name__}({', '.join(f'{name}={value}' for name, value in arguments.items())})"
    try:
        signature(answer).bind(**arguments)
    except TypeError as error:
        raise Unfit(f"It is built as {call}, and __init__ does not take that: {error}.") from None
    module = answer(**arguments)
    if not isinstance(module, nn.Module):
        raise Unfit(f"{call} gives a {type(module).__name__}, and no module.")
    return module


# The state ------------------------------------------------------------------------------------


def _another_state(module: nn.Module, state: State) -> str:
    """How the module's own state differs from ``state``, in one sentence or two; empty if it does not."""
    own = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)}
    lacking = [name for name in state if name not in own]
    surplus = [name for name in own if name not in state]
    if lacking or surplus:
        return " ".join(_other_names(module, own, state, lacking, surplus))
    shapes = [name for name in state if own[name].shape != state[name].shape]
    if shapes:
        return f"{_other_shape(shapes[0], own, state)}{_and_more(len(shapes) - 1)}."
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in names:
            return (
                f"{names[id(parameter)]} and {name} are one and the same tensor under two names. "
                "Each learns for itself: build one for each."
            )
        names[id(parameter)] = name
    return ""


def _other_names(
    module: nn.Module, own: State, state: State, lacking: list[str], surplus: list[str]
) -> Iterator[str]:
    place = next(_unregistered(module), "")
    if lacking and place:
        yield (
            f"{place}, where nn.Module does not see what is in it: no optimizer learns it. Give each an "
            "attribute of its own."
        )
    near = dict(_nearest(own, state, lacking, surplus))
    for name, other in list(near.items())[:1]:
        yield f"Your module has {other}; expected {name}{_and_more(len(near) - 1)}."
    absent = [name for name in lacking if name not in near]
    if absent:
        yield f"Your module lacks {_listed(absent)}."
    extra = [name for name in surplus if name not in near.values()]
    if extra:
        biases = all(name.endswith(".bias") for name in extra)
        buffers = set(extra) <= {name for name, _ in module.named_buffers()}
        out = ": bias=False leaves it out" if biases else ""
        out = ": register_buffer(..., persistent=False) keeps it out of the state" if buffers else out
        yield f"Nobody asked for {_listed(extra)}{out}."


def _nearest(own: State, state: State, lacking: list[str], surplus: list[str]) -> Iterator[tuple[str, str]]:
    """(expected, had) where a name is nearly right and the shape is the same."""
    left = list(surplus)
    for name in lacking:
        fitting = [other for other in left if own[other].shape == state[name].shape]
        # the same place with another last word, or the same last word in another place
        close = get_close_matches(name, fitting, n=1, cutoff=0.5)
        if close:
            left.remove(close[0])
            yield name, close[0]


def _other_shape(name: str, own: State, state: State) -> str:
    got, want = list(own[name].shape), list(state[name].shape)
    text = f"{name} is {got}; expected {want}"
    turned = got == want[::-1] and got != want and name.endswith("weight")
    return f"{text}: torch.nn.Linear stores [out, in]" if turned else text


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Attributes of it, or of a part, that hold modules or parameters out of sight."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
                continue
            values = value.values() if isinstance(value, dict) else value
            if any(isinstance(each, (nn.Module, nn.Parameter)) for each in values):
                yield f"self.{f'{prefix}.' if prefix else ''}{name} is a plain {type(value).__name__}"


def _listed(names: list[str], most: int = _NAMES) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _and_more(number: int) -> str:
    return f" (and {number} more)" if number else ""
