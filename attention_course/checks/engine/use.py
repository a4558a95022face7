"""How an answer is used, from plain data: the same on a learner's machine and in the grader's sandbox."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from attention_course.checks.engine import effort, language, module, training


def applied(answer: Any, use: Mapping[str, Any], kept: dict[str, Any]) -> Callable[..., Any]:
    """``answer`` as a function of tensors; ``kept`` holds what one step leaves for the next.

    Raises:
        ValueError: there is no such use.
    """
    use = dict(use)
    if bounds := use.pop("effort", None):
        return effort.within(applied(answer, use, kept), use["as"], **bounds)
    if places := use.pop("settings", None):
        return _detached(applied(answer, use, kept), places)
    match use["as"]:
        case "function":
            return answer
        case "module":
            return partial(module.called, answer, use["state"], use["arguments"], use["training"])
        case "loaded":
            return partial(module.loaded, answer, use["state"], use["arguments"])
        case "training":
            return partial(training.trained, answer, kept)
        case "trained":
            return partial(training.asked, kept)
        case "scene":
            return partial(language.SCENES[use["scene"]], use, kept, answer)
    raise ValueError(f"no answer is used as {use['as']!r}")


def _detached(function: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """``function``, to which no gradient leads from the tensors at these ``places``."""
    return lambda *tensors: function(
        *(tensor.detach() if place in places else tensor for place, tensor in enumerate(tensors))
    )


def presented(use: Mapping[str, Any], tensors: Sequence[Tensor]) -> tuple:
    """A case's tensors as a learner sees them: a module's state is a dict, a seed is a number."""
    match use["as"]:
        case "module" | "loaded":
            number = len(use["state"])
            return dict(zip(use["state"], tensors[:number], strict=True)), *tensors[number:]
        case "scene":
            number = len(use["state"])
            state = (dict(zip(use["state"], tensors[:number], strict=True)),) if number else ()
            return (*state, *training.numbers(tensors[number:]))
        case "training":
            return training.numbers(tensors)
    return tuple(tensors)
