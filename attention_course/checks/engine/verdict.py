"""What came out of a check: what was found wrong, and the mistake it looks like."""

from dataclasses import dataclass

from attention_course.checks.engine.exercise import Exercise, Mistake

#: what can be wrong, in the order in which it is told
STAGES = (
    "callable", "unfit", "unwritten", "raised", "type", "shape", "dtype", "inputs",
    "score", "values", "leak", "rows", "gradient", "stability", "time", "forbidden",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One row of an output beside the row that was expected."""

    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: at which stage, in which case, in words, with a table if it helps."""

    stage: str
    case: str
    text: str
    table: Table | None = None


@dataclass(frozen=True)
class Verdict:
    """Everything found wrong, first things first, and the mistake it looks like."""

    exercise: Exercise
    findings: tuple[Finding, ...]
    mistake: Mistake | None = None

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def started(self) -> bool:
        """Whether anything is written: not where every case meets the starter's ``NotImplementedError``."""
        unwritten = {finding.case for finding in self.findings if finding.stage == "unwritten"}
        return unwritten != {case.name for case in self.exercise.cases}

    @property
    def status(self) -> str:
        return "passed" if self.passed else "failed" if self.started else "not started"

    @property
    def points(self) -> int:
        return self.exercise.points if self.passed else 0
