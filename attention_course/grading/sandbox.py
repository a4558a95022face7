"""The room a stranger's notebook runs in: made by bubblewrap, entered by a process that was forked.

bubblewrap makes the namespaces, the mounts and nothing else; a holder process (``cat``) keeps them
open. A process that already has torch imported is then forked and enters (:func:`enter`), which
takes milliseconds where a new interpreter would take a second. Inside there is no network, no file of
the instructor's, no process but the notebook's own, no way to gain rights, and a bound on processor
time, memory, processes and disk.
"""

import ctypes
import json
import os
import re
import resource
import select
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from attention_course.grading import seccomp

#: where the course's modules lie inside
COURSE = "/course"
#: each sandbox has a user of its own when the grader runs as root: one's processes count for no other
_FIRST_USER = 1 << 30
#: an ordinary user is this one inside
_NOBODY = 65534
#: as setns has them: mounts, host name, interprocess communication, processes, network
_NAMESPACES = 0x20000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_USER_NAMESPACE = 0x10000000


class SandboxError(RuntimeError):
    """No sandbox can be had on this machine."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    #: wall-clock seconds: of one cell, of one call, in all (every restart included)
    cell: float = 30.0
    call: float = 10.0
    total: float = 120.0
    #: bytes: of memory beyond what torch itself takes, of each of two small disks in memory
    memory: int = 1 << 30
    disk: int = 32 << 20
    #: processes and threads
    processes: int = 64


@dataclass(frozen=True)
class Room:
    """A sandbox that stands: its holder's process, and the user to be inside (None: as mapped)."""

    holder: int
    user: int | None


def bubblewrap() -> str:
    """The path of bwrap.

    Raises:
        SandboxError: it is not installed.
    """
    path = shutil.which("bwrap")
    if not path:
        raise SandboxError("bubblewrap is not installed (on Debian and Ubuntu: apt-get install bubblewrap)")
    return path


@contextmanager
def room(
    course: Path, limits: Limits, hidden: Iterable[str] = (), *, user_namespace: bool | None = None
) -> Iterator[Room]:
    """A sandbox for one notebook; whatever runs in it is killed at the end.

    Args:
        course: a folder whose content is seen as the notebook's ``attention_course``.
        hidden: paths to cover up, should they lie among what is visible.
        user_namespace: make one; unless given, only where the grader is not root.

    Raises:
        SandboxError: it cannot be made here.
    """
    if user_namespace is None:
        user_namespace = os.geteuid() != 0
    info_reader, info_writer = os.pipe()
    try:
        holder = subprocess.Popen(
            command(course, limits, user_namespace, info_writer, hidden),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[info_writer], env={}, cwd="/",
        )  # fmt: skip
    except BaseException:
        os.close(info_reader)
        raise
    finally:
        os.close(info_writer)
    process = 0
    try:
        try:
            with open(info_reader, "rb") as info:
                text = info.read()
            # the holder answers only when every mount is in place
            holder.stdin.write(b"\n")
            holder.stdin.flush()
            if not text or holder.stdout.read(1) != b"\n":
                raise BrokenPipeError
            process = json.loads(text)["child-pid"]
        except (BrokenPipeError, ValueError):
            holder.kill()
            reason = holder.stderr.read(2000).decode(errors="replace").strip()
            raise SandboxError(f"bubblewrap made no sandbox: {reason or 'it said nothing'}") from None
        yield Room(process, None if user_namespace else _FIRST_USER + process)
    finally:
        _end(process)
        holder.kill()
        holder.wait()
        for stream in (holder.stdin, holder.stdout, holder.stderr):
            with suppress(OSError):
                stream.close()


def _end(first: int) -> None:
    """Kill the first process of a sandbox, and wait until all others have died with it."""
    if first:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(first)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(10_000)
            os.close(descriptor)


def command(
    course: Path, limits: Limits, user_namespace: bool, info: int, hidden: Iterable[str] = ()
) -> list[str]:
    """The call of bwrap: nothing is visible but the system's libraries and Python's, read only."""
    call = [
        bubblewrap(), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--die-with-parent", "--new-session", "--clearenv", "--hostname", "grading", "--info-fd", str(info),
    ]  # fmt: skip
    if user_namespace:
        call[1:1] = ["--unshare-user", "--disable-userns", "--uid", str(_NOBODY), "--gid", str(_NOBODY)]
    disk = ["--size", str(limits.disk), "--perms", "1777", "--tmpfs"]
    call += [*disk, "/tmp"]  # first: Python itself may lie below it
    folders = {"/", "/tmp"}
    for path in visible():
        for parent in reversed(Path(path).parents):
            if str(parent) not in folders:  # bwrap would make it for its owner alone
                call += ["--perms", "0755", "--dir", str(parent)]
                folders.add(str(parent))
        if os.path.islink(path):
            call += ["--symlink", os.readlink(path), path]
        else:
            call += ["--ro-bind", path, path]
        folders.add(path)
    for path in _covered(hidden):
        if os.path.isdir(path):  # the course itself, with its answers, where it is installed
            call += ["--perms", "0755", "--tmpfs", path, "--remount-ro", path]
        else:
            call += ["--ro-bind", "/dev/null", path]
    call += ["--perms", "0755", "--dir", COURSE, "--ro-bind", str(course), COURSE, "--proc", "/proc"]
    # what is mapped from /dev/zero and shared belongs to no process that could be counted
    call += ["--dev", "/dev", "--dev-bind", "/dev/null", "/dev/zero", "--remount-ro", "/dev"]
    call += [*disk, "/dev/shm"]
    return [*call, "--remount-ro", "/", "--chdir", "/tmp", "--", shutil.which("cat") or "/bin/cat"]


def visible() -> tuple[str, ...]:
    """The paths that Python and torch need: programs and libraries, nobody's files."""
    system = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
    settings = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/sys/devices/system/cpu")
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    # where a distribution or a user keeps packages outside of the prefix
    prefixes |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    if site.ENABLE_USER_SITE:
        prefixes.add(site.getusersitepackages())
    # an interpreter that is itself a link, as in a virtual environment, lies at the end of its links
    prefixes.add(str(Path(sys.executable).resolve().parent.parent))
    wanted = [path for path in (*system, *settings) if os.path.lexists(path)]
    for path in sorted(prefixes, key=len):
        path = os.path.realpath(path)
        if os.path.isdir(path) and path != "/" and not _within(path, wanted):
            wanted.append(path)
    return tuple(wanted)


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(
        path == folder or path.startswith(f"{folder}/") for folder in folders if not os.path.islink(folder)
    )


def _covered(hidden: Iterable[str]) -> list[str]:
    """What must not be seen though it lies among what is visible: the course, which holds the answers,
    wherever it is installed, and what the instructor named."""
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        places.add(site.getusersitepackages())
    courses = [str(Path(__file__).parents[1]), *(f"{place}/attention_course" for place in sorted(places))]
    covered: list[str] = []
    for path in sorted(map(os.path.realpath, (*courses, *hidden)), key=len):
        if os.path.exists(path) and _within(path, visible()) and not _within(path, covered):
            covered.append(path)
    return covered


# Entering -------------------------------------------------------------------------------------


def enter(holder: int, user_namespace: bool) -> None:
    """Join the namespaces of the process behind the pidfd ``holder``; children are born in them.

    The calling process must have one thread only.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(holder, _NAMESPACES | (_USER_NAMESPACE if user_namespace else 0)):
        number = ctypes.get_errno()
        raise OSError(number, f"the sandbox cannot be entered: {os.strerror(number)}")
    os.chdir("/tmp")


def confine(user: int | None, limits: Limits) -> None:
    """Give up every right, for good, and accept the limits; the last thing before a stranger's code."""
    memory = _address_space() + limits.memory
    seconds = int(limits.total) + 6
    for name, bound in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(name)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        # the softer limit on processor time has a signal of its own, which tells what happened
        soft = max(1, bound - 5) if name == resource.RLIMIT_CPU else bound
        resource.setrlimit(name, (soft, bound))
    seccomp.new_keyring()
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, drop_from_bounding_set = 38, 24
    for capability in range(64):
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the interface, this process
    if libc.capset(header, (ctypes.c_uint32 * 6)()) or libc.prctl(no_new_privileges, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"rights cannot be given up: {os.strerror(number)}")
    if os.getuid() == 0 or os.geteuid() == 0:
        raise OSError("still root inside the sandbox")
    seccomp.refuse()


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


# Watching -------------------------------------------------------------------------------------


def memory(holder: int, limit: int) -> int:
    """Bytes of memory that all processes beside the holder have of their own.

    Quickly first, which counts what they share once for each; exactly only if that is over ``limit``.
    """
    used = _memory(holder, "status", r"^Rss(?:Anon|Shmem):\s+(\d+) kB$")
    exactly = _memory(holder, "smaps_rollup", r"^Pss_(?:Anon|Shmem):\s+(\d+) kB$") if used > limit else 0
    return exactly or used


def _memory(holder: int, file: str, lines: str) -> int:
    try:
        inside = os.readlink(f"/proc/{holder}/ns/pid")
    except OSError:
        return 0
    total = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == inside:
                    text = Path(f"/proc/{entry}/{file}").read_text()
                    total += 1024 * sum(map(int, re.findall(lines, text, re.MULTILINE)))
    return total
