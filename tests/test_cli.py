"""attention-course check, hint and progress: statuses never mixed up, sentences for wrong calls."""

import json
import os
import pty
import subprocess
import sys
import termios
from dataclasses import fields
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from attention_course import checks, cli
from attention_course.checks.engine import kernel, record, report
from attention_course.checks.engine import notebook as reader
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.report import MIMETYPE, payload

CHAPTER = checks.find_chapter("03_scaled_dot_product")
SCORES, SOFTMAX, *OTHERS = [one.name for one in CHAPTER.exercises]
LISTED = [(one.name, one.points) for one in CHAPTER.exercises]
MARK = {"attention_course": {"chapter": CHAPTER.name}}
RIGHT = "def scores(query, key):\n    return query @ key.mT / query.shape[-1] ** 0.5"
WRONG = "def scores(query, key):\n    return query @ key.mT"
START = "from attention_course.checks import check"


def test_of(name):
    return f'check("{name}", {name.partition(".")[2]})'


test_of.__test__ = False


def write(path, *sources, metadata=MARK):
    cells = [new_code_cell(source) if isinstance(source, str) else source for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


def call(*arguments, capsys):
    code = cli.main(["check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def checked(path, capsys, *options):
    code, out, _ = call(path, "--json", *options, capsys=capsys)
    return code, {one["exercise"]: one for one in json.loads(out)}


# Reading results, without a kernel ------------------------------------------------------------


def ran(source, *shown, error=None, ran=True):
    return reader.Cell("code", source, [{MIMETYPE: one, "text/plain": ""} for one in shown], error, ran)


def said(name, status, message="words"):
    return {
        "version": 1,
        "exercise": name,
        "status": status,
        "points": 99,
        "max_points": 99,
        "message": message,
    }


def read(*cells, unfinished=None):
    notebook = reader.Notebook(list(cells), CHAPTER.name)
    return {one.exercise: one for one in reader.results("x", notebook, LISTED, unfinished or {})}


def test_each_status_has_its_cause():
    results = read(
        ran(test_of(SCORES), said(SCORES, "passed")),
        ran(test_of(SOFTMAX), said(SOFTMAX, "failed"), error=("CheckFailed", "x")),
        ran(test_of(OTHERS[0]), error=("NameError", "name 'attention' is not defined")),
        reader.Cell("markdown", test_of(OTHERS[1])),
        ran(test_of(OTHERS[2]), said(OTHERS[2], "not started"), error=("CheckFailed", "x")),
    )
    assert [results[name].status for name in (SCORES, SOFTMAX, *OTHERS)] == [
        "passed", "failed", "error", "missing", "not started",
    ]  # fmt: skip
    assert [one.points for one in results.values()] == [1, 0, 0, 0, 0]
    assert [one.max_points for one in results.values()] == [1, 2, 2, 2, 3]
    assert "could not start: NameError: name 'attention'" in results[OTHERS[0]].message
    assert "has no check of" in results[OTHERS[1]].message


def test_points_come_from_the_package():
    assert read(ran("", said(SCORES, "passed")))[SCORES].points == 1


def test_copies_count_once_and_the_last_word_holds():
    passed, failed = (
        ran(test_of(SCORES), said(SCORES, "passed")),
        ran(test_of(SCORES), said(SCORES, "failed")),
    )
    early = ran(test_of(SCORES), error=("NameError", "scores"))
    assert read(passed, passed, passed)[SCORES].points == 1
    assert sum(one.points for one in read(passed, passed).values()) == 1
    assert read(failed, passed)[SCORES].status == "passed"
    assert read(passed, failed)[SCORES].status == "failed"
    assert read(early, passed)[SCORES].status == "passed"
    assert read(passed, early)[SCORES].status == "error"
    assert read(ran("two", said(SCORES, "failed"), said(SCORES, "passed")))[SCORES].status == "passed"


def test_order_does_not_matter():
    cells = [ran(test_of(one.name), said(one.name, "passed")) for one in CHAPTER.exercises]
    assert [*read(*cells)] == [*read(*cells[::-1])]
    assert all(one.status == "passed" for one in read(*cells[::-1]).values())


def test_a_check_that_is_commented_out_or_stopped_by_another_is_missing():
    commented = read(ran(f"# {test_of(SCORES)}"))[SCORES]
    assert commented.status == "missing" and "commented out" in commented.message
    both = ran(f"{test_of(SCORES)}\n{test_of(SOFTMAX)}", said(SCORES, "failed"), error=("CheckFailed", "x"))
    assert read(both)[SOFTMAX].status == "missing"
    assert "another check before it" in read(both)[SOFTMAX].message


def test_another_cell_that_names_the_exercise_is_no_check():
    passed = ran(test_of(SCORES), said(SCORES, "passed"))
    scratch = ran(f'query, key = inputs("{SCORES}", "one decimal"); query[9]', error=("IndexError", "x"))
    hint = ran(f'hint("{SCORES}", 7)', error=("ValueError", "x"))
    assert read(passed, scratch, hint)[SCORES].status == "passed"
    assert read(scratch)[SCORES].status == "missing"


def test_a_name_that_begins_like_another_is_another():
    results = read(ran('check("03_scaled_dot_product.softmax_jacobian", f)', error=("NameError", "f")))
    assert results["03_scaled_dot_product.softmax_jacobian"].status == "error"
    assert results[SOFTMAX].status == "missing"


def test_what_a_dead_kernel_leaves():
    tests = [ran(test_of(one.name), ran=False) for one in CHAPTER.exercises]
    passed = ran(test_of(SCORES), said(SCORES, "passed"))
    inside = read(passed, tests[1], tests[2], unfinished={1: "ended the kernel"})
    assert [inside[name].status for name in (SCORES, SOFTMAX, OTHERS[0])] == ["passed", "error", "missing"]
    assert inside[SOFTMAX].message == "the cell of its check ended the kernel"
    # in a cell of its own: the next check is the one it belongs to
    before = read(passed, ran("import os\nos._exit(1)"), *tests[1:], unfinished={1: "ended the kernel"})
    assert [before[name].status for name in (SCORES, SOFTMAX, OTHERS[0])] == ["passed", "error", "missing"]
    assert "cell 2 before it (import os) ended the kernel" in before[OTHERS[0]].message


def test_strange_payloads_are_not_believed():
    for strange in (None, 3, [], {}, {"exercise": SCORES, "status": "excellent"}, {"status": "passed"}):
        assert read(ran("", strange))[SCORES].status == "missing"


def test_payloads_are_what_check_shows():
    exercise = CHAPTER.exercises[0]
    right = payload(judge_function(exercise, exercise.reference))
    wrong = payload(judge_function(exercise, exercise.mistakes[0].function))
    assert read(ran("", right))[SCORES].status == "passed"
    got = read(ran("", wrong))[SCORES]
    assert got.status == "failed" and exercise.mistakes[0].message in got.message


# With a kernel --------------------------------------------------------------------------------


def test_a_notebook_as_learners_leave_them(tmp_path, capfd):
    """Renamed, without metadata, checks copied and moved, noise on every channel, forged outputs."""
    forged = new_code_cell(
        "# nothing",
        outputs=[new_output("display_data", {MIMETYPE: said(OTHERS[2], "passed"), "text/plain": ""})],
    )
    skipped = new_code_cell(
        test_of(OTHERS[2]),
        metadata={"tags": ["skip-execution"]},
        outputs=[new_output("display_data", {MIMETYPE: said(OTHERS[2], "passed"), "text/plain": ""})],
    )
    path = write(
        tmp_path / "my copy (3).ipynb",
        START,
        "import os, warnings; warnings.simplefilter('error'); os.write(1, b'noise'); os.write(2, b'noise')",
        test_of(SCORES),
        RIGHT,
        test_of(SCORES),
        test_of(SCORES),
        new_markdown_cell("def softmax(scores): ..."),
        "def softmax(scores) return 1",
        test_of(SOFTMAX),
        f"try:\n    check('{OTHERS[0]}', lambda *a: 1)\nexcept AssertionError:\n    pass",
        f"# {test_of(OTHERS[1])}",
        forged,
        skipped,
        metadata={"kernelspec": {"name": "no-such-kernel", "display_name": "x"}},
    )
    code, results = checked(path, capfd)
    assert code == 1
    assert [one["status"] for one in results.values()] == ["passed", "error", "failed", "missing", "error"]
    assert set(results[SCORES]) == {field.name for field in fields(reader.Result)}
    assert results[SCORES]["points"] == 1 and results[SCORES]["notebook"] == str(path)
    assert results[SOFTMAX]["message"] == (
        "its check could not start: NameError: name 'softmax' is not defined; cell 8, which makes softmax, "
        "ended with SyntaxError: expected ':', in line 1: def softmax(scores) return 1"
    )


def test_a_loop_without_end_costs_its_own_exercise_only(tmp_path, capfd):
    path = write(
        tmp_path / "a.ipynb",
        START,
        "def scores(query, key):\n    while True: pass",
        test_of(SCORES),
        "def softmax(scores):\n    e = (scores - scores.amax(-1, keepdim=True)).exp()\n"
        "    return e / e.sum(-1, keepdim=True)",
        test_of(SOFTMAX),
        "while True: pass",
        test_of(OTHERS[0]),
    )
    code, results = checked(path, capfd, "--timeout", "4")
    assert code == 1
    assert [one["status"] for one in results.values()] == ["error", "passed", "error", "missing", "missing"]
    assert results[SCORES]["message"] == "the cell of its check ran longer than 4 s and was stopped"
    assert "cell 6 before it (while True: pass) ran longer than 4 s" in results[OTHERS[0]]["message"]


@pytest.mark.parametrize(
    "end", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
)
def test_a_kernel_that_ends(tmp_path, capfd, end):
    path = write(
        tmp_path / "a.ipynb", START, RIGHT, test_of(SCORES), end, test_of(SOFTMAX), test_of(OTHERS[0])
    )
    code, results = checked(path, capfd)
    assert code == 1
    assert [one["status"] for one in results.values()] == ["passed", "error", "missing", "missing", "missing"]
    assert "ended the kernel" in results[SOFTMAX]["message"]


def test_a_cell_that_cannot_be_interrupted(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(kernel, "_GRACE", 2.0)
    stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    path = write(
        tmp_path / "a.ipynb", START, RIGHT, test_of(SCORES), stubborn, test_of(SOFTMAX), test_of(OTHERS[0])
    )
    code, results = checked(path, capfd, "--timeout", "4")
    assert code == 1
    assert [one["status"] for one in results.values()] == ["passed", "error", "missing", "missing", "missing"]


def test_one_bad_file_and_two_good_ones(tmp_path, capfd):
    """The good ones are checked, each exercise has its line, and all is said of what fails."""
    one = write(tmp_path / "one.ipynb", START, RIGHT, test_of(SCORES))
    two = write(
        tmp_path / "two.ipynb", START, WRONG, test_of(SCORES),
        f"check('{SOFTMAX}', lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True))",
        f"def late(*inputs):\n    raise NotImplementedError()\ncheck('{OTHERS[0]}', late)",
    )  # fmt: skip
    code, out, err = call(one, tmp_path / "three.ipynb", two, capsys=capfd)
    assert (code, err) == (2, f"attention-course: {tmp_path / 'three.ipynb'} does not exist\n")
    lines = [line.split("  ") for line in out.splitlines()]
    lines = [[entry.strip() for entry in line if entry] for line in lines]
    first, second = lines.index([str(one)]), lines.index([str(two)])
    own = [name.partition(".")[2] for name, _ in LISTED]
    assert [line[0] for line in lines[first + 1 : first + 6]] == own
    assert lines[first + 1] == ["scores", "passed", "1 of 1 point"]
    assert lines[second + 1] == ["scores", "failed", "0 of 1 point"]
    assert lines[second + 3] == ["attention", "not started", "0 of 2 points"]
    assert out.endswith("\n\n1 of 20 points. This is a self-check on your own machine, not a grade.\n")
    scores, softmax = out.split(f"\n\n{SCORES}: failed\n")[1].split(f"\n\n{SOFTMAX}: failed\n")
    verdict = judge_function(CHAPTER.exercises[0], lambda query, key: query @ key.mT)
    hint = "Stuck? attention-course hint 03_scaled_dot_product scores 1 is the first of 3 hints."
    told = report.plain(verdict, "").split("\n")[1:-2]
    assert scores.split("\n\n2 of")[0].split("\n") == [*told, f"  {hint}"]
    assert 'In the case "one decimal" (query [2, 4], key [3, 4]):' in scores
    assert "Usual mistake: no scale." in scores
    assert "expected  " in scores and "got       " in scores
    assert "nan" in softmax.split("\n    got  ")[1].split("\n")[0]  # the row that overflowed
    assert "Nothing is written" not in out and f"{OTHERS[0]}: not" not in out  # the table says it


def test_a_plain_file_with_an_error_in_it_is_told_once(tmp_path, capfd):
    path = tmp_path / "gpt.py"
    path.write_text("class GPT\n    pass\n")
    code, out, err = call(path, capsys=capfd)
    assert (code, out) == (2, "")
    why = "it could not be imported: SyntaxError in line 1: `class GPT` (expected ':')"
    assert err == f"attention-course: {path}: {why}\n"


def test_where_nothing_can_be_checked_nothing_is_printed(tmp_path, capsys):
    code, out, err = call(tmp_path, tmp_path / "none.ipynb", "--json", capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 2)


def test_a_path_is_looked_at_before_anything_heavy_loads():
    script = (
        "import sys; from attention_course import cli; code = cli.main(['check', 'nothing.ipynb']);"
        "print(code, sorted({'torch', 'numpy', 'IPython', 'nbformat', 'jupyter_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 []\n" and done.stderr == "attention-course: nothing.ipynb does not exist\n"


def test_a_bar_on_a_terminal(tmp_path):
    """It is there while the kernel starts, counts cells, and is gone at the end."""
    path = write(tmp_path / "a.ipynb", START, "x = 1", "y = 1")
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [sys.executable, "-m", "attention_course.cli", "check", str(path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=120)
    shown = os.read(mine, 100_000).decode().split("\r")
    os.close(theirs)
    os.close(mine)
    assert run.returncode == 1 and b"a.ipynb: " not in run.stdout
    assert "a.ipynb:   0%" in shown[1] and "0/3" in shown[1]
    assert shown[-1] == "" and not shown[-2].strip(" \x1b[A\n")


# Errors of the learner's own --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (
            "def scores(q, k):\n    return (q",
            ("SyntaxError", "'(' was never closed (1.py, line 2)"),
            "SyntaxError: '(' was never closed, in line 2: return (q",
        ),
        (
            "class scores:\n  a\n b",
            ("IndentationError", "unindent does not match (<tokenize>, line 3)"),
            "IndentationError: unindent does not match, in line 3: b",
        ),
        ("scores = partial(1)", ("TypeError", "no"), "TypeError: no"),
        ("from torch import scores", ("ImportError", "cannot import"), "ImportError: cannot import"),
        ("def scores(q):\n  x\n y", ("SyntaxError", "odd words"), "SyntaxError: odd words"),
        ("async def scores(q): ...", ("KeyboardInterrupt", ""), "KeyboardInterrupt"),
    ],
)
def test_a_name_that_is_not_there_leads_to_the_cell_that_would_make_it(source, error, words):
    missing = ("NameError", "name 'scores' is not defined")
    before = ran("def scored(): oops", error=("ValueError", "another"))
    results = read(ran(START), before, ran(source, error=error), ran(test_of(SCORES), error=missing))
    start = f"its check could not start: NameError: {missing[1]}"
    expected = f"{start}; cell 3, which makes scores, ended with {words}"
    assert results[SCORES].message == results[SCORES].report == expected
    fine = read(ran(START), ran(source), ran(test_of(SCORES), error=missing))
    assert fine[SCORES].message == start


def test_a_report_is_bounded_and_has_no_control_characters():
    long = said(SCORES, "failed") | {"report": "a\x1b[31m\n" + "b" * 9999 + "\n" * 9999}
    shown = read(ran(test_of(SCORES), long))[SCORES].report
    assert shown.startswith("a?[31m\nbbb") and len(shown) < 1000
    for strange in (None, 3, ["x"]):
        assert read(ran("", said(SCORES, "failed") | {"report": strange}))[SCORES].report == "words"


def test_the_command_runs_from_a_shell(tmp_path):
    """exit() in a cell; run as a process of its own, from another folder."""
    write(tmp_path / "a.ipynb", START, "exit()", RIGHT, test_of(SCORES))
    run = subprocess.run(
        [sys.executable, "-m", "attention_course.cli", "check", "a.ipynb", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).resolve().parent.parent)},
        timeout=120,
    )
    assert run.returncode == 1, run.stderr
    assert [one["status"] for one in json.loads(run.stdout)][1:] == ["missing"] * 4
    assert "Traceback" not in run.stderr


# Progress -------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    path = tmp_path / "own" / "progress.jsonl"
    monkeypatch.setenv(record.VARIABLE, str(path))
    return path


def test_what_a_notebook_says_last_is_recorded_once(tmp_path, capfd, recorded):
    path = write(
        tmp_path / "a.ipynb",
        START,
        WRONG,
        test_of(SCORES),
        RIGHT,
        test_of(SCORES),
        f"check('{SOFTMAX}', lambda scores: scores)",
        test_of(OTHERS[0]),
    )
    code, results = checked(path, capfd)
    assert code == 1 and results[OTHERS[0]]["status"] == "error"
    entries, trouble = record.read()
    # the kernel's own three checks are not recorded beside them; an error is no verdict
    assert [(one.exercise, one.passed) for one in entries] == [(SCORES, True), (SOFTMAX, False)]
    assert trouble == "" and os.environ[record.VARIABLE] == str(recorded)
    assert cli.main(["progress", CHAPTER.name]) == 0
    out = capfd.readouterr().out
    assert f"{CHAPTER.title}: 1 of 10 points" in out and f"Next: {SOFTMAX} (" in out


def test_running_a_class_fills_no_progress_of_ones_own(tmp_path, recorded):
    """What a grader calls, and inside ``record.off()`` whatever else it does."""
    path = write(tmp_path / "a.ipynb", START, RIGHT, test_of(SCORES))
    notebook = reader.read(path)
    with record.off():
        exercises, unfinished = kernel.execute(notebook, tmp_path, 120.0)
    judged = reader.results(str(path), notebook, exercises, unfinished)
    assert exercises == LISTED and judged[0].status == "passed" and not recorded.exists()


def test_where_nothing_can_be_recorded_the_results_stand(tmp_path, capfd, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "file" / "progress.jsonl"))
    monkeypatch.setattr(kernel, "execute", lambda *ignored: ([], {}))
    monkeypatch.setattr(
        reader, "results", lambda path, *ignored: [reader.Result(path, SCORES, "passed", 1, 1, "", "")]
    )
    code, out, err = call(write(tmp_path / "a.ipynb", START), "--json", capsys=capfd)
    assert code == 0 and json.loads(out)[0]["status"] == "passed"
    assert err.startswith("attention-course: This is not recorded: ") and err.count("\n") == 1


def test_progress_for_a_program(capsys, recorded):
    assert record.write([record.now(SCORES, True), record.now(SOFTMAX, False)]) == ""
    assert cli.main(["progress", "--json"]) == 0
    values = {one["exercise"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(values) == [one.name for chapter in checks.chapters() for one in chapter.exercises]
    assert [values[name]["status"] for name in (SCORES, SOFTMAX, OTHERS[0])] == [
        "passed",
        "failed",
        "missing",
    ]
    assert (values[SCORES]["points"], values[SCORES]["max_points"]) == (1, 1)
    assert values[SCORES]["passed_at"] and values[SOFTMAX]["passed_at"] is None
    assert values[SOFTMAX]["latest_at"] and values[OTHERS[0]]["latest_at"] is None


def test_progress_tells_of_lines_it_cannot_read(capsys, recorded):
    record.write([record.now(SCORES, True)])
    with recorded.open("a") as stream:
        stream.write("garbage\n")
    for arguments in (["progress"], ["progress", "--json"]):
        assert cli.main(arguments) == 1
        captured = capsys.readouterr()
        assert (
            captured.err
            == f"attention-course: 1 of 2 lines in {recorded} cannot be read; the others count.\n"
        )
        if "--json" in arguments:
            assert [one["exercise"] for one in json.loads(captured.out) if one["points"]] == [SCORES]
        else:
            assert "03_scaled_dot_product  1 of 5 exercises  1 of 10 points\n" in captured.out


def test_progress_is_a_line_for_each_chapter_and_of_one_chapter_for_each_exercise(capsys, recorded):
    record.write([record.now(SCORES, True), record.now(SOFTMAX, False)])
    assert cli.main(["progress"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [chapter.name for chapter in checks.chapters()]
    assert [line.split()[0] for line in lines[: len(names) + 1] if line] == names
    assert len(lines) == len(names) + 5 and lines[-2].startswith("Once passed")
    assert cli.main(["progress", CHAPTER.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{CHAPTER.title}: 1 of 10 points"
    own = [name.partition(".")[2] for name, _ in LISTED]
    assert [line.split()[0] for line in lines[1 : len(own) + 1]] == own and len(lines) == len(own) + 6
    assert cli.main(["progress", CHAPTER.name, "--json"]) == 0
    assert [one["exercise"] for one in json.loads(capsys.readouterr().out)] == [name for name, _ in LISTED]


def test_progress_before_the_first_check(capsys, recorded):
    assert cli.main(["progress"]) == 0
    out = capsys.readouterr().out
    first = checks.chapters()[0].exercises[0].name
    assert f"Next: {first} (" in out and "In all: 0 of" in out and not recorded.exists()


# Hints ----------------------------------------------------------------------------------------


def test_a_hint_is_that_of_the_notebook(capsys):
    for level, given in enumerate(CHAPTER.exercises[0].hints, 1):
        assert cli.main(["hint", CHAPTER.name, "scores", str(level)]) == 0
        shown = capsys.readouterr().out
        assert shown == f"Hint {level} of 3: {given}\n"
        checks.hint(SCORES, level)
        assert capsys.readouterr().out == shown
    assert cli.main(["hint", CHAPTER.name, "scores"]) == 0
    assert capsys.readouterr().out.startswith("Hint 1 of 3: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("03_scaled", "scores", "1"), "did you mean '03_scaled_dot_product'?"),
        ((CHAPTER.name, "scorse", "1"), f"did you mean '{SCORES}'?"),
        ((CHAPTER.name, "scores", "4"), f"level is 4; {SCORES} has hints 1 to 3"),
        ((CHAPTER.name, "scores", "0"), "has hints 1 to 3"),
    ],
)
def test_a_hint_there_is_not_is_a_sentence(arguments, words, capsys):
    assert cli.main(["hint", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1


# Help and pipes -------------------------------------------------------------------------------


def test_help_parts_learners_from_instructors(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    learners, instructors = out.split("for learners:\n")[1].split("for instructors:\n")
    assert [line.split()[0] for line in learners.splitlines() if line] == ["check", "hint", "progress"]
    named = [line.split()[0] for line in instructors.split("\n\n")[0].splitlines()]
    assert named == ["release", "grade", "merge", "doctor"]
    for name in ("check", "hint", "progress", *named):
        with pytest.raises(SystemExit) as caught:
            cli.main([name, "--help"])
        assert caught.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: attention-course {name} ")


def test_a_closed_pipe_is_no_traceback():
    """What is printed does not fit the pipe's buffer, or meets its end when it is flushed."""
    for much in ("'x' * 1_000_000", "'x'"):
        script = (
            "import sys, argparse; from attention_course import cli; sys.stdin.read();"
            f"run = lambda options: print({much}) or 0;"
            "cli.parser = lambda: argparse.Namespace(parse_args=lambda a: argparse.Namespace(run=run));"
            "sys.exit(cli.main([]))"
        )
        command = [sys.executable, "-c", script]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command, **pipes)
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b"" and process.wait(timeout=60) == 1
        process.stderr.close()


# Wrong calls ----------------------------------------------------------------------------------


NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"{", "it is not valid JSON"),
        (b"[" * 200_000, "it is not valid JSON"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"[]", "names no nbformat"),
        (b'"text"', "names no nbformat"),
        (b'{"nbformat": true}', "names no nbformat"),
        (b'{"nbformat": "4"}', "names no nbformat"),
        (b'{"nbformat": 5, "cells": []}', "has nbformat 5"),
        (b'{"nbformat": 4}', "is not a valid notebook"),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}', "is not a valid notebook"),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [3]}', "is not a valid notebook"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code"}]}', "cell 1 has no cell_type and source"),
        (b'{"nbformat": 4, "cells": [{"cell_type": 3, "source": ""}]}', "is not a valid notebook"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": [1]}]}', "is not a valid notebook"),
        (b'{"nbformat": 3, "worksheets": 3}', "is not a valid notebook"),
        (json.dumps(NOTEBOOK).encode(), "is not an exercise notebook of this course"),
        (
            json.dumps({**NOTEBOOK, "metadata": {"attention_course": 3}}).encode(),
            "is not an exercise notebook",
        ),
        (
            json.dumps({**NOTEBOOK, "metadata": {"attention_course": {"chapter": []}}}).encode(),
            "is not an exercise",
        ),
        (
            json.dumps({**NOTEBOOK, "metadata": {"attention_course": {"chapter": "9"}}}).encode(),
            "is not an exercise",
        ),
    ],
)
def test_a_file_that_is_no_notebook_of_the_course_is_a_sentence(tmp_path, capsys, content, words):
    path = tmp_path / "x.ipynb"
    path.write_bytes(content)
    code, out, err = call(path, "--json", capsys=capsys)
    assert (code, out) == (2, "")
    assert words in err and err.count("\n") == 1 and str(path) in err


def test_a_missing_file_or_a_folder_is_told_before_anything_runs(tmp_path, capsys, monkeypatch):
    def execute(*ignored):
        told.append(capsys.readouterr().err)
        return LISTED, {}

    monkeypatch.setattr(kernel, "execute", execute)
    good = write(tmp_path / "good.ipynb", START)
    for path, words in ((tmp_path / "none.ipynb", "does not exist"), (tmp_path, "is a folder")):
        told = []
        assert call(good, path, capsys=capsys)[0] == 2
        assert len(told) == 1 and words in told[0]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["check"],
        ["nothing"],
        ["progress", CHAPTER.name, SOFTMAX],
        ["hint", CHAPTER.name],
        ["hint", CHAPTER.name, "scores", "one"],
        ["check", "x.ipynb", "--timeout", "0"],
        ["check", "x", "--timeout", "nan"],
    ],
)
def test_a_wrong_call_exits_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: attention-course" in capsys.readouterr().err


def test_no_kernel_is_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    code, _, err = call(write(tmp_path / "a.ipynb", START), capsys=capsys)
    assert code == 2 and "pip install ipykernel" in err


def test_old_notebooks_and_a_byte_order_mark_are_read(tmp_path):
    old = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {"name": ""},
        "worksheets": [
            {"metadata": {}, "cells": [
                {"cell_type": "code", "input": test_of(SCORES), "language": "python", "collapsed": False,
                 "metadata": {}, "outputs": []},
                {"cell_type": "heading", "level": 1, "metadata": {}, "source": "Scores"},
            ]}
        ],
    }  # fmt: skip
    path = tmp_path / "old.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(old).encode())
    notebook = reader.read(path)
    assert [cell.kind for cell in notebook.cells] == ["code", "markdown"]
    assert notebook.cells[0].source == test_of(SCORES) and notebook.chapter == CHAPTER.name


def test_the_file_itself_is_never_changed(tmp_path, capfd):
    path = write(tmp_path / "a.ipynb", START, RIGHT, test_of(SCORES))
    before = path.read_bytes()
    checked(path, capfd)
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [path]
