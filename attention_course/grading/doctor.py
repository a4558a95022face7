"""What works on this machine, what does not, and how to cure it."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from attention_course.checks.engine.asks import Step
from attention_course.grading import sandbox, seccomp
from attention_course.grading.sandbox import SandboxError

_INSTALL = "Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap"
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_USERNS = Path("/proc/sys/kernel/unprivileged_userns_clone")
_MOST_USERNS = Path("/proc/sys/user/max_user_namespaces")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``works`` is None where its lack only narrows what can be done."""

    what: str
    works: bool | None
    found: str
    cure: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything grading needs, the necessary first."""
    yield _python()
    yield _system()
    yield _bubblewrap()
    yield from _trial()
    yield _package("torch", True, "pip install torch")
    for name, use in (("nbgrader", "nbgrader's own commands"), ("dask.distributed", "grade --scheduler")):
        extra = name.partition(".")[0]
        yield _package(name, None, f"only for {use}: pip install 'attention-course[{extra}]'")


def healthy(findings: list[Finding]) -> bool:
    return all(finding.works is not False for finding in findings)


def table(findings: list[Finding]) -> str:
    """The findings as lines; a cure stands below what it cures."""
    words = {True: "ok", False: "FAILS", None: "missing"}
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{words[finding.works]:8}{finding.what:{width}}  {finding.found}".rstrip())
        lines += [f"{'':8}{'':{width}}  cure: {line}" for line in finding.cure.splitlines()]
    if not healthy(findings):
        verdict = "Submissions cannot be graded safely here. Cure what fails, or grade on another machine."
    elif any(finding.what == _FILTER and not finding.works for finding in findings):
        verdict = f"A class can be graded here, but with less protection: {missing_filter()}"
    else:
        verdict = "A class can be graded safely here."
    return "\n".join([*lines, "", verdict])


_FILTER = "filter of system calls"


def missing_filter() -> str:
    """What is open because no filter of system calls knows this processor; empty where one does."""
    if seccomp.known():
        return ""
    machine, others = platform.machine() or "of this machine", " or ".join(seccomp.machines())
    return (
        f"the filter of system calls does not know the processor {machine}, so there is none. A notebook "
        "can take memory that nobody counts, make namespaces of its own, and call rarely used parts of the "
        f"kernel, in which holes were found before. The other walls stand. Grade strangers on {others}, or "
        "on a machine that you can throw away."
    )


def _python() -> Finding:
    return Finding("Python", sys.version_info >= (3, 11), platform.python_version(), "")


def _system() -> Finding:
    kernel = platform.release()
    works = sys.platform == "linux" and _numbers(kernel) >= [5, 8]
    cure = "" if works else "grade on Linux 5.8 or newer, in a virtual machine if need be"
    return Finding("Linux 5.8 or newer", works, f"{platform.system()} {kernel}", cure)


def _bubblewrap() -> Finding:
    path = shutil.which("bwrap")
    if not path:
        return Finding("bubblewrap", False, "not installed", _INSTALL)
    release = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    works = _numbers(release) >= [0, 8]
    cure = "" if works else f"0.8 or newer is needed; {_INSTALL}"
    return Finding("bubblewrap", works, release.strip() or f"{path} says no version", cure)


def _numbers(release: str) -> list[int]:
    """The first two numbers of a version."""
    return [int(digits) for digits in re.findall(r"\d+", release)[:2]]


def _trial() -> Iterator[Finding]:
    """Grade a notebook of our own, and let it try what a stranger's might."""
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    try:
        seconds, promises = probe()
    except SandboxError as error:
        yield Finding("sandbox", False, f"as {user}: {error}", _cure())
        return
    except Exception as error:
        yield Finding("sandbox", False, f"as {user}: {type(error).__name__}: {error}", _cure())
        return
    yield Finding("sandbox", True, f"as {user}, ready in {1000 * seconds:.0f} ms")
    lacks = f"not for {platform.machine() or 'this processor'}: see below"
    yield Finding(_FILTER, seccomp.known() or None, lacks if missing_filter() else "holds")
    for promise, holds in promises.items():
        yield Finding(f"  {promise}", holds, "holds" if holds else "DOES NOT HOLD", "")


#: what a notebook in the sandbox must not be able to do -> an expression that is True where it could
ATTEMPTS = {
    # two lines of heading, one for the loopback device
    "no network": "len(open('/proc/net/dev').readlines()) > 3",
    "no files of yours": "any(__import__('os').path.exists(path) for path in {files!r})",
    "no other process": "len([name for name in __import__('os').listdir('/proc') if name.isdigit()]) > 4",
    "no rights": "__import__('os').getuid() == 0"
    " or 'CapEff:\\t0000000000000000' not in open('/proc/self/status').read()",
    "nothing to write to": "_can(lambda: open('/usr/x', 'w')) or _can(lambda: open('/x', 'w'))"
    " or _can(lambda: open('/dev/x', 'w'))",
}


def probe() -> tuple[float, dict[str, bool]]:
    """Seconds for a fresh sandbox, and which of its promises hold.

    Raises:
        SandboxError: there is none.
    """
    import torch

    from attention_course.grading.remote import launcher, session

    here = str(Path(__file__).resolve())
    files = [str(Path.home() / name) for name in (".bashrc", ".profile", ".ssh")] + [
        here,
        "/etc/passwd",
        "/etc/shadow",
    ]
    helper = (
        "def _can(attempt):\n    try:\n        attempt()\n    except BaseException:\n"
        "        return False\n    return True\n"
    )
    attempts = [text.replace("{files!r}", repr(files)) for text in ATTEMPTS.values()]
    source = helper + f"import torch\ndef probe(x):\n    return torch.tensor([{', '.join(attempts)}])\n"
    with launcher({"__init__.py": b""}, (), sandbox.Limits()) as zygote:
        start = monotonic()
        with session(zygote, monotonic() + 60) as notebook:
            seconds = monotonic() - start
            raised = notebook.cell(1, source)
            outcome = None if raised else notebook.call("probe", Step({"as": "function"}, (torch.zeros(1),)))
    result = getattr(outcome, "result", None)
    if not isinstance(result, torch.Tensor) or result.shape != (len(ATTEMPTS),):
        reason = raised or getattr(outcome, "raised", None) or outcome
        raise SandboxError(f"the trial notebook does not run: {reason}")
    return seconds, {name: not could for name, could in zip(ATTEMPTS, result.tolist(), strict=True)}


def sandbox_or_cure() -> None:
    """Make a sandbox and let it go.

    Raises:
        SandboxError: none can be made; the cure is in the message.
    """
    try:
        with tempfile.TemporaryDirectory() as course, sandbox.room(Path(course), sandbox.Limits()):
            pass
    except SandboxError as error:
        raise SandboxError(f"{error}\n{_cure()}\n(--unsafe-no-sandbox grades without)") from None


def _cure() -> str:
    if not shutil.which("bwrap"):
        return _INSTALL
    if os.geteuid() != 0:
        if _read(_APPARMOR) == "1":
            return (
                "AppArmor keeps bubblewrap from making user namespaces (Ubuntu 24.04 and newer):\n"
                "sudo apt-get install apparmor-profiles\n"
                "sudo ln -s /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/\n"
                "sudo systemctl reload apparmor"
            )
        if _read(_USERNS) == "0":
            return "sudo sysctl kernel.unprivileged_userns_clone=1"
        if _read(_MOST_USERNS) == "0":
            return "sudo sysctl user.max_user_namespaces=10000"
    if Path("/.dockerenv").exists():
        return "in a container: run it with --privileged, or with --cap-add SYS_ADMIN and no seccomp profile"
    return "run bwrap --unshare-all --ro-bind / / true, and read what it says"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _package(name: str, needed: bool | None, cure: str) -> Finding:
    package = name.partition(".")[0] if name != "dask.distributed" else "distributed"
    try:
        if find_spec(name) is not None:
            return Finding(name, True, version(package))
    except (ImportError, PackageNotFoundError, ValueError):
        pass
    return Finding(name, False if needed else None, "not installed", cure)
