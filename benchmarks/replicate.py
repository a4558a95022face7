"""Run notebooks again under other seeds and other arithmetic: how far is each claim from its bound?

    python benchmarks/replicate.py                  # every notebook with claims, 12 replications each
    python benchmarks/replicate.py 02 07 --replications 24

A replication moves every seed (data, first weights, order), and some of them change how the processor is
used. What was run is kept in _build/replications and not run again while the notebook's code and what it
imports stay the same: stop with Ctrl-C, go on later. The table goes to benchmarks/results.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Condition

import nbformat
import numpy
import torch
from nbclient import NotebookClient
from tqdm import tqdm

from attention_course.lab.measure.machine import cores, processor
from attention_course.lab.page.claims import ENOUGH, carried, keeps, margin

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))  # the build knows what a notebook stands on

import executed  # noqa: E402

SEEDS = Path(__file__).with_name("replication")  # its sitecustomize moves the seeds
KEPT = ROOT / "_build" / "replications"
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 3600

ARITHMETIC = {
    "as it comes": {},
    # what processors without AVX-512 do
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    # no vectors in torch's own loops, and MKL's path for any processor
    "portable": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
}


def setting(number: int) -> dict[str, str]:
    """Return the environment of replication ``number``; 0 is the book as it is."""
    return {
        "ATTENTION_COURSE_SEED_OFFSET": str(1000 * number),
        "OMP_NUM_THREADS": str(threads(number)),
        "MKL_NUM_THREADS": str(threads(number)),
        **ARITHMETIC[arithmetic(number)],
    }


def threads(number: int) -> int:
    """Return how many threads, on as many cores, replication ``number`` adds its sums with."""
    return 1 + number % 2


def arithmetic(number: int) -> str:
    """Return the name of the arithmetic of replication ``number``; the portable one is slow, hence rarer."""
    if number % 7 == 2:
        return "portable"
    return "AVX2" if number % 4 == 3 or number % 8 == 6 else "as it comes"


def recipe(number: int) -> dict[str, int | str]:
    """Return what makes replication ``number`` another run than the book's, as its result says it."""
    return {"seeds": 1000 * number, "arithmetic": arithmetic(number), "threads": threads(number)}


def recipe_here() -> dict[str, int | str]:
    """Return the same of this process, as its environment has it."""
    ways = (name for name, switches in ARITHMETIC.items() if switches.items() <= os.environ.items())
    *_, asked_for = ways  # the first asks for nothing
    return {
        "seeds": int(os.environ["ATTENTION_COURSE_SEED_OFFSET"]),
        "arithmetic": asked_for,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
    }


def notebooks(chosen: Sequence[str]) -> list[Path]:
    """Return the notebooks with claims whose names begin with one of ``chosen``, or all of them.

    Raises a ``ValueError`` for a name that no such notebook has.
    """
    paths = [
        path
        for path in sorted((ROOT / "book").glob("*.ipynb"))
        if re.search(r"^\s*claims\(", "\n".join(executed.code_cells(path)), re.MULTILINE)
    ]
    for start in chosen:
        if not any(path.name.startswith(start) for path in paths):
            raise ValueError(
                f"no notebook with claims is called {start}…; there are {[p.stem for p in paths]}"
            )
    return [path for path in paths if not chosen or path.name.startswith(tuple(chosen))]


# One replication, in a process of its own ------------------------------------------------------


def execute(path: Path, number: int, result: Path) -> None:
    """Run the notebook at ``path`` in the environment this process was given, and write what it claims."""
    notebook = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    # A plain assertion that another seed breaks must not hide the claims behind it.
    client = NotebookClient(
        notebook, timeout=SECONDS, allow_errors=True, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    record = {
        **recipe_here(),
        "commit": commit(),
        "processor": processor(),
        "versions": f"Python {sys.version.split()[0]}, torch {torch.__version__}, numpy {numpy.__version__}",
        "seconds": round(time.perf_counter() - began, 1),
        "errors": list(errors(notebook)),
        "claims": list(carried(notebook)),
    }
    put(result, json.dumps(record, indent=1, ensure_ascii=False))


def put(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf8")
    unfinished.replace(path)


def errors(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Yield what the cells raised: a plain assertion that fails here is a claim in disguise."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                yield f"cell {number}: {output.ename}: {output.evalue}"[:300]


# All of them -----------------------------------------------------------------------------------


def mine() -> list[int]:
    """Return the numbers of the cores this process may use; where they have none, just as many numbers."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))


class Cores:
    """The cores of this machine, lent so that no two replications slow each other down."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.free = list(numbers)
        self.count = len(numbers)
        self.given_back = Condition()

    @contextlib.contextmanager
    def lent(self, wanted: int) -> Iterator[list[int]]:
        """Wait for ``wanted`` cores, or for all where there are fewer, and give them back in the end."""
        wanted = min(wanted, self.count)
        with self.given_back:
            self.given_back.wait_for(lambda: len(self.free) >= wanted)
            own = [self.free.pop() for _ in range(wanted)]
        try:
            yield own
        finally:
            with self.given_back:
                self.free += own
                self.given_back.notify_all()


def replicate(paths: Sequence[Path], count: int, numbers: Sequence[int]) -> list[str]:
    """Run what is not kept yet, on the cores ``numbers``, each on its own; return what failed to run."""
    tasks = [(path, number) for number in range(1, count + 1) for path in paths]
    missing = [(path, number) for path, number in tasks if result_of(path, number) is None]
    # those that want more cores at once come first: they would wait for those that want one
    missing.sort(key=lambda task: -threads(task[1]))
    available = Cores(numbers)
    failed = []
    with ThreadPoolExecutor(len(numbers)) as pool:
        order = {pool.submit(started, path, number, available): (path, number) for path, number in missing}
        bar = tqdm(total=len(tasks), initial=len(tasks) - len(missing), desc="replications")
        try:
            for future in as_completed(order):
                path, number = order[future]
                if problem := future.result():
                    failed.append(f"{path.stem}, replication {number}: {problem}")
                bar.update()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            bar.close()
    return failed


def started(path: Path, number: int, available: Cores) -> str:
    """Run one replication in a process on the next free cores; return why it failed, or nothing."""
    result = place(path, number)
    result.parent.mkdir(parents=True, exist_ok=True)
    runs = str(KEPT / "runs" / str(number))
    environment = {
        **os.environ,
        **setting(number),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(SEEDS), os.environ.get("PYTHONPATH", "")))),
        "ATTENTION_COURSE_CLAIMS": "report",
        "ATTENTION_COURSE_KEEP_RUNS": runs,
        "ATTENTION_COURSE_REUSE_RUNS": runs,
    }
    command = [sys.executable, __file__, "--execute", str(path), str(number), str(result)]
    with available.lent(threads(number)) as own:
        process = subprocess.run(
            [*command, "--on", ",".join(map(str, own))], env=environment, capture_output=True, text=True
        )
    if stand.__wrapped__(path) != stand(path):
        result.unlink(missing_ok=True)
        return "its sources changed while it ran"
    return "" if process.returncode == 0 else process.stderr.strip()[-500:]


def place(path: Path, number: int) -> Path:
    """Where the result of a replication is kept: under the digest of all that it depends on."""
    return KEPT / path.stem / stand(path) / f"{number}.json"


def result_of(path: Path, number: int) -> dict | None:
    """Return what is kept of a replication, or ``None`` if there is none, or of another recipe."""
    try:
        result = json.loads(place(path, number).read_text(encoding="utf8"))
    except FileNotFoundError:
        return None
    return result if recipe(number).items() <= result.items() else None


@functools.cache
def stand(path: Path) -> str:
    """Digest a notebook's code cells and what they reach."""
    cells = "\0".join(executed.code_cells(path))
    return hashlib.sha256((executed.digest(path) + cells).encode()).hexdigest()[:16]


def restore(paths: Sequence[Path]) -> None:
    """Put replications that benchmarks/results keeps of the same sources where new ones would go."""
    known = known_results()
    for path in paths:
        notebook = known.get(path.stem)
        if notebook is None or notebook["stand"] != stand(path):
            continue
        for index, run in enumerate(notebook["runs"]):
            result = place(path, run["seeds"] // 1000)
            if not result.exists():
                result.parent.mkdir(parents=True, exist_ok=True)
                statements = [
                    {
                        **{key: claim[key] for key in ("words", "at_least", "at_most")},
                        "number": claim["numbers"][index],
                    }
                    for claim in notebook["claims"]
                ]
                put(result, json.dumps({**run, "claims": statements}))


def known_results() -> dict[str, dict]:
    """Return what benchmarks/results keeps of earlier replications, by notebook."""
    raw = RESULTS / "replications.json"
    return json.loads(raw.read_text(encoding="utf8")) if raw.exists() else {}


# The table -------------------------------------------------------------------------------------


def collected(paths: Sequence[Path]) -> dict[str, dict]:
    """Return all that is kept: runs, errors and claims with their numbers, by notebook."""
    result = {}
    for path in paths:
        numbers = sorted(int(file.stem) for file in place(path, 1).parent.glob("*.json"))
        runs = [run for number in numbers if (run := result_of(path, number)) is not None]
        if not runs:
            continue
        claims_of_runs = [{claim["words"]: claim for claim in run.pop("claims")} for run in runs]
        every = {words: claim for claims in claims_of_runs for words, claim in claims.items()}
        statements = [
            {
                "words": words,
                "at_least": claim["at_least"],
                "at_most": claim["at_most"],
                # no number where a cell broke before its claims were looked at
                "numbers": [claims.get(words, {}).get("number") for claims in claims_of_runs],
            }
            for words, claim in every.items()
        ]
        result[path.stem] = {"stand": stand(path), "runs": runs, "claims": statements}
    return result


def commit() -> str:
    """Return the commit of the sources, marked where they differ from it."""
    process = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return process.stdout.strip() or "unknown"


def table(found: dict[str, dict]) -> Iterator[str]:
    """Yield the lines of the table, the least sure claim of each notebook first."""
    for name, notebook in found.items():
        runs, count = notebook["runs"], len(notebook["runs"])
        ways = sorted({run["arithmetic"] for run in runs})
        commits = dict.fromkeys(run["commit"] for run in runs)
        yield f"{name}: {count} replications ({', '.join(ways)}), commit {', '.join(commits)}"
        for where in sorted({f"{run['processor']}, {run['versions']}" for run in runs}):
            yield f"  {where}"
        for error, times in counted(error for run in runs for error in run["errors"]).items():
            yield f"  BROKE {times} of {count}: {error.splitlines()[0]}"
        rows = []
        for claim in notebook["claims"]:
            numbers = [number for number in claim["numbers"] if number is not None]
            bounds = claim["at_least"], claim["at_most"]
            sure = margin(claim["numbers"], *bounds) if count > 1 else float("nan")
            rows.append((sure, bounds, claim, numbers))
        for sure, (low, high), claim, numbers in sorted(rows, key=lambda row: row[0]):
            held = sum(keeps(number, low, high) for number in claim["numbers"])
            mean = statistics.fmean(numbers) if numbers else float("nan")
            spread = statistics.stdev(numbers) if len(numbers) > 1 else float("nan")
            bound = " ".join(f"{sign} {b:g}" for sign, b in (("≥", low), ("≤", high)) if b is not None)
            flag = " " if sure >= ENOUGH else "!"
            yield (
                f" {flag}held {held:2d}/{len(claim['numbers']):2d}  margin {sure:6.1f}  "
                f"{mean:10.4g} ± {spread:<9.2g} {bound:<16} {claim['words']}"
            )
        yield ""


def counted(items: Iterator[str]) -> dict[str, int]:
    result: dict[str, int] = {}
    for item in items:
        result[item] = result.get(item, 0) + 1
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("notebook", nargs="*", help="how its name begins: 02, alignment; all unless given")
    parser.add_argument("--replications", type=int, default=12, metavar="N")
    parser.add_argument(
        "--cores", type=int, default=cores(), metavar="N", help="how many to use; all unless given"
    )
    parser.add_argument("--table", action="store_true", help="run nothing: the table of what is kept")
    parser.add_argument("--execute", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--on", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.execute:
        if options.on and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, map(int, options.on.split(",")))
        path, number, result = options.execute
        execute(Path(path), int(number), Path(result))
        return 0
    if options.replications < 2 or options.cores < 1:
        parser.error("a spread needs at least two replications, and a core to run them on")
    try:
        paths = notebooks(options.notebook)
    except ValueError as error:
        parser.error(str(error))
    restore(paths)
    failed = [] if options.table else replicate(paths, options.replications, mine()[: options.cores])
    write(collected(paths))
    for problem in failed:
        print(f"did not run: {problem}", file=sys.stderr)
    return 1 if failed else 0


def write(found: dict[str, dict]) -> None:
    """Put what was found beside what is known of other notebooks, and print its table."""
    RESULTS.mkdir(exist_ok=True)
    raw, text = RESULTS / "replications.json", RESULTS / "replications.txt"
    known = dict(sorted({**known_results(), **found}.items()))
    lines = "\n".join(table(known)) + "\n"  # first: half of a result is none
    put(raw, json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    put(text, lines)
    print("\n".join(table(found)))


if __name__ == "__main__":
    sys.exit(main())
