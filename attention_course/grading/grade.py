"""Grade one submission: run its cells, call its functions, judge the values that come back."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from time import monotonic

from torch import Tensor

from attention_course.checks.engine import report
from attention_course.checks.engine.asks import Step
from attention_course.checks.engine.judge import judge, not_a_function
from attention_course.checks.engine.observe import Outcome, Raised
from attention_course.checks.engine.registry import find_chapter
from attention_course.checks.engine.verdict import Verdict
from attention_course.grading.assignment import FLAGS, Assignment, Plan, Task, plan
from attention_course.grading.cells import Cell, Unreadable, read_cells
from attention_course.grading.remote import Ended, Launcher, NotAFunction, Session, session

#: how often a notebook is started anew after it ended its process
_STARTS = 8
#: the worst that happened is what is told
_ORDER = ("graded", "timeout", "crashed", "refused")
#: may ask for the inputs that learners see
_INPUTS = re.compile(r"^[^#\n]*\binputs\b", re.MULTILINE)


@dataclass(frozen=True)
class Judged:
    """One exercise: passed, failed, missing, timeout, crashed or refused."""

    status: str
    message: str

    @property
    def stands(self) -> bool:
        """Whether another try in the same notebook could say nothing better."""
        return self.status not in ("failed", "missing")


@dataclass(frozen=True)
class Graded:
    """One submission."""

    status: str
    judged: dict[str, Judged]
    flags: tuple[str, ...]


def grade(content: bytes, assignment: Assignment, seed: int, launcher: Launcher) -> Graded:
    """Run and judge a notebook.

    Raises:
        SandboxError: the machine failed, not the notebook.
    """
    try:
        cells = read_cells(content)
    except Unreadable as unreadable:
        judged = {task.exercise.name: Judged("missing", unreadable.message) for task in assignment.tasks}
        return Graded(unreadable.status, judged, ())
    return _Run(cells, plan(cells, assignment), assignment, seed, launcher).graded()


def record(graded: Graded, assignment: Assignment) -> dict:
    """What is written down about a graded submission, but for whose it is."""
    exercises = []
    for task in assignment.tasks:
        judged, most = graded.judged[task.exercise.name], task.exercise.points
        exercises.append({
            "name": task.exercise.name,
            "status": judged.status,
            "points": most if judged.status == "passed" else 0,
            "max_points": most,
            "message": judged.message,
        })  # fmt: skip
    return {
        "assignment": assignment.name,
        "status": graded.status,
        "points": sum(exercise["points"] for exercise in exercises),
        "max_points": assignment.points,
        "exercises": exercises,
        "flags": list(graded.flags),
    }


class _Run:
    """One notebook from its first cell to its last verdict, over as many processes as it ends.

    A cell or a call that ends the process is left out when the notebook is started anew, so that it
    costs only itself.
    """

    def __init__(
        self, cells: Sequence[Cell], found: Plan, assignment: Assignment, seed: int, launcher: Launcher
    ):
        self.cells, self.plan, self.assignment, self.seed, self.launcher = (
            cells,
            found,
            assignment,
            seed,
            launcher,
        )
        self.judged: dict[str, Judged] = {}
        #: index of a cell -> what it raised
        self.raised: dict[int, Raised] = {}
        #: index of a cell -> why it is left out
        self.left_out: dict[int, Ended] = {}
        self.status = "graded"
        #: what is being done: an index of a cell, or a task
        self.current: int | Task | None = None
        #: which part of a task's answer is called
        self.subject = ""

    def graded(self) -> Graded:
        deadline = monotonic() + self.launcher.limits.total
        for _ in range(_STARTS):
            try:
                with session(self.launcher, deadline) as notebook:
                    self._through(notebook)
                break
            except Ended as end:
                ended = end
            self._worse(ended.status)
            if isinstance(self.current, Task):
                self._conclude(self.current, Judged(ended.status, f"{self.subject} {ended.why}."))
            elif isinstance(self.current, int):
                self.left_out[self.current] = ended
            if monotonic() > deadline:
                self._give_up(ended)
                break
        else:
            self._give_up(ended)
        return Graded(self.status, self.judged, (*self.plan.flags, *islice(self._stopped(), FLAGS)))

    def _stopped(self) -> Iterator[str]:
        """The cells that were left out or cut short, for whoever looks into the matter."""
        for index, ended in sorted(self.left_out.items()):
            yield f"cell {index + 1}: {ended.why}"
        for index, raised in sorted(self.raised.items()):
            # an experiment that calls what is not written yet is told by the verdict already
            if index in self.left_out or raised.type == "NotImplementedError":
                continue
            why = (
                raised.text if raised.type == "TookTooLong" else f"stopped with {raised.type}: {raised.text}"
            )
            yield f"cell {index + 1}: {why}"[:200]

    def _worse(self, status: str) -> None:
        self.status = max(self.status, status, key=_ORDER.index)

    def _give_up(self, ended: Ended) -> None:
        """What could not be judged any more has the status of what stopped it."""
        for task in self.assignment.tasks:
            if task.exercise.name not in self.judged:
                text = f"Not judged, because your notebook {ended.why}."
                self.judged[task.exercise.name] = Judged(ended.status, text)

    def _through(self, notebook: Session) -> None:
        self.current = None
        if any(_INPUTS.search(source) for _, source in self.plan.code):  # they take time to send
            notebook.public_inputs(public_inputs(self.assignment))
        for index, source in self.plan.code:
            if not any(self._open(task, index) for task in self.assignment.tasks):
                return  # what is left of the notebook can change no verdict
            if index not in self.left_out:
                self.current = index
                raised = notebook.cell(index + 1, source)
                self.raised.pop(index, None)
                if raised:
                    self.raised[index] = raised
                    if raised.type == "TookTooLong":
                        self._worse("timeout")
            for task in self.assignment.tasks:
                if index in self.plan.judged[task.exercise.name]:
                    self._judge(task, notebook, index)
        for task in self.assignment.tasks:
            if self._open(task, len(self.cells)):
                self._judge(task, notebook, len(self.cells))

    def _judge(self, task: Task, notebook: Session, index: int) -> None:
        if self._stands(task):
            return
        self.current = task
        self._conclude(task, self._ask(task, notebook, index))

    def _open(self, task: Task, index: int) -> bool:
        """Whether the verdict can change from the cell at ``index`` on: there is none yet, or some answer,
        which this one may call, is written anew below its check."""
        if self._stands(task):
            return False
        checks = self.plan.judged[task.exercise.name]
        if task.exercise.name not in self.judged or checks[-1:] >= (index,):
            return True
        written = max(
            (place for name, places in self.plan.answers.items() for place in places[-1:]
             if place > max(self.plan.judged[name], default=place)),
            default=-1,
        )  # fmt: skip
        return written >= index or (index == len(self.cells) and written > max(checks, default=-1))

    def _stands(self, task: Task) -> bool:
        known = self.judged.get(task.exercise.name)
        return known is not None and known.stands

    def _conclude(self, task: Task, judged: Judged) -> None:
        """The first thing found wrong stays, unless a later try passes or shows more."""
        known = self.judged.get(task.exercise.name)
        if not known or judged.stands or known.status == "missing":
            self.judged[task.exercise.name] = judged

    def _ask(self, task: Task, notebook: Session, index: int) -> Judged:
        exercise = task.exercise
        places = self.plan.answers[exercise.name]
        written = 1 + max((place for place in places if place <= index), default=-1)
        absent: list[NotAFunction] = []

        def run(step: Step, cotangents: tuple[Tensor, ...] | None) -> Outcome:
            self.subject = step.subject
            outcome = notebook.call(
                task.function, step, cotangents, exercise.forbidden, exercise.name, written
            )
            if isinstance(outcome, NotAFunction):
                absent.append(outcome)
                raise _Absent
            return outcome

        try:
            verdict: Verdict = judge(exercise, run, self.seed)
        except _Absent:
            if absent[0].missing:
                return Judged("missing", self._missing(task))
            verdict = not_a_function(exercise, absent[0].kind)
        return Judged("passed" if verdict.passed else "failed", report.summary(verdict))

    def _missing(self, task: Task) -> str:
        """Why there is no function of that name."""
        name = task.function
        places = self.plan.answers[task.exercise.name]
        for index in reversed(places):
            cell, number = self.cells[index], index + 1
            if index in self.left_out:
                return f"{name} is not there: its cell, number {number}, {self.left_out[index].why}."
            if index in self.raised:
                raised = self.raised[index]
                words = f"{raised.type}: {raised.text}" if raised.text else raised.type
                at = f" ({raised.line})" if raised.line else ""
                what = "has a" if raised.type == "SyntaxError" else "stopped with"
                return f"{name} is not there: its cell, number {number}, {what} {words}{at}."
            if cell.kind != "code":
                return (
                    f"{name} is not there: its cell, number {number}, is a {cell.kind} cell; it must be code."
                )
            if not cell.source.strip():
                return f"{name} is not there: its cell, number {number}, is empty."
        return f"No cell defines {name}."


class _Absent(Exception):
    """There is nothing to call."""


@lru_cache(maxsize=1)
def _shown(chapter: str) -> dict[str, dict[str, Step]]:
    return {
        exercise.name: {case.name: exercise.shown(case) for case in exercise.cases}
        for exercise in find_chapter(chapter).exercises
    }


def public_inputs(assignment: Assignment) -> dict[str, dict[str, Step]]:
    """What learners see of each case on their own machines: seed 0, never the instructor's."""
    return _shown(assignment.name)
