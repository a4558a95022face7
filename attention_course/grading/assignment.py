"""What an instructor hands out, and where each exercise stands in what comes back."""

import ast
import hashlib
import io
import json
import re
import sys
import tokenize
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

from attention_course.checks.engine.asks import Training
from attention_course.checks.engine.exercise import Chapter, Exercise
from attention_course.checks.engine.observe import SLACK
from attention_course.checks.engine.registry import MODULES, find_chapter
from attention_course.checks.engine.watch import closed
from attention_course.grading.cells import Cell, Unreadable, read_cells
from attention_course.grading.shown import is_module, shown

_COURSE = Path(__file__).parents[1]
#: these hold the answers
_HIDDEN = ("checks", "grading")
#: as it is when it is imported: a worker that outlives an update does not take its own code for the new one
_CODE = tuple(
    path.read_bytes()
    for path in sorted(_COURSE.rglob("*.py"))
    if path.relative_to(_COURSE).parts[0] in _HIDDEN
)


class AssignmentError(ValueError):
    """There is no such assignment, or its source does not fit the exercises of its chapter."""


@dataclass(frozen=True)
class Task:
    """One exercise, and the cells of the released notebook that belong to it."""

    exercise: Exercise
    #: the name of the function, or of the class, in the notebook
    function: str
    #: grade_id of the cells to fill in, and of the cell that checks
    solutions: frozenset[str]
    check: str


@dataclass(frozen=True)
class Assignment:
    """A chapter's exercises as they were handed out."""

    chapter: Chapter
    tasks: tuple[Task, ...]
    #: the code cells of the released notebook
    starter: tuple[str, ...]
    #: path within ``attention_course`` -> content: what the released notebook uses of it
    files: dict[str, bytes]
    #: other modules it imports
    preload: tuple[str, ...]
    #: changes when the notebook, the exercises, the grader or torch do
    digest: str

    @property
    def name(self) -> str:
        return self.chapter.name

    @property
    def points(self) -> int:
        return self.chapter.points

    @property
    def seconds(self) -> float:
        """What its training runs may take on the clock, each as often as it is tried."""
        tried = ((task.exercise.asks, len(task.exercise.cases)) for task in self.tasks)
        allowed = (asks.seconds * cases for asks, cases in tried if isinstance(asks, Training))
        return SLACK * sum(allowed, 0.0)


def load(exercises: Path, name: str) -> Assignment:
    """The assignment ``name``, as its notebook below ``exercises`` was handed out.

    Raises:
        AssignmentError: there is none, or it does not fit its chapter.
    """
    handed_out = exercises / "release" / name / f"{name}.ipynb"
    if name not in MODULES or not handed_out.is_file():
        names = sorted(path.stem for path in (exercises / "release").glob("*/*.ipynb"))
        known = f"there are: {', '.join(names)}" if names else f"{exercises / 'release'} holds no notebooks"
        raise AssignmentError(f"no assignment is called {name!r}; {known}")
    content = handed_out.read_bytes()
    try:
        read_cells(content)
    except Unreadable as error:
        raise AssignmentError(f"{handed_out}: {error.message}") from None
    cells = json.loads(content)["cells"]
    chapter = find_chapter(name)
    starter = tuple(_source(cell) for cell in cells if cell["cell_type"] == "code")
    tasks = tuple(_task(exercise, cells, handed_out) for exercise in chapter.exercises)
    given = [_python(source) for source in starter]
    files = shown(given, {task.function for task in tasks})
    preload = {module.partition(".")[0] for source in given for module in _imports(source)}
    preload -= {"attention_course"}
    return Assignment(chapter, tasks, starter, files, tuple(sorted(preload)), _digest(content, files))


def official(exercises: Path, name: str) -> bytes:
    """The notebook with the official solutions of the assignment ``name``.

    Raises:
        AssignmentError: there is none.
    """
    source = exercises / "source" / name / f"{name}.ipynb"
    try:
        return source.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise AssignmentError(f"the official solution {source} cannot be read: {reason}") from None


def _source(cell: dict) -> str:
    return "".join(cell["source"])


def _task(exercise: Exercise, cells: Sequence[dict], handed_out: Path) -> Task:
    """The cells of ``exercise``: its check, and what there is to fill in since the check before it."""
    solutions: set[str] = set()
    for cell in cells:
        marks = cell["metadata"].get("nbgrader", {})
        if marks.get("solution"):
            solutions.add(marks["grade_id"])
        if marks.get("grade") and not marks.get("solution"):
            if checks(exercise.name, _source(cell)):
                return Task(exercise, exercise.answer, frozenset(solutions), marks["grade_id"])
            solutions = set()
    raise AssignmentError(f"{handed_out} has no cell that checks {exercise.name}")


def checks(exercise: str, source: str) -> bool:
    """Whether a cell's text calls the check of ``exercise``, on a line that is no comment."""
    name = rf"""["']{re.escape(exercise)}["']"""
    call = rf"""^[^#\n]*\bcheck\(\s*(?:(?:name\s*=\s*)?|function\s*=\s*\w+\s*,\s*name\s*=\s*){name}"""
    return bool(re.search(call, source, re.MULTILINE))


def _digest(content: bytes, files: dict[str, bytes]) -> str:
    """Of all that can change a verdict: the notebook, the course's own code, Python and the libraries."""
    parts = [content, *_CODE]
    parts += [f"{name}\0".encode() + content for name, content in sorted(files.items())]
    parts += [f"{name} {metadata.version(name)}".encode() for name in ("torch", "numpy", "ipython")]
    parts.append(sys.version.encode())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def key(assignment: Assignment, content: bytes, seed: int, unsafe: bool = False) -> str:
    """Identifies a verdict: the same notebook, assignment, grader and seed give the same, as long as both
    or neither ran in a sandbox."""
    parts = [assignment.digest, str(seed), unsafe, hashlib.sha256(content).hexdigest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# What a notebook imports ----------------------------------------------------------------------


def _python(source: str) -> str:
    """Without magics; what they import is no module."""
    return re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def _imports(source: str) -> Iterator[str]:
    """The full names of all modules that ``source`` imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


# Where each exercise stands in a submission ---------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What to run, in order, and after which cell each exercise is judged."""

    #: (index among all cells, source) of the code cells
    code: tuple[tuple[int, str], ...]
    #: exercise -> indices of the cells after which it is judged, until it passes
    judged: dict[str, tuple[int, ...]]
    #: exercise -> indices of the cells that are its answer
    answers: dict[str, tuple[int, ...]]
    #: what a person should look at
    flags: tuple[str, ...]


def plan(cells: Sequence[Cell], assignment: Assignment) -> Plan:
    """Find every exercise in a submission, whatever was moved, copied, renamed or deleted.

    A grade_id only helps to find an answer; what a check is, and what it is worth, comes from the source.
    """
    code = tuple((index, cell.source) for index, cell in enumerate(cells) if cell.kind == "code")
    judged, answers = {}, {}
    for task in assignment.tasks:
        places = [index for index, source in code if checks(task.exercise.name, source)]
        marked = [
            index for index, cell in enumerate(cells) if cell.kind == "code" and cell.grade_id == task.check
        ]
        # the check as it was handed out, above whatever experiments; but a cell that was copied without
        # end must not be judged without end
        chosen = {*places[:1], *marked[:_CHECKS], *places[-_CHECKS:]}
        judged[task.exercise.name] = tuple(sorted(chosen))
        answers[task.exercise.name] = tuple(
            index for index, cell in enumerate(cells)
            if cell.grade_id in task.solutions
            or (cell.kind == "code" and defines(task.function, cell.source))
        )  # fmt: skip
    return Plan(code, judged, answers, tuple(_flags(code, answers, assignment)))


def defines(function: str, source: str) -> bool:
    name = re.escape(function)
    return bool(
        re.search(
            rf"^[ \t]*(?:def[ \t]+{name}[ \t]*\(|class[ \t]+{name}\b|{name}[ \t]*(?::[^=\n]+)?=(?!=))",
            source,
            re.MULTILINE,
        )
    )


_COMMANDS = re.compile(
    r"^[ \t]*(?:!|%%(?:bash|sh|script|system|writefile)\b|%(?:pip|conda|run)\b)|=[ \t]*!\w", re.MULTILINE
)
#: how many checks of one exercise count, of those with its mark and of the last
_CHECKS = 5
#: ways around a name that is not to be used, or to the code that watches for it; in what ``_bare`` leaves
_DETOURS = re.compile(
    # names and code made of text
    r"\b(?:__import__|importlib|pkgutil|pydoc|runpy|mock|builtins|exec|[gs]etattr|attrgetter|methodcaller)\b|"
    r"(?<!\.)\b(?:eval|compile)\b|"
    # what others hold: their modules, their frames, their objects
    r"\bmodules\b(?! \()|\b(?:globals|locals|vars|gc|inspect|ctypes)\b|"
    r"\b(?:_getframe|_current_frames|currentframe|walk_stack|settrace|setprofile)\b|"
    r"\b(?:tb_frame|(?:gi|cr|ag)_frame|f_(?:back|globals|locals|builtins))\b|"
    r"\b__(?:globals|dict|builtins|loader|spec|subclasses|mro|closure|code|getattribute|traceback)__(?!\w)|"
    # another thread, or another process, where no call is watched
    r"\b(?:threading|_thread|concurrent|multiprocessing|subprocess|to_thread|run_in_executor)\b|"
    r"\b(?:fork(?:pty)?|popen|posix_spawnp?)\b|\bos\.(?:system|spawn\w+)\b|"
    # torch's own inside, and its own ways to be watched
    r"\btorch\.(?:_\w+|ops\b|jit\b|overrides\b)|\b_python_dispatch\b|\bTorch(?:Function|Dispatch)Mode\b|"
    r"\bDisableTorchFunction\w*"
)
#: what a person is shown of one notebook
FLAGS, _FLAG_LENGTH = 20, 200


def _flags(
    code: Sequence[tuple[int, str]], answers: dict[str, tuple[int, ...]], assignment: Assignment
) -> Iterator[str]:
    """At most so many, each at most so long: a stranger decides what is in them."""
    found = _all_flags(code, answers, assignment)
    yield from (flag[:_FLAG_LENGTH] for flag in islice(found, FLAGS))


def _all_flags(
    code: Sequence[tuple[int, str]], answers: dict[str, tuple[int, ...]], assignment: Assignment
) -> Iterator[str]:
    # every search is linear in the text: it is a stranger's
    starter = {_lines(source) for source in assignment.starter}
    own = [(index, source) for index, source in code if _lines(source) not in starter]
    bare = {index: _bare(source) for index, source in code}
    course = _course_names(bare.values(), _given(assignment))
    for task in assignment.tasks:
        text = "\n".join(bare.get(index, "") for index in answers[task.exercise.name])
        words = set(re.findall(r"\w+", text))
        imported = set(re.findall(r"\w+", "\n".join(line for line in text.split("\n") if "import" in line)))
        for name in closed(task.exercise.forbidden):
            if name in imported or (name in words and re.search(rf"\.{re.escape(name)}\b", text)):
                yield f"{task.function}: names {name}, which is not allowed there"
        for name in sorted(words & course):
            yield f"{task.function}: uses {name} of the course's own code"
    places = {place for found in answers.values() for place in found}
    for index, source in own:
        if _COMMANDS.search(source):
            yield f"cell {index + 1}: commands of the system, which are not run"
        detour = _DETOURS.search(bare[index])
        if detour:
            yield f"cell {index + 1}: {detour.group()}"
        if index not in places:
            for name in sorted(set(re.findall(r"\w+", bare[index])) & course):
                yield f"cell {index + 1}: uses {name} of the course's own code"


def _lines(source: str) -> str:
    return "\n".join(source.splitlines())


#: where IPython reads something that is no Python: magics, commands, calls without brackets
_MAGIC = re.compile(r"^[ \t]*[%!?,;/]|=[ \t]*[%!]", re.MULTILINE)


def _bare(source: str) -> str:
    """A cell's code, word by word: a statement a line, one space between two words, none around a dot.

    Comments and strings are left out, for a word in them is no use of it; what makes code of a string is
    flagged itself. Letters are as Python reads them in a name. What is not Python alone stays whole.
    """
    words = re.findall(r"\w+|[^\w\s#\\]|\n", source)
    if not _MAGIC.search(source):
        with suppress(tokenize.TokenError, SyntaxError):
            tokens = tokenize.generate_tokens(io.StringIO(source, newline=None).readline)
            words = [_word(token) for token in tokens if token.type not in _LEFT_OUT]
    return unicodedata.normalize("NFKC", re.sub(r" ?\. ?", ".", " ".join(words)))


_LEFT_OUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)


def _word(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NEWLINE:
        return "\n"
    # but for f-strings, which hold code
    plain = token.type == tokenize.STRING and not re.match("r?f", token.string, re.IGNORECASE)
    return '""' if plain else token.string


_IMPORT = re.compile(r"(?:\bfrom ([\w.]+) )?\bimport (?:\( ([\w., \n]+)|([\w., *]+))")
#: what learners are offered of the checks
_OFFERED = {
    f"attention_course.checks.{name}" for name in ("check", "hint", "inputs", "progress", "CheckFailed")
}


def _course_imports(text: str) -> Iterator[tuple[str, str]]:
    """(full name, name here) of what a bare text imports of the course, but for its data and its offers."""
    for start, *listed in _IMPORT.findall(text):
        for item in "".join(listed).split(","):
            words = item.split() or [""]
            name = f"{start}.{words[0]}" if start else words[0]
            root = name.partition(".")[0]
            if root != "attention_course":
                continue
            if not start and len(words) == 1:  # all of the course, by its own name
                yield name, root
            elif name not in _OFFERED and not f"{name}.".startswith(f"{root}.lab."):
                yield name, root if words[-1] == "*" else words[-1]


def _given(assignment: Assignment) -> set[str]:
    """What the assignment hands to its answers: functions that its own cells import by name, unless
    they are what it asks for. A module holds more than what was meant, so it is not given."""
    answers = {name for task in assignment.tasks for name in (task.function, *task.exercise.forbidden)}
    imported = {name for source in assignment.starter for name, _ in _course_imports(_bare(source))}
    return {name for name in imported if name.rpartition(".")[2] not in answers and not is_module(name)}


def _course_names(texts: Iterable[str], given: set[str]) -> set[str]:
    """Names that stand for the course's own code in bare texts, but for what is given and what is offered."""
    return {here for text in texts for name, here in _course_imports(text) if name not in given}
