"""What an exercise on a whole language model asks for: scenes that a learner's class goes through.

A scene runs where the answer is (:mod:`attention_course.checks.engine.language`); what it returns is compared
with what the reference's scene returns, or, for a :class:`MeasuredScene`, asked and measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attention_course.checks.engine.asks import Inputs, Played, Step, Training, sizes

if TYPE_CHECKING:
    from attention_course.checks.engine.exercise import Case


class _Played(Played):
    """What scenes have in common: their name, and what a case draws for them."""

    def answer(self, name: str, reference: Any) -> str:
        return reference.__name__

    def parameters(self, reference: Any) -> tuple[str, ...]:
        return (*self.state, *self.given)

    def call(self, name: str, reference: Any) -> str:
        return self.called

    def setting(self, case: "Case", reference: Any) -> str:
        """How the model is built, and what it is given beside its state."""
        built = [f"{name}={value}" for name, value in case.arguments.items()]
        tensors = case.inputs()[len(self.state) :][: len(self.given)]
        return ", ".join([*built, sizes(self.given, tensors)])

    def use(self, case: "Case") -> dict[str, Any]:
        return {
            "as": "scene", "scene": self.scene, "state": list(self.state), "arguments": dict(case.arguments),
            **self.told,
        }  # fmt: skip


@dataclass(frozen=True)
class Scene(_Played):
    """A class or a function that goes through a scene; what comes of it is compared."""

    #: its name in :data:`attention_course.checks.engine.language.SCENES`
    scene: str
    #: names of the tensors that a case draws behind the state
    given: tuple[str, ...]
    #: how the answer is called, for messages
    called: str
    #: names of the state that a model is given
    state: tuple[str, ...] = ()
    #: what else the scene is told
    told: Mapping[str, Any] = field(default_factory=dict, hash=False)
    noun: str = "class"
    handed_over: str = "class"

    def steps(self, case: "Case", inputs: Inputs) -> tuple[Step, ...]:
        return (Step(self.use(case), inputs, f"Your {self.noun}"),)


@dataclass(frozen=True, kw_only=True)
class MeasuredScene(_Played, Training):
    """A scene that ends with something to be asked. A case draws the state, what is given, the questions,
    and their right answers."""

    scene: str
    given: tuple[str, ...]
    called: str
    measure: Callable
    state: tuple[str, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict, hash=False)
    noun: str = "class"
    handed_over: str = "class"

    def _asked(self) -> str:
        """What is asked in the end: the class's own model, or what a function returned."""
        return self.called if self.handed_over == "class" else f"What your {self.noun} made"

    def steps(self, case: "Case", inputs: Inputs) -> tuple[Step, ...]:
        *given, questions, _ = inputs
        return (
            Step(self.use(case), tuple(given), f"Your {self.noun}", self.seconds),
            Step({"as": "trained"}, (questions,), self._asked()),
        )
