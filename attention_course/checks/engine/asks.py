"""What an exercise may ask for: a function, a module, a training run.

Each says how an answer is used, in steps that are plain data: what happens in a learner's process is told
to it in JSON and tensors (:mod:`attention_course.checks.engine.use`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from attention_course.checks.engine.exercise import Case

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Step:
    """One call of an answer: how it is used, and on which tensors."""

    #: plain JSON, for :func:`attention_course.checks.engine.use.applied`
    use: Mapping[str, Any]
    inputs: Inputs
    #: what is called, at the start of a sentence
    subject: str = "Your function"
    #: processor seconds it may take; None: whatever a call usually may
    seconds: float | None = None


@dataclass(frozen=True)
class Effort:
    """What an answer may do in a case: bounds that only another way to the result reaches."""

    #: numbers in the largest tensor that it makes
    entries: int
    #: calls of torch, as torch counts its operations
    operations: int
    #: products in matrix products and numbers in all other results, in all; None: as many as it likes
    work: int | None = None
    #: (from so much work on, what usually takes that), in rising order
    known: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Function:
    """A function of tensors; a case draws what it is called with."""

    noun: ClassVar[str] = "function"
    handed_over: ClassVar[str] = "function"

    #: what a call of it may do; None: whatever it likes
    effort: Effort | None = None

    def answer(self, name: str, reference: Callable) -> str:
        """The name of the answer in the notebook."""
        return name

    def parameters(self, reference: Callable) -> tuple[str, ...]:
        """The names of the tensors that the answer may not change."""
        return tuple(signature(reference).parameters)

    def call(self, name: str, reference: Callable) -> str:
        """How the answer is called, as in ``scores(query, key)``."""
        return f"{name}({', '.join(self.parameters(reference))})"

    def setting(self, case: "Case", reference: Callable) -> str:
        """What goes in, as in ``query [3, 4], key [5, 4]``."""
        return sizes(self.parameters(reference), case.inputs())

    def use(self, case: "Case") -> dict[str, Any]:
        return {"as": "function", **_effort(self.effort)}

    def steps(self, case: "Case", inputs: Inputs) -> tuple[Step, ...]:
        return (Step(self.use(case), inputs),)


@dataclass(frozen=True)
class Module:
    """A class of modules. A case says how it is built, and draws its state and what it is called with:
    the tensors named in ``state``, in that order, then those of ``forward``.

    It is watched as a function of all of them, so that it is compared like any other function, with
    gradients to every parameter.
    """

    noun: ClassVar[str] = "module"
    handed_over: ClassVar[str] = "class"

    #: names of the state dict, as the reference has them
    state: tuple[str, ...]
    #: called in training mode, not in evaluation mode
    training: bool = False
    #: what the calls of one case may do: four in a row, or one with gradients; None: whatever it likes
    effort: Effort | None = None

    def answer(self, name: str, reference: type) -> str:
        return reference.__name__

    def parameters(self, reference: type) -> tuple[str, ...]:
        return (*self.state, *self._forward(reference))

    def call(self, name: str, reference: type) -> str:
        built = f"{reference.__name__}({', '.join(signature(reference).parameters)})"
        return f"{built}({', '.join(self._forward(reference))})"

    def setting(self, case: "Case", reference: type) -> str:
        """How it is built and called; the sizes of the state follow from that."""
        built = [f"{name}={value}" for name, value in case.arguments.items()]
        return ", ".join([*built, sizes(self._forward(reference), case.inputs()[len(self.state) :])])

    def use(self, case: "Case") -> dict[str, Any]:
        return {
            "as": "module", "state": list(self.state), "arguments": dict(case.arguments),
            "training": self.training, **_effort(self.effort),
        }  # fmt: skip

    def steps(self, case: "Case", inputs: Inputs) -> tuple[Step, ...]:
        return (Step(self.use(case), inputs, "Your module"),)

    def _forward(self, reference: Any) -> tuple[str, ...]:
        return tuple(signature(reference.forward).parameters)[1:]


@dataclass(frozen=True)
class Loaded(Module):
    """A class of modules with names of its own, and a method ``load_torch(state)`` that takes a state dict
    with the names in ``state``. No gradient reaches the state: name it in the exercise's ``settings``.
    """

    def use(self, case: "Case") -> dict[str, Any]:
        return {"as": "loaded", "state": list(self.state), "arguments": dict(case.arguments)}


@dataclass(frozen=True)
class Training:
    """A function that trains. A case draws what it is given, then questions, then their right answers.

    What it returns is called with the questions, which it has not seen while it trained. ``measure`` takes
    what comes back, and the right answers, which stay with whoever judges; both have one shape and dtype.
    A number without axes, such as a seed, is given as a number.
    """

    noun: ClassVar[str] = "function"
    handed_over: ClassVar[str] = "function"

    #: what is measured, in words
    number: str
    measure: Callable[[Tensor, Tensor], float]
    #: processor seconds that the training may take, on one thread
    seconds: float
    #: bounds of what is measured; one of them at least
    at_least: float | None = None
    at_most: float | None = None
    #: what is measured where nothing was learned
    guess: float | None = None

    def answer(self, name: str, reference: Callable) -> str:
        return name

    def parameters(self, reference: Callable) -> tuple[str, ...]:
        return tuple(signature(reference).parameters)

    def call(self, name: str, reference: Callable) -> str:
        return f"{name}({', '.join(self.parameters(reference))})"

    def setting(self, case: "Case", reference: Callable) -> str:
        return sizes(self.parameters(reference), case.inputs()[:-2])

    def use(self, case: "Case") -> dict[str, Any]:
        return {"as": "training"}

    def steps(self, case: "Case", inputs: Inputs) -> tuple[Step, ...]:
        """Two: the questions are sent when the training is over, the answers never."""
        *given, questions, _ = inputs
        return (
            Step(self.use(case), tuple(given), seconds=self.seconds),
            Step({"as": "trained"}, (questions,), "What your function returned"),
        )


class Played:
    """A class that goes through scenes (:mod:`attention_course.checks.engine.scenes`)."""


Asks = Function | Module | Training | Played


def _effort(effort: Effort | None) -> dict[str, Any]:
    bounds = asdict(effort) if effort else {}
    given = {name: bound for name, bound in bounds.items() if bound}
    return {"effort": given} if given else {}


def sizes(names: tuple[str, ...], tensors: Inputs) -> str:
    """The tensors with their sizes, as in ``query [3, 4], key [5, 4]``."""
    pairs = zip(names, tensors, strict=True)
    # a tensor without axes is a number
    return ", ".join(f"{name} {list(tensor.shape) or tensor.item()}" for name, tensor in pairs)
