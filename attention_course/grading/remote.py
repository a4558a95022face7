"""The grader's end: start sandboxed processes, send cells and calls, take values back."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from torch import Tensor

from attention_course.checks.engine.asks import Inputs, Step
from attention_course.checks.engine.observe import SLACK, Outcome, Raised, is_plain
from attention_course.checks.engine.words import printable
from attention_course.grading import sandbox, wire
from attention_course.grading.sandbox import Limits, SandboxError

#: seconds for what is ours to do: starting a process, moving a frame
_OURS = 30.0
#: seconds more than the time a cell or a call has, before its whole process is killed
_GRACE = 2.0


class Ended(Exception):
    """The notebook's process is gone. ``status`` is timeout, crashed or refused; ``why`` is a clause."""

    def __init__(self, status: str, why: str):
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class NotAFunction:
    """What stands in the notebook under an exercise's name: nothing, or no function."""

    missing: bool
    kind: str = ""


# The zygote -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launcher:
    """A zygote that waits, and the course as a notebook may see it."""

    process: subprocess.Popen
    control: socket.socket
    course: Path
    limits: Limits
    #: the instructor's folders
    hidden: tuple[str, ...]
    #: makes the sandbox: :func:`sandbox.room`, or :func:`no_room` where that is allowed
    room: Callable = field(default=sandbox.room)


@contextmanager
def launcher(
    files: Mapping[str, bytes],
    preload: Sequence[str],
    limits: Limits,
    *,
    hidden: Sequence[str] = (),
    unsafe: bool = False,
) -> Iterator[Launcher]:
    """Start a zygote; ends it, and what it forked, at the end.

    Args:
        files: path within ``attention_course`` -> content; all that a notebook may import of it.
        preload: modules to import once, for all notebooks.
        hidden: folders of the instructor's that no notebook may see.
        unsafe: without a sandbox: a notebook can then read and do what the grader can.

    Raises:
        SandboxError: the process does not start.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # whole messages
    with tempfile.TemporaryDirectory(prefix="attention-course-") as folder, ours:
        course = Path(folder) / "course"
        _write(course, files)
        os.chmod(folder, 0o755)
        with theirs:
            program = str(Path(__file__).with_name("zygote.py"))
            process = subprocess.Popen(
                [sys.executable, "-I", program, str(theirs.fileno()), *preload],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, cwd="/", env=_environment(), start_new_session=True,
            )  # fmt: skip
        try:
            ours.settimeout(120)
            word = b""
            with suppress(OSError):
                word = ours.recv(1)
            if word != b"r":
                process.kill()
                words = process.stderr.read().decode(errors="replace").strip().splitlines()
                raise SandboxError(
                    f"the process for notebooks does not start: {words[-1] if words else 'no reason'}"
                )
            ours.settimeout(_OURS)
            room = no_room if unsafe else sandbox.room
            yield Launcher(process, ours, course, limits, tuple(hidden), room)
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def _write(course: Path, files: Mapping[str, bytes]) -> None:
    course.mkdir(mode=0o755)
    for name, content in files.items():
        path = course / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path in (course, *course.rglob("*")):  # whatever the umask is
        path.chmod(0o755 if path.is_dir() else 0o644)


def _environment() -> dict[str, str]:
    """Only what Python and torch need to start: nothing of the instructor's can be read from it."""
    needed = ("LD_LIBRARY_PATH", "TMPDIR", "HOME", "LANG")
    kept = {name: os.environ[name] for name in needed if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


@contextmanager
def no_room(course: Path, limits: Limits, hidden: Sequence[str]) -> Iterator[sandbox.Room]:
    """In place of a sandbox: nothing. For ``--unsafe-no-sandbox`` alone."""
    yield sandbox.Room(0, None)


# One notebook ---------------------------------------------------------------------------------


@contextmanager
def session(launcher: Launcher, deadline: float) -> Iterator["Session"]:
    """A fresh process for one notebook, in a sandbox of its own.

    Args:
        deadline: when its time is over altogether, on the clock of :func:`time.monotonic`.

    Raises:
        SandboxError: it cannot be made.
    """
    with launcher.room(launcher.course, launcher.limits, launcher.hidden) as room, ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        status, tells = os.pipe()
        stack.callback(os.close, status)
        course = sandbox.COURSE if room.holder else str(launcher.course)
        limits = asdict(launcher.limits)
        request = {"safe": bool(room.holder), "user": room.user, "course": course, "limits": limits}
        holder = os.pidfd_open(room.holder or os.getpid())
        try:
            descriptors = [holder, theirs.fileno(), tells]
            socket.send_fds(launcher.control, [json.dumps(request).encode()], descriptors)
        except OSError as error:
            raise SandboxError(f"the process for notebooks is gone: {error}") from None
        finally:
            os.close(holder)
            os.close(tells)
            theirs.close()
        started = _status(status, _OURS) or ""
        word, _, process = started.partition("\n")[0].partition(" ")
        if word != "started":
            raise SandboxError(started or "no notebook could be started")
        if not room.holder:  # no sandbox that would take its processes with it
            stack.callback(_end_group, int(process))
        try:
            wire.receive(ours, _OURS)
        except wire.WireError:
            code = _status(status, 1.0)
            raise SandboxError(
                f"a notebook's process does not start (exit code {code or 'unknown'})"
            ) from None
        yield Session(ours, launcher.limits, room.holder, deadline, status)


def _end_group(process: int) -> None:
    with suppress(OSError):
        os.killpg(process, signal.SIGKILL)


def _status(descriptor: int, seconds: float) -> str | None:
    """What the process that stands outside of the sandbox has told so far; None if it has told nothing yet,
    empty if it is gone without a word more."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(1000 * seconds):
        return None
    return os.read(descriptor, 2000).decode(errors="replace")


@dataclass(frozen=True)
class Session:
    """One notebook's process: cells go in, values come out."""

    channel: socket.socket
    limits: Limits
    holder: int
    deadline: float
    status: int

    def cell(self, number: int, source: str) -> Raised | None:
        """Run a cell; what it raised, if anything.

        Raises:
            Ended: the process is gone, or had to be.
        """
        request = {"do": "cell", "number": number, "source": source}
        answer, _ = self._ask(request, [], self.limits.cell)
        return _raised(answer, f"ran longer than {self.limits.cell:g} s and was stopped")

    def public_inputs(self, cases: Mapping[str, Mapping[str, Step]]) -> None:
        """Give a fresh process what ``inputs(exercise, case)`` shows on a learner's own machine.

        Raises:
            SandboxError: it could not be given; no line of the notebook has run yet.
            Ended: the notebook's time is over.
        """
        tensors: list[Tensor] = []
        placed: dict[str, dict[str, tuple[Mapping, list[int]]]] = {}
        for exercise, of_cases in cases.items():
            placed[exercise] = {}
            for case, shown in of_cases.items():
                places = list(range(len(tensors), len(tensors) + len(shown.inputs)))
                placed[exercise][case] = shown.use, places
                tensors += shown.inputs
        try:
            self._ask({"do": "inputs", "cases": placed}, tensors, _OURS)
        except Ended as ended:
            if monotonic() > self.deadline:
                raise
            raise SandboxError(f"a notebook's process {ended.why} before its first cell") from None

    def call(
        self,
        name: str,
        step: Step,
        cotangents: Inputs | None = None,
        watched: Sequence[str] = (),
        exercise: str = "",
        written: int = 0,
    ) -> Outcome | NotAFunction:
        """Use an answer of the notebook as ``step`` says; what it did, as values.

        The answer is what the notebook's own check of ``exercise`` was last handed, in the cell with the
        number ``written`` or a later one; else what bears the ``name``.

        Raises:
            Ended: the process is gone, or had to be.
        """
        inputs, seconds = step.inputs, self.limits.call
        slow = f"ran longer than {seconds:g} s and was stopped"
        if step.seconds is not None:
            seconds = SLACK * step.seconds
            slow = f"took more than {step.seconds:g} s ({seconds:g} s on the clock) and was stopped"
        request = {
            "do": "call", "name": name, "use": dict(step.use), "inputs": len(inputs),
            "gradient": cotangents is not None, "processor": step.seconds,
            "watched": list(watched), "exercise": exercise, "written": written,
        }  # fmt: skip
        answer, tensors = self._ask(request, [*inputs, *(cotangents or ())], seconds)
        try:
            return _outcome(answer, tensors, inputs, cotangents is not None, slow)
        except Ended:
            raise
        except Exception:  # whatever a stranger thought of
            raise Ended("refused", "answered the grader with something that is no result") from None

    def _ask(self, request: dict, tensors: list[Tensor], seconds: float) -> tuple[dict, list[Tensor]]:
        seconds = min(seconds, max(self.deadline - monotonic(), 0.001))
        try:
            # a frame of ours that is too large is no WireError: whatever is in it, it is ours
            wire.send(self.channel, {**request, "seconds": seconds}, tensors, _OURS, wire.FROM_GRADER)
            answer, results = wire.receive(self.channel, seconds + _GRACE, _every(0.05, self._watch))
        except wire.WireTimeout:
            if monotonic() > self.deadline:
                raise self._late() from None
            raise Ended("timeout", f"ran longer than {seconds:g} s and could not be stopped") from None
        except wire.WireClosed:
            raise self._end() from None
        except wire.WireError:
            raise Ended("refused", "wrote to the grader's own channel") from None
        if monotonic() > self.deadline:
            raise self._late()
        return answer, results

    def _late(self) -> Ended:
        return Ended("timeout", f"took more than {self.limits.total:g} s in all")

    def _watch(self) -> None:
        # what torch takes is not counted against anybody; it is shared with the process it was forked from
        limit = self.limits.memory + (256 << 20)
        if self.holder and sandbox.memory(self.holder, limit) > limit:
            raise Ended("crashed", f"used more than {self.limits.memory / 2**20:,.0f} MiB of memory")

    def _end(self) -> Ended:
        """How the notebook's process ended.

        Raises:
            SandboxError: nobody can tell, for the process that would is gone; it stands outside, where no
                notebook can reach it.
        """
        words = _status(self.status, 2.0)
        if words is None:
            return Ended("refused", "closed the grader's own channel")
        ended = words.partition("\n")[0]
        if not ended:
            raise SandboxError("the process that waits for a notebook's end is gone")
        code = int(ended) if ended.lstrip("-").isdigit() else None
        if code == -24:  # SIGXCPU
            return Ended("timeout", f"used more than {self.limits.total:g} s of processor time")
        if code is not None and code < 0:
            return Ended("crashed", f"ended its process with signal {-code}")
        return Ended("crashed", "ended its process" + (f" with exit code {code}" if code else ""))


def _every(seconds: float, look: Callable[[], None]) -> Callable[[], None]:
    """``look``, but not more often than that."""
    last = monotonic()

    def idle() -> None:
        nonlocal last
        if monotonic() - last >= seconds:
            look()
            last = monotonic()

    return idle


def _raised(answer: dict, slow: str) -> Raised | None:
    if answer.get("slow"):
        return Raised("TookTooLong", slow)
    raised = answer.get("raised")
    if raised is None:
        return None
    if not isinstance(raised, list) or len(raised) != 3:
        raise Ended("refused", "answered the grader with something that is no result")
    return Raised(*(printable(text) if isinstance(text, str) else "" for text in raised))


def _outcome(
    answer: dict, tensors: list[Tensor], inputs: Inputs, gradient: bool, slow: str
) -> Outcome | NotAFunction:
    if answer.get("missing"):
        return NotAFunction(missing=True)
    if "not_callable" in answer:
        return NotAFunction(False, "None" if answer.get("none") else printable(answer["not_callable"], 60))
    if answer.get("slow"):
        raise Ended("timeout", slow)
    raised = _raised(answer, "")
    if raised:
        return Outcome(raised=raised)
    positions, names = list(answer["changed"]), list(answer["called"])[:20]
    changed = tuple(index for index in range(len(inputs)) if index in positions)
    called = frozenset(printable(name, 60) for name in names)
    gradients = None
    if gradient:
        gradients = tuple(wire.decode(gradient, tensors) for gradient in answer["gradients"])
        if not all(map(_is_gradient, gradients, inputs)) or len(gradients) != len(inputs):
            raise ValueError("gradients")
    return Outcome(wire.decode(answer["result"], tensors), None, changed, called, gradients)


def _is_gradient(value: object, of: Tensor) -> bool:
    return value is None or (is_plain(value) and value.shape == of.shape and value.dtype == of.dtype)
