"""A verdict in words: plain text, HTML, and the values a program reads."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from attention_course.checks.engine.record import Standing, following

if TYPE_CHECKING:  # with them comes torch, which takes a second
    from attention_course.checks.engine.exercise import Chapter, Exercise
    from attention_course.checks.engine.verdict import Finding, Table, Verdict

MIMETYPE = "application/vnd.attention-course.check+json"
#: what a check can say of an exercise
STATUSES = ("passed", "failed", "not started")
SELF_CHECK = "This is a self-check on your own machine, not a grade."
STAYS = "Once passed, an exercise stays passed."


def points(reached: int, of: int) -> str:
    return f"{reached} of {of} point{'' if of == 1 else 's'}"


def title(verdict: Verdict) -> str:
    word = {"passed": "Passed", "failed": "Not yet", "not started": "Not started"}[verdict.status]
    return f"{word}: {verdict.exercise.name} ({points(verdict.points, verdict.exercise.points)})"


def others(verdict: Verdict) -> tuple[str, ...]:
    """What else is wrong: one sentence for each further stage, without repeating any."""
    first, sentences = verdict.findings[0], []
    stages = {first.stage}
    for finding in verdict.findings[1:]:
        if finding.stage not in stages:
            stages.add(finding.stage)
            elsewhere = finding.case not in ("", first.case)
            where = f'in the case "{finding.case}", ' if elsewhere else ""
            sentences.append(where + finding.text.partition("\n")[0])
    return tuple(sentences)


def summary(verdict: Verdict) -> str:
    """The verdict on one line, for tables."""
    if verdict.passed:
        number = len(verdict.exercise.cases)
        return f"All {number} cases pass." if number > 1 else "Its case passes."
    first = verdict.findings[0].text.replace("\n  ", " ")
    if verdict.mistake:
        return f"{first} Usual mistake: {verdict.mistake.name}. {verdict.mistake.message}"
    return first


def brief(verdict: Verdict) -> str:
    """What an exception says: it stands right below the card, and repeats nothing of it."""
    if not verdict.started:
        return f"{verdict.exercise.name}: not started"
    return f"{verdict.exercise.name}: not yet; what differs stands above"


def payload(verdict: Verdict) -> dict:
    """What ``attention-course check`` reads from the cell's output."""
    chapter, _, own = verdict.exercise.name.partition(".")
    return {
        "version": 1,
        "exercise": verdict.exercise.name,
        "status": verdict.status,
        "points": verdict.points,
        "max_points": verdict.exercise.points,
        "stage": None if verdict.passed else verdict.findings[0].stage,
        "mistake": verdict.mistake.name if verdict.mistake else None,
        "message": summary(verdict),
        "report": "\n".join(_body(verdict, f"attention-course hint {chapter} {own} 1")),
    }


def _setting(exercise: Exercise, finding: Finding) -> str:
    """Where it went wrong: the case, and what went in."""
    case = next(case for case in exercise.cases if case.name == finding.case)
    return f'In the case "{case.name}" ({exercise.setting(case)}):'


def _plain_table(table: Table) -> list[str]:
    lines = [(table.corner, table.columns), *table.rows]
    first = max(len(label) for label, _ in lines)
    width = max(len(entry) for _, entries in lines for entry in entries)
    return [
        "  " + "  ".join([label.ljust(first), *(entry.rjust(width) for entry in entries)])
        for label, entries in lines
    ]


def plain(verdict: Verdict, so_far: str) -> str:
    """For a terminal, or a frontend that knows no HTML."""
    body = _body(verdict, f'hint("{verdict.exercise.name}", 1)')
    lines = [title(verdict), *(f"  {line}".rstrip() for line in body), f"  {SELF_CHECK} {so_far}"]
    return "\n".join(lines)


def _body(verdict: Verdict, asking: str) -> list[str]:
    """What came out, line by line; ``asking`` is how one asks for the first hint."""
    if verdict.passed:
        return [summary(verdict)]
    first = verdict.findings[0]
    lines = first.text.split("\n")
    if verdict.started:
        lines = [_setting(verdict.exercise, first), *lines] if first.case else lines
        if first.table:
            lines += ["", *_plain_table(first.table), ""]
        lines += [f"Also: {sentence}" for sentence in others(verdict)]
        if verdict.mistake:
            lines.append(f"Usual mistake: {verdict.mistake.name}. {verdict.mistake.message}")
    if verdict.exercise.hints:
        lines.append(f"Stuck? {asking} is the first of {len(verdict.exercise.hints)} hints.")
    return lines


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td style="text-align: right">{escape(entry)}</td>' for entry in entries)
        + "</tr>"
        for label, entries in table.rows
    )
    head = f'<tr><th scope="col">{escape(table.corner)}</th>{head}</tr>'
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _paragraph(text: str, word: str = "") -> str:
    strong = f"<strong>{escape(word)}</strong> " if word else ""
    return f"<p>{strong}{escape(text)}</p>"


def html(verdict: Verdict, so_far: str) -> str:
    """For a notebook; every piece of the learner's that is quoted is escaped."""
    exercise = verdict.exercise
    parts = [f"<p><strong>{escape(title(verdict))}</strong></p>"]
    if verdict.passed:
        parts.append(_paragraph(summary(verdict)))
    else:
        first = verdict.findings[0]
        if first.case and verdict.started:
            parts.append(_paragraph(_setting(exercise, first)))
        text, _, line = first.text.partition("\n")
        parts.append(_paragraph(text))
        if line:
            parts.append(f"<pre>{escape(line.strip())}</pre>")
        if first.table:
            parts.append(_html_table(first.table))
        parts += [_paragraph(sentence, "Also:") for sentence in others(verdict)]
        if verdict.mistake:
            text = f"{verdict.mistake.name}. {verdict.mistake.message}"
            parts.append(_paragraph(text, "Usual mistake:"))
        parts += [
            f"<details><summary>Hint {level} of {len(exercise.hints)}</summary>{_paragraph(text)}</details>"
            for level, text in enumerate(exercise.hints, 1)
        ]
    parts.append(f"<p><small>{escape(SELF_CHECK)} {escape(so_far)}</small></p>")
    # no colour of its own: it takes the page's inks, light or dark
    style = "border-left: 0.3em solid currentColor; padding-left: 0.8em"
    return f'<div class="attention-course-check" style="{style}">{"".join(parts)}</div>'


def hint(exercise: Exercise, level: int) -> str:
    """One hint, and which of how many it is; ValueError for a level there is not."""
    if not isinstance(level, int) or not 1 <= level <= len(exercise.hints):
        raise ValueError(f"level is {level!r}; {exercise.name} has hints 1 to {len(exercise.hints)}")
    return f"Hint {level} of {len(exercise.hints)}: {exercise.hints[level - 1]}"


# Points so far --------------------------------------------------------------------------------


def so_far(chapter: Chapter, passed: Sequence[str]) -> str:
    reached = sum(exercise.points for exercise in chapter.exercises if exercise.name in passed)
    return f"So far in this session: {points(reached, chapter.points)}."


# Over weeks -----------------------------------------------------------------------------------


def _words(standing: Standing) -> str:
    if standing.passed:
        day = f"passed {standing.passed.time.date()}"
        return day if standing.latest.passed else f"{day}, latest check: not yet"
    return "not yet" if standing.latest else "not checked"


def _row(standing: Standing) -> tuple[str, ...]:
    exercise = standing.exercise
    return (
        exercise.name.partition(".")[2],
        exercise.stars,
        _words(standing),
        points(standing.points, exercise.points),
    )


def _by_chapter(chapters: Sequence[Chapter], standings: Sequence[Standing]):
    """Each chapter's title and points, and a row for each of its exercises."""
    for chapter in chapters:
        own = [standing for standing in standings if standing.exercise.chapter == chapter.name]
        yield (
            chapter.title,
            points(sum(standing.points for standing in own), chapter.points),
            [*map(_row, own)],
        )


def _closing(standings: Sequence[Standing]) -> list[str]:
    """The sum, and what is next."""
    reached, of = (
        sum(standing.points for standing in standings),
        sum(standing.exercise.points for standing in standings),
    )
    passed = sum(standing.status == "passed" for standing in standings)
    exercises = f"{len(standings)} exercise{'' if len(standings) == 1 else 's'}"
    lines = [f"In all: {passed} of {exercises} passed, {points(reached, of)}."]
    after = following(standings)
    if after:
        lines.append(f"Next: {after.name} ({after.title}, {after.stars}, about {after.minutes} minutes).")
    return lines


def plain_progress(chapters: Sequence[Chapter], standings: Sequence[Standing], notes: Sequence[str]) -> str:
    """How far the learner has come, for a terminal; ``notes`` are sentences on the record itself."""
    blocks = list(_by_chapter(chapters, standings))
    table = [row for *_, rows in blocks for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for title, reached, rows in blocks:
        lines.append(f"{title}: {reached}")
        for row in rows:
            entries = (entry.ljust(width) for entry, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(entries).rstrip()}")
        lines.append("")
    return "\n".join([*lines, *_closing(standings), f"{STAYS} {SELF_CHECK}", *notes])


def short_progress(chapters: Sequence[Chapter], standings: Sequence[Standing], notes: Sequence[str]) -> str:
    """The same in one line for each chapter."""
    rows = []
    for chapter in chapters:
        own = [standing for standing in standings if standing.exercise.chapter == chapter.name]
        passed = sum(standing.status == "passed" for standing in own)
        reached = points(sum(standing.points for standing in own), chapter.points)
        rows.append((chapter.name, f"{passed} of {len(own)} exercises", reached))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)) for row in rows]
    lines = [line.rstrip() for line in lines]
    return "\n".join([*lines, "", *_closing(standings), f"{STAYS} {SELF_CHECK}", *notes])


def html_progress(chapters: Sequence[Chapter], standings: Sequence[Standing], notes: Sequence[str]) -> str:
    """The same for a notebook: one table, a group of rows for each chapter."""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Exercise", "Difficulty", "Check", "Points"))
    groups = []
    for title, reached, rows in _by_chapter(chapters, standings):
        first = f'<tr><th scope="rowgroup" colspan="3">{escape(title)}</th><td>{escape(reached)}</td></tr>'
        rest = "".join(
            f'<tr><th scope="row">{escape(name)}</th>'
            + "".join(f"<td>{escape(entry)}</td>" for entry in row)
            + "</tr>"
            for name, *row in rows
        )
        groups.append(f"<tbody>{first}{rest}</tbody>")
    closing = "".join(map(_paragraph, _closing(standings)))
    small = escape(" ".join([STAYS, SELF_CHECK, *notes]))
    return (
        f"<table><caption>Progress</caption><thead><tr>{head}</tr></thead>{''.join(groups)}</table>"
        f"{closing}<p><small>{small}</small></p>"
    )


def progress_values(standings: Sequence[Standing]) -> list[dict]:
    """The same for a program: one object for each exercise."""
    return [
        {
            "exercise": standing.exercise.name,
            "status": standing.status,
            "points": standing.points,
            "max_points": standing.exercise.points,
            "passed_at": standing.passed.time.isoformat() if standing.passed else None,
            "latest_at": standing.latest.time.isoformat() if standing.latest else None,
        }
        for standing in standings
    ]
