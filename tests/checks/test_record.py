"""A learner's progress: nothing is lost, nothing breaks a check, and no test run writes to it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from attention_course import checks
from attention_course.checks import CheckFailed, check, progress
from attention_course.checks.engine import record, report, session
from attention_course.checks.engine.record import Entry

THREE, FOUR = (checks.find_chapter(name) for name in ("03_scaled_dot_product", "04_multi_head"))
CHAPTERS = (THREE, FOUR)
ROOT = Path(checks.__file__).resolve().parent.parent.parent
SCORES, SOFTMAX, ATTENTION, *_ = THREE.exercises
SPLIT, *_ = FOUR.exercises
DAY = datetime(2026, 3, 1, 20, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    path = tmp_path / "somewhere" / "progress.jsonl"
    monkeypatch.setenv(record.VARIABLE, str(path))
    monkeypatch.setattr(session, "_LATEST", {})
    return path


def entry(exercise, passed, minutes=0):
    return Entry(exercise.name, passed, DAY + timedelta(minutes=minutes))


def wrong(*inputs):
    return None


def elsewhere(**more):
    """The environment of a process of a learner's own: no test run, and no file named."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    kept.pop(record.VARIABLE, None)
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def python(code, **environment):
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=elsewhere(**environment),
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


# Where it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "data", "expected"),
    [
        (None, None, "{home}/.local/share/attention-course/progress.jsonl"),
        ("", "", "{home}/.local/share/attention-course/progress.jsonl"),
        (None, "{home}/data", "{home}/data/attention-course/progress.jsonl"),
        (None, "data", "{home}/.local/share/attention-course/progress.jsonl"),
        ("{home}/mine.jsonl", "{home}/data", "{home}/mine.jsonl"),
        ("~/mine.jsonl", None, "{home}/mine.jsonl"),
        (os.devnull, None, None),
    ],
)
def test_the_place(monkeypatch, tmp_path, named, data, expected):
    monkeypatch.delenv("PYTEST_VERSION")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)  # on Windows HOME is not asked
    for variable, value in ((record.VARIABLE, named), ("XDG_DATA_HOME", data)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value.format(home=tmp_path))
    assert record.path() == (Path(expected.format(home=tmp_path)) if expected else None)


def test_an_account_without_a_home_records_nothing(monkeypatch, capsys):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PYTEST_VERSION")
    monkeypatch.delenv(record.VARIABLE)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    check(SCORES.name, SCORES.reference)
    progress()
    assert "Nothing is recorded here." in capsys.readouterr().out


def test_a_test_run_records_only_where_it_is_told_to(monkeypatch):
    assert "PYTEST_VERSION" in os.environ
    assert record.path() is not None
    monkeypatch.delenv(record.VARIABLE)
    assert record.path() is None
    assert record.write([entry(SCORES, True)]) == "" and record.read() == ((), "")


def test_notebooks_run_by_nbval_record_nothing(tmp_path):
    """Its kernels start inside a test, and so they know: the same notebook records elsewhere."""
    code = (
        "from attention_course.checks import check, find_exercise\n"
        f'check("{SCORES.name}", find_exercise("{SCORES.name}").reference)'
    )
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "cells": [
            {"cell_type": "code", "id": "a", "metadata": {}, "source": code, "outputs": [],
             "execution_count": None}
        ],
    }  # fmt: skip
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook))
    home = tmp_path / "data"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", path],
        cwd=tmp_path,
        env=elsewhere(XDG_DATA_HOME=str(home)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout + run.stderr
    assert not home.exists()
    python(code, XDG_DATA_HOME=str(home))
    assert (home / "attention-course" / "progress.jsonl").exists()


def test_off_reaches_processes_and_ends(monkeypatch, file):
    with record.off():
        assert record.path() is None and os.environ[record.VARIABLE] == os.devnull
        assert record.write([entry(SCORES, True)]) == ""
        with record.off():
            pass
        assert record.path() is None
    assert record.path() == file and not file.exists()
    monkeypatch.delenv(record.VARIABLE)
    with pytest.raises(KeyError), record.off():
        raise KeyError
    assert record.VARIABLE not in os.environ


def test_on_colab_it_says_how_long_it_lasts(monkeypatch, file):
    assert record.place() == f"Recorded in {file}."
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert "Colab deletes" in record.place() and record.VARIABLE in record.place()
    monkeypatch.setenv(record.VARIABLE, "/content/drive/MyDrive/progress.jsonl")
    assert "deletes" not in record.place()


def test_the_home_is_not_spelled_out(monkeypatch, tmp_path, file):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert record.place() == f"Recorded in {Path('~') / file.relative_to(tmp_path)}."


# What is written, what is read ----------------------------------------------------------------


def test_what_is_written_is_read(file):
    entries = (entry(SCORES, False), entry(SCORES, True, 1), record.now(SOFTMAX.name, True))
    assert record.write(entries[:2]) == "" and record.write(entries[2:]) == ""
    assert record.read() == (entries, "")
    first = json.loads(file.read_text().splitlines()[0])
    assert first == {
        "version": 1,
        "time": "2026-03-01T20:15:00+00:00",
        "exercise": SCORES.name,
        "status": "failed",
    }


def test_before_the_first_check_there_is_no_file(file):
    assert record.read() == ((), "")
    assert record.write([]) == ""
    assert not file.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"nonsense",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"3",
        b"null",
        b"[]",
        b'"version"',
        b"{}",
        b'{"version": 2, "time": "2026-03-01T20:15:00+00:00", "exercise": "a.b", "status": "passed"}',
        b'{"version": 1, "time": "2026-03-01T20:15:00+00:00", "exercise": "a.b", "status": "excellent"}',
        b'{"version": 1, "time": "2026-03-01T20:15:00+00:00", "exercise": "a.b", "status": ["passed"]}',
        b'{"version": 1, "time": "2026-03-01T20:15:00+00:00", "exercise": 3, "status": "passed"}',
        b'{"version": 1, "time": "2026-03-01T20:15:00", "exercise": "a.b", "status": "passed"}',
        b'{"version": 1, "time": "yesterday", "exercise": "a.b", "status": "passed"}',
        b'{"version": 1, "time": 7, "exercise": "a.b", "status": "passed"}',
    ],
)
def test_a_bad_line_costs_itself_and_one_sentence(file, line, capsys):
    record.write([entry(SCORES, True)])
    with file.open("ab") as stream:
        stream.write(line + b"\n\n")
    record.write([entry(SOFTMAX, True)])
    entries, trouble = record.read()
    assert entries == (entry(SCORES, True), entry(SOFTMAX, True))
    assert trouble == f"1 of 3 lines in {file} cannot be read; the others count."
    progress()
    assert trouble in capsys.readouterr().out


def test_a_line_that_was_cut_off_does_not_take_the_next_one_along(file):
    record.write([entry(SCORES, True)])
    file.write_bytes(file.read_bytes()[:-20])
    record.write([entry(SOFTMAX, True)])
    entries, trouble = record.read()
    assert entries == (entry(SOFTMAX, True),) and trouble.startswith("1 of 2 lines")


def test_an_exercise_of_another_version_is_neither_counted_nor_wrong():
    record.write([Entry("99_gone.exercise", True, DAY)])
    entries, trouble = record.read()
    assert len(entries) == 1 and trouble == ""
    assert {one.status for one in record.standings(CHAPTERS, entries)} == {"missing"}


def test_two_notebooks_at_once_lose_nothing(file):
    code = (
        "import sys; from attention_course.checks.engine import record\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for n in range(400): assert not record.write([record.now(f'{sys.argv[1]}.{n}', True)])"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, name],
            env=elsewhere(**{record.VARIABLE: str(file)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for run in runs:
        assert run.stdout.readline() == "ready\n"
    for run in runs:  # both are up: now they write against each other
        run.stdin.write("go\n")
        run.stdin.flush()
    for run in runs:
        run.communicate(timeout=60)
        assert run.returncode == 0
    entries, trouble = record.read()
    assert trouble == ""
    assert {one.exercise for one in entries} == {f"{name}.{n}" for name in ("one", "two") for n in range(400)}
    assert len(entries) == 800


# A check works whatever the disk does ---------------------------------------------------------


def test_where_nothing_can_be_written_a_check_says_so_and_works(monkeypatch, tmp_path, capsys):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "a file" / "progress.jsonl"))
    check(SCORES.name, SCORES.reference)
    shown = capsys.readouterr().out
    assert "Passed: 03_scaled_dot_product.scores" in shown
    assert "So far in this session: 1 of 10 points. This is not recorded:" in shown
    with pytest.raises(CheckFailed, match="not yet"):
        check(SOFTMAX.name, wrong)
    capsys.readouterr()
    progress(THREE.name)
    shown = capsys.readouterr().out
    assert f"{THREE.title}: 1 of 10 points" in shown and "The record cannot be read" in shown


def test_a_full_disk_is_a_sentence(monkeypatch):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setenv(record.VARIABLE, str(full))
    assert "No space left" in record.write([entry(SCORES, True)])


def test_a_folder_in_its_place_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv(record.VARIABLE, str(tmp_path))
    assert "This is not recorded" in record.write([entry(SCORES, True)])
    assert "cannot be read" in record.read()[1]


# What it amounts to ---------------------------------------------------------------------------


def standing(exercise, *entries):
    [found] = [one for one in record.standings(CHAPTERS, entries) if one.exercise is exercise]
    return found


def test_once_passed_it_stays_passed_and_the_latest_is_told():
    passed, failed = entry(SCORES, True), entry(SCORES, False, 60)
    assert standing(SCORES).status == "missing"
    assert standing(SCORES, failed).status == "failed" and standing(SCORES, failed).points == 0
    one = standing(SCORES, failed, passed)  # whatever the order of the lines
    assert (one.status, one.points, one.passed, one.latest) == ("passed", 1, passed, failed)
    again = standing(SCORES, passed, entry(SCORES, True, 120))
    assert again.passed == passed
    text = report.plain_progress([THREE], record.standings([THREE], [passed, failed]), [])
    assert "passed 2026-03-01, latest check: not yet" in text


def test_points_are_those_of_the_package():
    everything = [entry(one, True) for chapter in CHAPTERS for one in chapter.exercises]
    standings = record.standings(CHAPTERS, everything * 2)
    assert sum(one.points for one in standings) == sum(chapter.points for chapter in CHAPTERS)
    assert record.following(standings) is None
    text = report.plain_progress(CHAPTERS, standings, [])
    assert f"In all: {len(standings)} of {len(standings)} exercises passed" in text and "Next" not in text


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], SCORES),
        ([entry(SCORES, False)], SCORES),
        ([entry(SCORES, True)], SOFTMAX),
        # a hard one is left behind: its chapter comes first, while one works on it
        ([entry(SCORES, True), entry(ATTENTION, True, 1)], SOFTMAX),
        # and one goes on to another chapter
        ([entry(SCORES, True), entry(SPLIT, False, 1)], SPLIT),
        ([entry(SPLIT, False), entry(SCORES, True, 1)], SOFTMAX),
        ([entry(SCORES, False), entry(SPLIT, False)], SPLIT),
    ],
)
def test_what_is_next(entries, expected):
    assert record.following(record.standings(CHAPTERS, entries)) is expected


def test_from_the_last_chapter_one_comes_back_to_what_is_open():
    last = [entry(one, True, 5) for one in FOUR.exercises]
    assert record.following(record.standings(CHAPTERS, [entry(SCORES, True), *last])) is SOFTMAX


# How it is shown ------------------------------------------------------------------------------


def test_a_check_is_recorded_and_progress_shows_all_chapters(capsys, monkeypatch):
    check(SCORES.name, SCORES.reference)
    with pytest.raises(CheckFailed):
        check(SPLIT.name, wrong)
    assert [(one.exercise, one.passed) for one in record.read()[0]] == [
        (SCORES.name, True),
        (SPLIT.name, False),
    ]
    monkeypatch.setattr(session, "_LATEST", {})  # weeks later
    capsys.readouterr()
    progress()
    shown = capsys.readouterr().out
    for chapter in checks.chapters():
        assert f"{chapter.title}: " in shown
    lines = {line.split()[0]: line for line in shown.splitlines() if line.startswith("  ")}
    assert f"passed {datetime.now().date()}" in lines["scores"] and "1 of 1 point" in lines["scores"]
    assert "not yet" in lines["split_heads"] and "not checked" in lines["softmax"]
    every = sum(chapter.points for chapter in checks.chapters())
    assert f", 1 of {every} points.\n" in shown
    assert f"Next: {SPLIT.name} ({SPLIT.title}, " in shown
    assert f"{report.STAYS} {report.SELF_CHECK}" in shown and "not a grade" in report.SELF_CHECK
    progress(FOUR.name)
    shown = capsys.readouterr().out
    assert FOUR.title in shown and THREE.title not in shown


def test_without_a_record_a_session_still_knows_its_own(monkeypatch, capsys):
    monkeypatch.setenv(record.VARIABLE, os.devnull)
    check(SCORES.name, SCORES.reference)
    capsys.readouterr()
    progress(THREE.name)
    shown = capsys.readouterr().out
    assert f"{THREE.title}: 1 of 10 points" in shown and "Nothing is recorded here." in shown


def test_the_table_for_a_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr(session, "_shell", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(record, "place", lambda: "<script>")
    check(SCORES.name, SCORES.reference)
    progress()
    html = shown[-1]["text/html"]
    rows = sum(len(chapter.exercises) + 1 for chapter in checks.chapters()) + 1
    assert html.count("<tr>") == rows == html.count("</tr>")
    assert html.count("<tbody>") == len(checks.chapters())
    assert '<th scope="row">scores</th>' in html and '<th scope="col">Points</th>' in html
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "text/plain" in shown[-1]


def test_another_process_shows_what_this_one_recorded(file):
    check(SCORES.name, SCORES.reference)
    shown = python(
        "from attention_course.checks import progress; progress('03_scaled_dot_product')",
        **{record.VARIABLE: str(file)},
    )
    assert "3. Scaled dot-product attention: 1 of 10 points" in shown and str(file) in shown
