"""Records as people and gradebooks want them: CSV, a page for each student, a table for the terminal.

Everything here counts a student's latest record only. ``infra_error`` says nothing about a
submission: it has no points in ``grades.csv``, and no row at all in what a gradebook imports,
because an empty cell there erases a grade that was entered before.

The CSV files are UTF-8 without a byte order mark: a script, or an importer, would take the mark for
a part of the first heading. A spreadsheet is to be told UTF-8 when it opens them.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType

from attention_course.grading.results import INFRA_ERROR, STATUSES, Record, RecordError, latest, replace
from attention_course.grading.similarity import Pair
from attention_course.grading.submissions import safe_name
from attention_course.palette import DARK, LIGHT

#: lines of a terminal's table that are given to single submissions
SHOWN = 20

WORDS = {
    "graded": "Graded",
    "student_error": "Not a notebook that can be read",
    "timeout": "Out of time",
    "crashed": "Crashed",
    "oversize": "Too large",
    "refused": "Not accepted",
    INFRA_ERROR: "Not graded yet",
}
#: to the student, one sentence each
MEANINGS = {
    "graded": "Your notebook was run, and each exercise was tried on inputs that are not in it.",
    "student_error": "What you handed in could not be read as a notebook of this assignment: open it, "
    "run all its cells, save it, and hand it in again.",
    "timeout": "Something in your notebook took too long and was stopped; what could be tried without it "
    "has its points.",
    "crashed": "Something in your notebook ended its process, or needed more memory than there is; what "
    "could be tried without it has its points.",
    "oversize": "Your notebook is larger than what is accepted: clear its outputs, remove what is not part "
    "of the exercises, and hand it in again.",
    "refused": "Your submission, or a part of it, was not accepted; ask your instructor if nothing on this "
    "page says why.",
    INFRA_ERROR: "Your submission is not graded yet; this is no fault of yours; no points were taken.",
}
EXERCISE_WORDS = {
    "passed": "Passed",
    "failed": "Not yet",
    "missing": "No answer found",
    "error": "Stopped with an error",
    "timeout": "Out of time",
    "crashed": "Crashed",
    "refused": "Not accepted",
}
#: where the names of exercises say enough
NO_TITLES: Mapping[str, str] = MappingProxyType({})


def _current(records: Iterable[Record]) -> list[Record]:
    """The latest record of each student, sorted by student."""
    current = sorted(latest(records).values(), key=lambda record: record["student"])
    for field in ("assignment", "max_points"):
        values = {record[field]: record["student"] for record in current}
        if len(values) > 1:
            examples = ", ".join(f"{value!r} ({student!r})" for value, student in values.items())
            raise RecordError(f"the records do not agree on {field}: {examples}")
    return current


def _exercises(records: Sequence[Record]) -> list[str]:
    """The names of all exercises, in the order of the fullest record."""
    fullest_first = sorted(records, key=lambda record: -len(record["exercises"]))
    names = (exercise["name"] for record in fullest_first for exercise in record["exercises"])
    return list(dict.fromkeys(names))


def _short(names: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Each name without its chapter, or in full where that would be said of two things."""
    count = Counter(taken) + Counter(name.rpartition(".")[2] for name in names)
    return {name: short if count[short := name.rpartition(".")[2]] == 1 else name for name in names}


# CSV ------------------------------------------------------------------------------------------

#: what a spreadsheet would run as a formula, and, so that no two cells become one, what looks guarded
_FORMULA = re.compile(r"['\s]*[=+\-@＝＋－＠]|'*[\t\r\n]")


def _cell(value: str | int | None) -> str:
    text = "" if value is None else str(value).encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if _FORMULA.match(text) else text


def _csv(rows: Iterable[Sequence[str | int | None]]) -> str:
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        # with this end of lines the module quotes both of its characters, wherever they stand in a cell
        csv.writer(line, lineterminator="\r\n").writerow([_cell(value) for value in row])
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def plain(records: Iterable[Record]) -> str:
    """``grades.csv``: a row for each student, a column for each exercise.

    Raises:
        RecordError: the records are of different assignments.
    """
    current = _current(records)
    start, end = ("student", "status", "points", "max_points"), ("flags",)
    names = _exercises(current)
    rows = [(*start, *_short(names, start + end).values(), *end)]
    for record in current:
        stands = record["status"] != INFRA_ERROR
        reached = {exercise["name"]: exercise["points"] for exercise in record["exercises"] if stands}
        rows.append(
            (
                *(record[field] for field in start),
                *(reached.get(name) for name in names),
                "; ".join(record["flags"]),
            )
        )
    return _csv(rows)


def canvas(records: Iterable[Record]) -> str:
    """``grades-canvas.csv``, for Canvas: Grades, Import.

    The student stands in ``SIS Login ID``, which is what Canvas looks for, and in ``Student``, which it
    shows and falls back on; it needs ``ID``, ``SIS User ID`` and ``Section`` as headings only. The
    column is the assignment's name, or "name (id)"; Canvas asks which one is meant if it knows none.
    A submission that is not graded yet has no row: Canvas takes an empty cell for the wish to erase.

    Raises:
        RecordError: the records are of different assignments.
    """
    current = _current(records)
    rows: list[tuple[str | int | None, ...]] = []
    for first in current[:1]:
        rows.append(("Student", "ID", "SIS User ID", "SIS Login ID", "Section", first["assignment"]))
        rows.append(("Points Possible", None, None, None, None, first["max_points"]))
    for record in current:
        if record["status"] != INFRA_ERROR:
            rows.append((record["student"], None, None, record["student"], None, record["points"]))
    return _csv(rows)


def moodle(records: Iterable[Record]) -> str:
    """``grades-moodle.csv``, for Moodle: Grades, Import, CSV file.

    Map from "Username" to "Username" (to "Email address" if the folders are named so), the assignment's
    column to its grade item, "Feedback comments" to the feedback for it. Moodle stops at a student it
    does not know. A submission that is not graded yet has no row: an empty cell would erase its grade.

    Raises:
        RecordError: the records are of different assignments.
    """
    current = _current(records)
    rows = [("Username", first["assignment"], "Feedback comments") for first in current[:1]]
    rows += [
        (record["student"], record["points"], _comment(record))
        for record in current
        if record["status"] != INFRA_ERROR
    ]
    return _csv(rows)


def _comment(record: Record) -> str:
    """The verdicts in one line; Moodle shows it as HTML, and some versions end a row at any line's end."""
    short = _short([exercise["name"] for exercise in record["exercises"]])
    parts = [f"{_points(record['points'], record['max_points'])}. {MEANINGS[record['status']]}"]
    for exercise in record["exercises"]:
        reached = _points(exercise["points"], exercise["max_points"])
        word = EXERCISE_WORDS[exercise["status"]]
        parts.append(f"{short[exercise['name']]}: {word} ({reached}). {exercise['message']}")
    return escape(_one_line(" ".join(parts)), quote=False)


# Text from elsewhere --------------------------------------------------------------------------

_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
#: what moves a cursor, turns text around, or is no character at all; tabs and line feeds are none of these
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff"
    r"\ud800-\udfff]"
)


def _visible(text: str) -> str:
    """The text without a terminal's colours, and with a replacement character for each other control."""
    text = _COLOURS.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _one_line(text: str) -> str:
    return " ".join(_visible(text).split())


def _points(reached: int, of: int) -> str:
    return f"{reached} of {of} point{'' if of == 1 else 's'}"


# A page for each student ----------------------------------------------------------------------

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _inks(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colours[name]};" for name in ("ink", "muted", "line", "paper"))


_STYLE = f"""
:root {{ color-scheme: light; {_inks(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {_inks(DARK)} }} }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }}
main {{ max-width: 42rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; overflow-wrap: anywhere; }}
h1, h2, h3 {{ line-height: 1.25; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1rem; }}
dt, .name {{ color: var(--muted); }}
dd, h3, li p {{ margin: 0; }}
.name {{ font-size: 1rem; font-weight: normal; }}
ul {{ list-style: none; padding: 0; }}
li {{ border-left: 0.25rem solid var(--line); margin: 1rem 0; padding: 0.25rem 0 0.25rem 1rem; }}
.verdict {{ font-weight: 600; }}
.message {{ white-space: pre-wrap; }}
@media print {{ main {{ max-width: none; padding: 0; }} li {{ break-inside: avoid; }} }}
"""


def _html(text: str) -> str:
    return escape(_visible(text), quote=True)


def _block(exercise: Mapping[str, str | int], titles: Mapping[str, str]) -> str:
    name = exercise["name"]
    title = titles.get(name, "")
    heading = f'{_html(title)} <span class="name">({_html(name)})</span>' if title else _html(name)
    verdict = f"{EXERCISE_WORDS[exercise['status']]}, {_points(exercise['points'], exercise['max_points'])}"
    message = f'<p class="message" dir="auto">{_html(exercise["message"])}</p>' if exercise["message"] else ""
    return f'<li><h3>{heading}</h3><p class="verdict">{verdict}</p>{message}</li>\n'


def feedback(record: Record, titles: Mapping[str, str] = NO_TITLES) -> str:
    """One student's page: a document of its own, without scripts, that asks for nothing else.

    ``titles`` has the titles of exercises by their names; where it has none, the name stands alone.
    """
    stands = record["status"] != INFRA_ERROR
    points = _points(record["points"], record["max_points"]) if stands else WORDS[INFRA_ERROR]
    blocks = "".join(_block(exercise, titles) for exercise in record["exercises"]) if stands else ""
    exercises = f"<h2>Exercises</h2>\n<ul>\n{blocks}</ul>\n" if blocks else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY, quote=False)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Feedback: {_html(record["assignment"])}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Feedback: {_html(record["assignment"])}</h1>
<dl>
<dt>Student</dt><dd dir="auto">{_html(record["student"])}</dd>
<dt>Points</dt><dd>{points}</dd>
<dt>Status</dt><dd>{WORDS[record["status"]]}</dd>
</dl>
{exercises}<h2>What the status means</h2>
<p>{MEANINGS[record["status"]]}</p>
</main>
</body>
</html>
"""


# On disk --------------------------------------------------------------------------------------


def write(folder: Path, records: Iterable[Record], titles: Mapping[str, str] = NO_TITLES) -> list[Path]:
    """Write the three CSV files and ``feedback/`` into ``folder``; returns the paths.

    Each file is replaced as a whole. Pages of students without a record are left alone.

    Raises:
        RecordError: there are no records, they are of different assignments, or two students would
            share a page, or have one outside ``feedback/``. Nothing is written then.
    """
    current = _current(records)
    if not current:
        raise RecordError("there are no records to export")
    pages: dict[str, Record] = {}
    for record in current:
        name = f"{safe_name(record['student'])}.html"
        if Path(name).name != name or "\0" in name:
            raise RecordError(f"the page of {record['student']!r} would be {name!r}, outside its folder")
        if name in pages:
            raise RecordError(f"{pages[name]['student']!r} and {record['student']!r} would share {name!r}")
        pages[name] = record
    texts = {folder / "feedback" / name: feedback(record, titles) for name, record in pages.items()}
    texts[folder / "grades.csv"] = plain(current)
    texts[folder / "grades-canvas.csv"] = canvas(current)
    texts[folder / "grades-moodle.csv"] = moodle(current)
    (folder / "feedback").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        replace(path, text.encode())
    return list(texts)


# For the terminal -----------------------------------------------------------------------------


def table(records: Iterable[Record]) -> str:
    """How the class did, and which submissions to look at.

    Raises:
        RecordError: the records are of different assignments.
    """
    current = _current(records)
    counts = Counter(record["status"] for record in current)
    graded = [record for record in current if record["status"] == "graded"]
    lines = [f"Submissions: {len(current)}"]
    lines += _columns([(status, str(counts[status])) for status in STATUSES if counts[status]])
    lines += ["", *_spread(graded)]
    names = _exercises(graded)
    passed = Counter(
        exercise["name"]
        for record in graded
        for exercise in record["exercises"]
        if exercise["status"] == "passed"
    )
    if names:
        lines += ["", "Passed, of those graded:"]
        short = _short(names)
        lines += _columns(
            [
                (
                    _cut(short[name], 40),
                    f"{passed[name]} of {len(graded)}",
                    f"{passed[name] / len(graded):.0%}",
                )
                for name in names
            ]
        )
    noted = [record for record in current if record["status"] != "graded" or record["flags"]]
    if noted:
        lines += ["", "To look at:"]
        lines += _columns([_remark(record) for record in noted[:SHOWN]], right=False)
    if len(noted) > SHOWN:
        lines.append(f"  ... and {len(noted) - SHOWN} more in grades.csv")
    return "\n".join(lines)


def write_alike(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write ``similarity.csv``: pairs of students whose answers are nearly the same, the nearest first."""
    rows = [("first", "second", "share", "common")]
    rows += [(pair.first, pair.second, f"{pair.share:.2f}", str(pair.common)) for pair in pairs]
    replace(folder / "similarity.csv", _csv(rows).encode())


def alike_lines(pairs: Sequence[Pair]) -> str:
    """The same for a terminal; empty if there are none."""
    if not pairs:
        return ""
    lines = [
        f"  {_one_line(pair.first)} and {_one_line(pair.second)}: {pair.share:.0%}" for pair in pairs[:SHOWN]
    ]
    more = [f"  ... and {len(pairs) - SHOWN} more in similarity.csv"] if len(pairs) > SHOWN else []
    return "\n".join(["", "Nearly the same answers; a person should look:", *lines, *more])


def _spread(graded: Sequence[Record]) -> list[str]:
    if not graded:
        return ["No submission was graded."]
    points = [record["points"] for record in graded]
    return [
        f"Points of {graded[0]['max_points']}, over {len(graded)} graded: mean {fmean(points):.1f}, "
        f"median {median(points):g}, min {min(points)}, max {max(points)}"
    ]


def _remark(record: Record) -> tuple[str, str, str]:
    """The student, the status, and the reason to look: flags, else what went wrong first."""
    messages = [exercise["message"] for exercise in record["exercises"] if exercise["status"] != "passed"]
    reason = "; ".join(record["flags"]) or next(filter(None, messages), WORDS[record["status"]])
    return _cut(record["student"], 40), record["status"], _cut(reason, 80)


def _cut(text: str, width: int) -> str:
    line = _one_line(text)
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _columns(rows: Sequence[tuple[str, ...]], right: bool = True) -> list[str]:
    """The rows, indented; all columns but the first are numbers, unless ``right`` is False."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0])]
        cells += [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width in zip(rest, widths[1:], strict=True)
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines
