"""A class of strangers: nobody changes another's verdict, and nothing that was graded is lost."""

import base64
import csv
import json
import os
import platform
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from strangers import NAME, ROOT, SCORES, SOFTMAX, code, submission

from attention_course.checks import scaled_dot_product
from attention_course.cli import main
from attention_course.grading import assignment, remote, results, run, sandbox
from attention_course.grading.sandbox import Limits
from attention_course.grading.submissions import open_source

if not shutil.which("bwrap"):
    if os.environ.get("CI"):
        pytest.fail("bubblewrap is not installed: no test of the grader can run", pytrace=False)
    pytest.skip("needs bubblewrap", allow_module_level=True)

COMMAND = [sys.executable, "-m", "attention_course.cli"]
EXERCISES = ROOT / "exercises"
WRONG = "def softmax(scores):\n    return scores\n"
#: name -> (file, status, points)
CLASS = {
    "ada": (submission(), "graded", 10),
    "bob": (submission({"scores": SCORES, "softmax": WRONG}), "graded", 4),
    "crash": (submission(first="import os; os._exit(3)"), "crashed", 10),
    "cut": (submission()[:5000], "student_error", 0),
    "forger": (submission({"scores": "class A:\n    __eq__ = lambda *a: True\ndef scores(q, k): return A()"}),
               "graded", 5),
}  # fmt: skip


@pytest.fixture(scope="module")
def asked():
    return assignment.load(EXERCISES, NAME)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of submissions, in all three layouts."""
    handed_in = tmp_path / "handed in"
    for number, (name, (content, _, _)) in enumerate(CLASS.items()):
        places = (f"{name}.ipynb", f"{name}/my copy.ipynb", f"{name}/{NAME}/{NAME}.ipynb")
        path = handed_in / places[number % 3]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return handed_in


@pytest.fixture
def here(monkeypatch):
    """Grade in this very process: what is tested is not how processes are started."""
    monkeypatch.setattr(
        run, "_on_this_machine", lambda requests, pools: ((one, run.work(one)) for one in requests)
    )


@pytest.fixture(scope="module", autouse=True)
def cleared():
    yield
    run.forget()


def grade(folder: Path, out: Path, asked, **more) -> dict[str, dict]:
    with open_source(folder, NAME) as source:
        records = run.grade_class(source, asked, EXERCISES, 7, out, **more)
    return {record["student"]: without_seconds(record) for record in records}


def without_seconds(record: dict) -> dict:
    return {key: value for key, value in record.items() if key != "seconds"}


def logged(out: Path) -> list[dict]:
    return [without_seconds(one) for one in results.read(out / results.NAME)[0]]


def cli(folder: Path, out: Path, *more: str, **settings) -> subprocess.CompletedProcess:
    call = [*COMMAND, "grade", str(folder), "--assignment", NAME, "--seed", "7", "--out", str(out), *more]
    return subprocess.run(
        call, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False, **settings
    )


# The command ----------------------------------------------------------------------------------


def test_a_class_from_the_shell(folder, tmp_path):
    out = tmp_path / "out"
    finished = cli(folder, out, "--jobs", "2")
    assert finished.returncode == 0, finished.stderr
    with open(out / "grades.csv", newline="", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert {name: (row["status"], int(row["points"])) for name, row in rows.items()} == {
        name: (status, points) for name, (_, status, points) in CLASS.items()
    }
    for record in results.read(out / results.NAME)[0]:
        results.validate(record)
    assert {path.stem for path in (out / "feedback").iterdir()} == set(CLASS)
    assert "Usual mistake" in (out / "feedback" / "bob.html").read_text(encoding="utf-8")
    for file in ("grades-canvas.csv", "grades-moodle.csv", "similarity.csv"):
        assert (out / file).is_file()
    assert "crash" in finished.stdout  # among those to look at
    # called again, there is nothing left to do
    before = (out / results.NAME).read_bytes()
    assert cli(folder, out).returncode == 0
    assert (out / results.NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--assignment": "03_scaled"}, "no assignment is called '03_scaled'"),
        ({"--shard": "3/2"}, "'3/2' is not a part"),
        ({"--jobs": "0"}, "'0' is not a number from 1"),
        ({"--seed": "x"}, "invalid int value"),
        ({"--exercises": "nowhere"}, "nowhere"),
        ({"SUBMISSIONS": "nowhere"}, "nowhere"),
        ({"--scheduler": "tcp://127.0.0.1:1"}, "no Dask scheduler answers"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(folder, tmp_path, change, words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = {"--assignment": NAME, "--seed": "7", "--out": str(tmp_path / "out"), **change}
    place = options.pop("SUBMISSIONS", str(folder))
    try:
        code = main(["grade", place, *(word for pair in options.items() for word in pair)])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert words in capsys.readouterr().err


def test_without_a_sandbox_nothing_is_graded(folder, tmp_path):
    path = os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if not Path(part, "bwrap").exists()
    )
    lacking = {**os.environ, "PATH": path or "/nowhere"}
    finished = cli(folder, tmp_path / "out", env=lacking)
    assert finished.returncode == 2
    assert "apt-get install bubblewrap" in finished.stderr
    assert not (tmp_path / "out" / "grades.csv").exists()


def test_without_a_sandbox_on_demand(tmp_path, asked):
    """The same verdicts; a process that is left over ends with its notebook."""
    marker = f"left-over-{os.getpid()}"
    left_over = f"subprocess.Popen(['sh', '-c', 'sleep 60; : {marker}'])"
    orphan = f"import subprocess\nassert {left_over}.poll() is None\nHERE = True\n"
    with remote.launcher(asked.files, asked.preload, Limits(), unsafe=True) as launcher:
        from attention_course.grading.grade import grade as one

        graded = one(submission({"scores": f"HERE\n{SCORES}"}, first=orphan), asked, 7, launcher)
    assert {judged.status for judged in graded.judged.values()} == {"passed"}
    time.sleep(0.1)
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in running if marker.encode() in line]


def test_as_an_ordinary_user(asked):
    """Where there is a user namespace: the same verdicts, and the same walls."""
    rooms = lambda *arguments: sandbox.room(*arguments, user_namespace=True)  # noqa: E731
    attempt = (
        "import os\nassert os.getuid() == 65534\nheld = 0\n"
        "paths = ('/x', '/dev/x', '/usr/x')\n"
        "for attempt in (lambda: os.setuid(0), *(lambda p=p: open(p, 'w') for p in paths)):\n"
        "    try:\n        attempt()\n    except OSError:\n        held += 1\nassert held == 4, held\n"
        "assert 'CapEff:\\t0000000000000000' in open('/proc/self/status').read()\nHELD = True\n"
    )
    with remote.launcher(asked.files, asked.preload, Limits(total=30.0)) as zygote:
        from attention_course.grading.grade import grade as one

        launcher = replace(zygote, room=rooms)
        graded = one(submission({"scores": f"HELD\n{SCORES}"}, first=attempt), asked, 7, launcher)
        assert {judged.status for judged in graded.judged.values()} == {"passed"}
        killer = submission({"softmax": "def softmax(s):\n    import os; os.kill(-1, 9); return s"})
        graded = one(killer, asked, 7, launcher)
    assert graded.status == "crashed"
    assert graded.judged[f"{NAME}.scores"].status == "passed"


def test_as_another_user_altogether(folder, request):
    """The command as a user without any rights; only root can try."""
    interpreter = Path(sys.executable).resolve()
    readable = all(part.stat().st_mode & stat.S_IXOTH for part in interpreter.parents)
    if os.geteuid() != 0 or not readable or not shutil.which("setpriv"):
        pytest.skip("needs root, and a Python that other users can run")
    open_to_all = Path(tempfile.mkdtemp())  # where pytest's folders are, nobody else may look
    request.addfinalizer(lambda: shutil.rmtree(open_to_all))
    open_to_all.chmod(0o755)
    folder = Path(shutil.copytree(folder, open_to_all / "in"))
    out = open_to_all / "out"
    out.mkdir()
    os.chown(out, 4242, 4242)
    user = ["setpriv", "--reuid", "4242", "--regid", "4242", "--clear-groups"]
    call = [*user, *COMMAND, "grade", str(folder), "--assignment", NAME, "--seed", "7", "--out", str(out)]
    finished = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
                          env={**os.environ, "HOME": str(out)})  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    found = {one["student"]: (one["status"], one["points"]) for one in logged(out)}
    assert found == {name: (status, points) for name, (_, status, points) in CLASS.items()}


# Nobody changes another's verdict -------------------------------------------------------------


def test_everybody_alone_gets_what_everybody_gets_together(folder, tmp_path, asked, here):
    together = grade(folder, tmp_path / "together", asked)
    for name in CLASS:
        alone = tmp_path / f"only {name}"
        for path in folder.rglob("*.ipynb"):
            if name in path.relative_to(folder).parts[0]:
                (alone / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, alone / path.relative_to(folder))
        assert grade(alone, tmp_path / f"out {name}", asked)[name] == together[name]


def test_a_zip_gives_what_the_folder_gives(folder, tmp_path, asked, here):
    packed = tmp_path / "class.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.rglob("*.ipynb")):
            archive.write(path, path.relative_to(folder))
    assert grade(packed, tmp_path / "a", asked) == grade(folder, tmp_path / "b", asked)


def test_the_seed_is_nowhere_in_what_is_written(folder, tmp_path, asked, here):
    with open_source(folder, NAME) as source:
        run.grade_class(source, asked, EXERCISES, 918273645, tmp_path, jobs=1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"918273645" in path.read_bytes()]


# Parts of a class -----------------------------------------------------------------------------


def test_shards_merged_are_the_whole(folder, tmp_path, asked, here):
    whole = grade(folder, tmp_path / "whole", asked)
    parts = [tmp_path / "one", tmp_path / "two"]
    shares = [grade(folder, part, asked, shard=(i, 2)) for i, part in enumerate(parts, 1)]
    assert set(shares[0]).isdisjoint(shares[1]) and all(shares)
    assert main(["merge", *map(str, parts), "--out", str(tmp_path / "both")]) == 0
    assert {one["student"]: one for one in logged(tmp_path / "both")} == whole
    assert (tmp_path / "both" / "grades.csv").is_file()


def test_parts_of_an_unknown_assignment_are_a_wrong_call(folder, tmp_path, asked, capsys, here):
    grade(folder, tmp_path / "part", asked)
    log = tmp_path / "part" / results.NAME
    log.write_text(log.read_text().replace(NAME, "99_mamba"))
    assert main(["merge", str(tmp_path / "part"), "--out", str(tmp_path / "all")]) == 2
    assert "no chapter with exercises is called '99_mamba'" in capsys.readouterr().err


def test_a_part_without_submissions_is_no_error(tmp_path, capsys, monkeypatch, here):
    monkeypatch.chdir(ROOT)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.ipynb").write_bytes(CLASS["cut"][0])
    codes = [
        main(["grade", str(tmp_path / "in"), "--assignment", NAME, "--seed", "7", "--out",
              str(tmp_path / part), "--shard", f"{part}/2"]) for part in "12"
    ]  # fmt: skip
    assert codes == [0, 0]
    assert "No submission belongs to this part." in capsys.readouterr().out
    assert main(["merge", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(tmp_path / "both")]) == 0
    assert [one["student"] for one in logged(tmp_path / "both")] == ["ada"]


def test_dask_gives_the_same(folder, tmp_path, asked, here):
    distributed = pytest.importorskip("distributed", reason="pip install 'attention-course[dask]'")
    code = (
        "import sys, warnings\nfrom distributed import LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:\n"
        "        print(cluster.scheduler_address, flush=True)\n        sys.stdin.read()\n"
    )
    assert distributed
    script = tmp_path / "cluster.py"
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, cwd=ROOT,
    ) as cluster:  # fmt: skip
        try:
            address = cluster.stdout.readline().strip()
            finished = cli(folder, tmp_path / "dask", "--scheduler", address)
        finally:
            cluster.stdin.close()
            cluster.wait(30)
    assert finished.returncode == 0, finished.stderr
    assert {one["student"]: one for one in logged(tmp_path / "dask")} == grade(
        folder, tmp_path / "whole", asked
    )


def request(asked, content: bytes = CLASS["ada"][0], unsafe: bool = False) -> dict:
    """As a worker is handed it."""
    return {
        "student": "ada", "name": "ada.ipynb", "key": assignment.key(asked, content, 7, unsafe), "seed": 7,
        "content": base64.b64encode(content).decode(), "assignment": NAME, "exercises": str(EXERCISES),
        "unsafe": unsafe, "flags": [], "hidden": [],
    }  # fmt: skip


def test_a_worker_that_outlived_an_update_gives_no_verdict(asked, monkeypatch):
    run.forget()
    monkeypatch.setattr(assignment, "_CODE", (b"as it was yesterday",))
    record = run.work(request(asked))
    assert (record["status"], record["points"]) == ("infra_error", None)
    assert "another version of the course" in record["flags"][0]


def test_a_failure_is_cleared_away_in_its_turn_and_waiting_is_nobody_s_time(asked, monkeypatch):
    held = []

    def fails(*_):
        raise RuntimeError

    monkeypatch.setattr(run, "_prepared", fails)
    monkeypatch.setattr(run, "forget", lambda: held.append(run._ONE_AT_A_TIME.locked()))
    with ThreadPoolExecutor(1) as pool:
        with run._ONE_AT_A_TIME:
            waiting = pool.submit(run.work, request(asked))
            time.sleep(2.0)
        record = waiting.result()
    assert held == [True]
    assert (record["status"], record["seconds"] < 1.5) == ("infra_error", True)


def test_a_verdict_without_a_sandbox_is_another(asked):
    assert request(asked)["key"] != request(asked, unsafe=True)["key"]


def test_what_waits_when_a_disk_is_full_is_not_graded(monkeypatch, tmp_path, asked):
    begun = []

    def work(request):
        begun.append(request["student"])
        time.sleep(0.1 if request["student"] == "a" else 1.0)
        return run.failed(request, "x")

    def full(record):
        raise OSError("no space left")

    monkeypatch.setattr(run, "_pool", lambda jobs: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(run, "work", work)
    monkeypatch.setattr(run, "_preflight", lambda *_: None)
    for name in "abcdef":
        (tmp_path / f"{name}.ipynb").write_bytes(CLASS["ada"][0])
    with pytest.raises(OSError, match="no space left"):
        grade(tmp_path, tmp_path / "out", asked, jobs=2, progress=full)
    assert sorted(begun) == ["a", "b", "c"]  # d was waiting for one of the two places


# The official solution goes first -------------------------------------------------------------


def broken(monkeypatch, name: str) -> None:
    """Break the reference of one exercise of chapter 3."""
    chapter = scaled_dot_product.CHAPTER
    exercises = tuple(
        replace(one, reference=lambda *inputs, right=one.reference: 2 * right(*inputs))
        if one.name == f"{NAME}.{name}" else one
        for one in chapter.exercises
    )  # fmt: skip
    monkeypatch.setattr(scaled_dot_product, "CHAPTER", replace(chapter, exercises=exercises))


def test_a_broken_reference_stops_before_anybody_is_graded(folder, tmp_path, here, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    broken(monkeypatch, "softmax_jacobian")
    out = tmp_path / "out"
    assert main(["grade", str(folder), "--assignment", NAME, "--seed", "7", "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert "nobody's submission was touched" in shown.err
    assert f"{NAME}.softmax_jacobian: 0 of 3 points: " in shown.err and "entries differ" in shown.err
    assert f"{NAME}.scores" not in shown.err and not shown.out
    assert logged(out) == [] and not (out / "grades.csv").exists()


def changed_source(folder: Path, change) -> Path:
    """The exercises, with the source of chapter 3 changed."""
    exercises = folder / "exercises"
    for kind in ("source", "release"):
        shutil.copytree(EXERCISES / kind / NAME, exercises / kind / NAME)
    path = exercises / "source" / NAME / f"{NAME}.ipynb"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["cells"])
    path.write_text(json.dumps(content), encoding="utf-8")
    return exercises


def test_a_flag_on_the_official_solution_stops_too(folder, tmp_path, asked, here):
    exercises = changed_source(tmp_path, lambda cells: cells.insert(0, code("import nowhere_to_be_found")))
    with (
        open_source(folder, NAME) as source,
        pytest.raises(run.PreflightError, match="flag: cell 1: stopped with ModuleNotFoundError"),
    ):
        run.grade_class(source, asked, exercises, 7, tmp_path / "out")


def test_without_the_official_solution_nothing_is_graded(folder, tmp_path, asked, here):
    exercises = changed_source(tmp_path, lambda cells: None)
    shutil.rmtree(exercises / "source")
    with (
        open_source(folder, NAME) as source,
        pytest.raises(assignment.AssignmentError, match=r"official solution .* cannot be read"),
    ):
        run.grade_class(source, asked, exercises, 7, tmp_path / "out")


def test_a_failure_of_the_grader_s_on_the_official_solution_stops_too(folder, tmp_path, asked, monkeypatch):
    def work(request):
        return run.failed(request, "no room")

    monkeypatch.setattr(
        run, "_on_this_machine", lambda requests, pools: ((one, work(one)) for one in requests)
    )
    with pytest.raises(run.PreflightError, match=r"status infra_error(?s:.*)flag: grader: no room"):
        grade(folder, tmp_path / "out", asked)
    assert logged(tmp_path / "out") == []


def test_the_official_solution_is_graded_once_for_a_seed(folder, tmp_path, asked, monkeypatch):
    tried = []

    def work(requests, pools):
        for request in requests:
            tried.append(request["student"])
            yield request, run.work(request)

    monkeypatch.setattr(run, "_on_this_machine", work)
    grade(folder, tmp_path, asked)
    grade(folder, tmp_path, asked)
    assert tried[0] == "the official solution" and tried.count(tried[0]) == 1
    with open_source(folder, NAME) as source:
        run.grade_class(source, asked, EXERCISES, 8, tmp_path)
    assert tried.count(tried[0]) == 2


# Interruptions --------------------------------------------------------------------------------


def test_a_killed_run_goes_on_where_it_was(folder, tmp_path, asked, here):
    whole = grade(folder, tmp_path / "whole", asked)
    out = tmp_path / "out"
    call = [*COMMAND, "grade", str(folder), "--assignment", NAME, "--seed", "7", "--out", str(out)]
    moments = random.Random(5)
    for _ in range(2):
        with subprocess.Popen(
            call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
        ) as running:
            enough, until = moments.randrange(1, 3), time.monotonic() + 60
            while running.poll() is None and time.monotonic() < until:
                if (out / results.NAME).exists() and (out / results.NAME).read_bytes().count(b"\n") >= enough:
                    break
                time.sleep(0.01)
            below = _descendants(running.pid)
            running.send_signal(signal.SIGKILL)
        until = time.monotonic() + 20
        while any(Path(f"/proc/{one}").exists() for one in below) and time.monotonic() < until:
            time.sleep(0.05)
        assert not [_line(one) for one in below if Path(f"/proc/{one}").exists()]
    there = len(logged(out))
    assert 0 < there
    assert grade(folder, out, asked) == whole
    assert len(logged(out)) == len(CLASS)  # nothing was graded twice


def test_a_resubmission_counts_and_the_first_stays_on_record(folder, tmp_path, asked, here):
    out = tmp_path / "out"
    first = grade(folder, out, asked)
    (folder / "late.ipynb").write_bytes(submission({"softmax": SOFTMAX}))
    (folder / "ada.ipynb").write_bytes(submission({"softmax": WRONG}))
    second = grade(folder, out, asked)
    assert second["late"]["points"] == 10
    assert (first["ada"]["points"], second["ada"]["points"]) == (10, 4)
    assert {name: second[name] for name in CLASS if name != "ada"} == {
        name: first[name] for name in CLASS if name != "ada"
    }
    assert len(logged(out)) == len(CLASS) + 2
    (folder / "ada.ipynb").write_bytes(CLASS["ada"][0])  # back to the first
    assert grade(folder, out, asked)["ada"] == first["ada"] == results.latest(logged(out))["ada"]


def test_the_grader_s_own_failure_is_no_zero_and_is_tried_again(folder, tmp_path):
    """A bubblewrap that works twice, when the command looks for it and for the official solution, and then
    fails."""
    programs, out = tmp_path / "programs", tmp_path / "out"
    programs.mkdir()
    fake = programs / "bwrap"
    real = shutil.which("bwrap")
    fake.write_text(
        f"#!/bin/sh\ncd '{tmp_path}'\n[ -e twice ] && exit 1\n[ -e once ] && touch twice\ntouch once\n"
        f'exec {real} "$@"\n'
    )
    fake.chmod(0o755)
    finished = cli(folder, out, env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    assert finished.returncode == 1, finished.stderr
    with open(out / "grades.csv", newline="", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert (rows["ada"]["status"], rows["ada"]["points"]) == ("infra_error", "")
    assert "no points were taken" in (out / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert rows["cut"]["status"] == "student_error"  # nothing had to be run for it
    assert cli(folder, out).returncode == 0
    found = {one["student"]: one["points"] for one in results.latest(logged(out)).values()}
    assert found == {name: points for name, (_, _, points) in CLASS.items()}


def test_a_timeout_is_tried_again_alone(tmp_path, asked, monkeypatch):
    """What was slow on a busy machine counts as it was when nothing else ran."""
    folder, together = tmp_path / "in", []
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.ipynb").write_bytes(submission())

    def work(requests, pools):
        requests = list(requests)  # all that may run side by side
        together.append([one["student"] for one in requests])
        for one in requests:
            slow = one["student"] != "b" and len(together) == 1
            record = run.failed(one, "x")
            yield one, {**record, "status": "timeout" if slow else "graded", "points": 0, "flags": []}

    monkeypatch.setattr(run, "_on_this_machine", work)
    monkeypatch.setattr(run, "_preflight", lambda *_: None)
    found = grade(folder, tmp_path / "out", asked)
    assert together == [["a", "b", "c"], ["a"], ["c"]]
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys("abc", "graded")
    assert [one["student"] for one in logged(tmp_path / "out")] == ["b", "a", "c"]


def test_a_worker_that_dies_costs_nobody_a_verdict(folder, tmp_path):
    """The process that grades is killed in the middle; what it had is graded by another."""
    out = tmp_path / "out"
    call = [*COMMAND, "grade", str(folder), "--assignment", NAME, "--seed", "7", "--out", str(out)]
    with subprocess.Popen(
        call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT, text=True
    ) as running:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            zygotes = [one for one in _descendants(running.pid) if "zygote.py" in _line(one)]
            if zygotes and (out / results.NAME).exists() and (out / results.NAME).read_bytes():
                break
            time.sleep(0.02)
        worker = int(Path(f"/proc/{zygotes[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        _, shown = running.communicate(timeout=200)
    assert running.returncode == 0, shown
    found = {one["student"]: (one["status"], one["points"]) for one in logged(out)}
    assert found == {name: (status, points) for name, (_, status, points) in CLASS.items()}


def test_a_submission_that_no_worker_survives_is_the_grader_s_failure(folder, tmp_path, asked, monkeypatch):
    class Dead(Executor):
        def submit(self, *job):
            raise BrokenProcessPool

    monkeypatch.setattr(run, "_pool", lambda jobs: Dead())
    with pytest.raises(run.PreflightError, match="the grader's own process died"):
        grade(folder, tmp_path / "out", asked, jobs=2)
    monkeypatch.setattr(run, "_preflight", lambda *_: None)
    found = grade(folder, tmp_path / "out", asked, jobs=2)
    assert {one["status"] for one in found.values()} == {"infra_error"}
    assert all(one["points"] is None for one in found.values())


def _descendants(process: int) -> list[int]:
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, found) for one in (child, *_descendants(child))]


def _line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_doctor_says_what_works(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "A class can be graded safely here." in shown
    assert "no network" in shown and "FAILS" not in shown


def test_doctor_says_what_an_unknown_processor_leaves_open(capsys, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "safely" not in shown
    assert re.search(r"^missing +filter of system calls +not for riscv64: see below$", shown, re.MULTILINE)
    assert "does not know the processor riscv64" in shown and "x86_64 or aarch64" in shown


def test_grade_says_what_an_unknown_processor_leaves_open(folder, tmp_path, here, capsys, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.chdir(ROOT)
    call = ["grade", str(folder), "--assignment", NAME, "--seed", "7", "--out", str(tmp_path / "out")]
    assert main(call) == 0
    assert "does not know the processor riscv64" in capsys.readouterr().err


def test_doctor_names_a_cure(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["doctor"]) == 1
    assert "apt-get install bubblewrap" in capsys.readouterr().out


def test_records_are_plain_json(folder, tmp_path, asked, here):
    for line in (grade(folder, tmp_path, asked) and (tmp_path / results.NAME).read_text()).splitlines():
        assert set(json.loads(line)) == set(results.FIELDS)
