"""Grade a class: every submission once, on one machine, on a part of them, or over Dask.

Whoever grades is handed plain dicts and hands plain dicts back, wherever it runs.
"""

import base64
import hashlib
import json
import os
import platform
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import forkserver, get_context, parent_process, util
from pathlib import Path
from time import monotonic
from typing import Any

from attention_course.grading import results
from attention_course.grading.submissions import Problem, Source, Submission


class SchedulerError(RuntimeError):
    """The Dask scheduler cannot be used."""


class StaleError(RuntimeError):
    """A worker's verdict would not be what its key says."""


class PreflightError(RuntimeError):
    """The official solution does not get what it deserves here: no verdict could be trusted."""


def grade_class(
    source: Source,
    assignment,
    exercises: Path,
    seed: int,
    out: Path,
    *,
    jobs: int = 1,
    shard: tuple[int, int] = (1, 1),
    scheduler: str | None = None,
    unsafe: bool = False,
    hidden: Sequence[Path] = (),
    progress: Callable[[dict], None] = lambda record: None,
) -> tuple[dict, ...]:
    """Grade what has no verdict yet, and write each down as soon as it is there.

    Args:
        assignment: as :func:`attention_course.grading.assignment.load` makes it.
        hidden: folders, besides ``exercises`` and ``out``, that no notebook may see.
        shard: (i, n): only the i-th of n parts of the class, by a digest of the student's name.
        progress: called with every record, old ones first.

    Returns:
        The latest record of every student of this part of the class.

    Raises:
        RecordError: ``out`` cannot be used.
        AssignmentError: there is no official solution.
        PreflightError: it was graded first, and did not get all points without a flag.
        SchedulerError: there is no such scheduler, or it lacks what grading needs.
    """
    from attention_course.grading.assignment import official

    submissions = [submission for submission in source.submissions if in_shard(submission.student, shard)]
    with results.open_log(out) as log:
        settled_keys = results.done(log.records)
        known = {(record["student"], record["key"]): record for record in log.records}
        latest = results.latest(log.records)
        fresh: list[dict] = []

        def keep(record: dict) -> None:
            log.append(record)
            fresh.append(record)
            progress(record)

        def request(content: bytes, identity: dict, flags: Iterable[str] = ()) -> dict:
            return {
                **identity, "content": base64.b64encode(content).decode(), "seed": seed,
                "assignment": assignment.name, "exercises": str(exercises.resolve()), "unsafe": unsafe,
                "flags": list(flags), "hidden": [str(path.resolve()) for path in (exercises, out, *hidden)],
            }  # fmt: skip

        def requests() -> Iterator[dict]:
            for submission in submissions:
                content = submission.problem or source.read(submission)
                identity = _identity(submission, content, assignment, seed, unsafe)
                student, key = identity["student"], identity["key"]
                if (student, key) in settled_keys:
                    record = known[student, key]
                    if latest[student]["key"] != key:
                        log.append(record)  # handed in again after something else: the last word
                    fresh.append(record)
                    progress(record)
                elif isinstance(content, Problem):
                    verdict = _not_run(content.status, content.message, assignment, submission.flags)
                    keep({**identity, **verdict, "seconds": 0.0})
                else:
                    yield request(content, identity, submission.flags)

        with _workers(jobs, scheduler) as work:
            if submissions:
                solution = official(exercises, assignment.name)
                identity = _identity(_OFFICIAL, solution, assignment, seed, unsafe)
                _preflight(work, request(solution, identity), out / PREFLIGHT, scheduler)
            slow_requests = []
            for graded_request, record in work(requests()):
                # a busy machine makes an honest notebook slow: it is tried once more, alone
                if record["status"] == "timeout":
                    slow_requests.append(graded_request)
                else:
                    keep(record)
            for slow_request in slow_requests:
                for _, record in work(iter([slow_request])):
                    keep(record)
        return tuple(results.latest(fresh).values())


#: in the folder of results: a digest of what the official solution was graded with when all was well
PREFLIGHT = "preflight.json"
_OFFICIAL = Submission("the official solution", "source")


def _preflight(work: "Work", request: dict, path: Path, scheduler: str | None) -> None:
    """Grade the official solution as a student's: same inputs, same sandbox, same processes.

    Raises:
        PreflightError: it does not get all points without a flag; which exercise, and why.
    """
    import torch

    machine = [platform.platform(), torch.backends.cpu.get_cpu_capability()]
    setting = [request["key"], scheduler, *machine]
    digest = {"passed": hashlib.sha256(json.dumps(setting).encode()).hexdigest()}
    with suppress(OSError, ValueError):
        if json.loads(path.read_bytes()) == digest:
            return
    for _ in range(2):  # a timeout is tried once more, as a student's is
        [(_, record)] = work(iter([request]))
        if record["status"] != "timeout":
            break
    lines = [
        f"  {exercise['name']}: {exercise['points']} of {exercise['max_points']} points: "
        f"{exercise['message']}"
        for exercise in record["exercises"] if exercise["status"] != "passed"
    ]  # fmt: skip
    lines += [f"  flag: {flag}" for flag in record["flags"]]
    if lines or record["status"] != "graded":
        raise PreflightError(
            "nobody's submission was touched, because the official solution does not get all points here "
            f"(status {record['status']}), with the same seed and in the same sandbox:\n" + "\n".join(lines)
        )
    results.replace(path, json.dumps(digest).encode())


def in_shard(student: str, shard: tuple[int, int]) -> bool:
    """Whether a student belongs to part i of n; who else is in the class does not matter."""
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % shard[1] == shard[0] - 1


def _identity(submission: Submission, content: bytes | Problem, assignment, seed: int, unsafe: bool) -> dict:
    from attention_course.grading.assignment import key

    if isinstance(content, Problem):
        content = f"{content.status} {content.message}".encode()
    digest = key(assignment, content, seed, unsafe)
    return {"student": submission.student, "name": submission.name, "key": digest}


def _not_run(status: str, message: str, assignment, flags: Iterable[str] = ()) -> dict:
    """A record without a run; ``infra_error`` has no points, which is not the same as none of them."""
    points = None if status == "infra_error" else 0
    exercises = [
        {
            "name": task.exercise.name, "status": "missing", "points": 0,
            "max_points": task.exercise.points, "message": message,
        }
        for task in assignment.tasks
    ]  # fmt: skip
    return {
        "assignment": assignment.name, "status": status, "points": points, "max_points": assignment.points,
        "exercises": exercises, "flags": list(flags),
    }  # fmt: skip


# One submission, wherever it is graded --------------------------------------------------------

#: judging sets torch's defaults for a moment; two at once in one process would disturb each other
_ONE_AT_A_TIME = threading.Lock()


def work(request: dict) -> dict:
    """The record of one request; never raises."""
    identity = {name: request[name] for name in ("student", "name", "key")}
    with _ONE_AT_A_TIME:
        start = monotonic()  # waiting for another's turn is nobody's time
        verdict = _graded(request)
        verdict["flags"] = [*request["flags"], *verdict["flags"]]
        return {**identity, **verdict, "seconds": round(monotonic() - start, 3)}


def _graded(request: dict) -> dict:
    from attention_course.grading.assignment import key, load
    from attention_course.grading.grade import grade, record

    content, seed, unsafe = base64.b64decode(request["content"]), request["seed"], request["unsafe"]
    try:
        place = request["exercises"], request["assignment"]
        assignment, launcher = _prepared(*place, unsafe, tuple(request["hidden"]))
        if key(assignment, content, seed, unsafe) != request["key"]:
            raise StaleError("this worker has another version of the course than the command: restart it")
        return record(grade(content, assignment, seed, launcher), assignment)
    except BaseException as error:  # ours to mend, whatever it is: nobody loses a point for it
        if isinstance(error, KeyboardInterrupt):
            raise
        forget()
        trouble = f"{type(error).__name__}: {error}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        assignment = load(Path(request["exercises"]), request["assignment"])
        flag = f"grader: {trouble} ({Path(where.filename).name}, line {where.lineno})"[:300]
        return _not_run("infra_error", "The grader failed; this is not your fault.", assignment, [flag])


#: (folder, assignment, unsafe, hidden) -> what it takes to grade it here, and how to end that
_READY: dict[tuple, tuple[Any, Any, ExitStack]] = {}


def forget() -> None:
    """End what this process keeps ready to grade with."""
    while _READY:
        _READY.popitem()[1][2].close()


def _prepared(*setting: Any) -> tuple[Any, Any]:
    """The assignment and a zygote, once for a process; ended with it."""
    if setting not in _READY:
        _READY[setting] = _prepare(*setting)
    return _READY[setting][:2]


def _prepare(exercises: str, name: str, unsafe: bool, hidden: tuple[str, ...]) -> tuple[Any, Any, ExitStack]:
    import torch

    from attention_course.grading.assignment import load
    from attention_course.grading.remote import launcher
    from attention_course.grading.sandbox import Limits

    torch.set_num_threads(1)  # as many workers as cores; each would only wait for the other
    assignment = load(Path(exercises), name)
    stack = ExitStack()
    files, preload = assignment.files, assignment.preload
    # training takes its time; beside it a notebook has what any other has for half of its cells
    limits = Limits(total=max(Limits.total, Limits.total / 2 + assignment.seconds))
    zygote = stack.enter_context(launcher(files, preload, limits, hidden=hidden, unsafe=unsafe))
    util.Finalize(None, forget, exitpriority=10)  # also in a worker, where atexit is not called
    return assignment, zygote, stack


# Workers --------------------------------------------------------------------------------------

Work = Callable[[Iterator[dict]], Iterator[tuple[dict, dict]]]


@contextmanager
def _workers(jobs: int, scheduler: str | None) -> Iterator[Work]:
    if scheduler is None:
        with closing(_Pools(jobs)) as pools:
            yield lambda requests: _on_this_machine(requests, pools)
        return
    try:
        from dask.distributed import Client
    except ImportError:
        raise SchedulerError("--scheduler needs Dask: pip install 'attention-course[dask]'") from None
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError, TypeError) as error:
        raise SchedulerError(f"no Dask scheduler answers at {scheduler!r}: {error}") from None
    with client:
        yield lambda requests: _over_dask(requests, client)


def warm_up() -> None:
    """Begin to import what workers need, in a process that they are forked from, while others do their part.

    It must be running before a log is opened: who is forked later holds the log's lock as well.
    """
    get_context("forkserver").set_forkserver_preload(["attention_course.grading.grade"])
    forkserver.ensure_running()


def _pool(jobs: int) -> ProcessPoolExecutor:
    warm_up()
    return ProcessPoolExecutor(jobs, mp_context=get_context("forkserver"), initializer=_end_with_the_command)


def _end_with_the_command() -> None:
    """A worker whose command was killed would wait for its next task for ever."""

    def watch() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Pools:
    """Processes to grade in: started when they are first needed, kept, and anew once one has died."""

    def __init__(self, jobs: int):
        self.jobs, self.pool = jobs, None

    def get(self) -> Executor:
        self.pool = self.pool or _pool(self.jobs)
        return self.pool

    def close(self) -> None:
        if self.pool:  # what has not begun when a disk is full, or at Ctrl-C, never does
            self.pool.shutdown(cancel_futures=True)
        self.pool = None


def _on_this_machine(requests: Iterator[dict], pools: _Pools) -> Iterator[tuple[dict, dict]]:
    """Grade in processes of ``pools``; one that dies costs nobody a verdict."""
    unsure: list[dict] = []
    while True:
        running: dict[Future, dict] = {}
        broken = False
        for request in requests:
            try:
                running[pools.get().submit(work, request)] = request
            except BrokenProcessPool:
                unsure.append(request)
                broken = True
                break
            if len(running) >= 2 * pools.jobs:
                finished = _finished(running, wait(running, return_when=FIRST_COMPLETED).done)
                for finished_request, record in finished:
                    if record is None:
                        unsure.append(finished_request)
                        broken = True
                    else:
                        yield finished_request, record
            if broken:
                break
        for finished_request, record in _finished(running, wait(running).done):
            if record is None:
                unsure.append(finished_request)
                broken = True
            else:
                yield finished_request, record
        if not broken:
            break
        pools.close()
    for request in unsure:  # which of them it was, each tells alone
        yield request, _alone(request)


def _finished(running: dict[Future, dict], futures: Iterable[Future]) -> Iterator[tuple[dict, dict | None]]:
    for future in list(futures):
        request = running.pop(future)
        try:
            yield request, future.result()
        except BrokenProcessPool:
            yield request, None


def _alone(request: dict) -> dict:
    try:
        with _pool(1) as pool:
            return pool.submit(work, request).result()
    except BrokenProcessPool:
        return failed(request, "the grader's own process died")


def failed(request: dict, why: str) -> dict:
    """The record of a request that nobody answered."""
    from attention_course.grading.assignment import load

    assignment = load(Path(request["exercises"]), request["assignment"])
    verdict = _not_run(
        "infra_error", "The grader failed; this is not your fault.", assignment, [f"grader: {why}"]
    )
    return {**{name: request[name] for name in ("student", "name", "key")}, **verdict, "seconds": 0.0}


def _over_dask(requests: Iterator[dict], client) -> Iterator[tuple[dict, dict]]:
    from dask.distributed import as_completed

    slots = max(2, 2 * sum(client.ncores().values()))
    running, queue = {}, as_completed()
    for request in requests:
        future = client.submit(work, request, pure=False, retries=1)
        running[future] = request
        queue.add(future)
        if len(running) >= slots:
            yield _from_dask(running, next(queue))
    while running:
        yield _from_dask(running, next(queue))


def _from_dask(running: dict, future) -> tuple[dict, dict]:
    request = running.pop(future)
    try:
        return request, future.result()
    except Exception as error:  # its worker died, twice
        return request, failed(request, f"{type(error).__name__}: {error}"[:200])


# The class as a whole -------------------------------------------------------------------------


def alike(source: Source, assignment) -> tuple:
    """Pairs of students whose answers are nearly the same, for a person to look at."""
    from attention_course.grading import similarity
    from attention_course.grading.assignment import plan
    from attention_course.grading.cells import Unreadable, read_cells

    answers = {}
    for submission in source.submissions:
        content = submission.problem or source.read(submission)
        if isinstance(content, bytes):
            try:
                cells = read_cells(content)
            except Unreadable:
                continue
            places = sorted(set().union(*plan(cells, assignment).answers.values()))
            answers[submission.student] = similarity.fingerprints([cells[place].source for place in places])
    return tuple(similarity.pairs(answers, similarity.fingerprints(assignment.starter)))
