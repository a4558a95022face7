"""What code stands on: a change is seen by whatever can reach it, and by nothing else."""

import pickle
import time
from functools import partial
from pathlib import Path

import pytest

from attention_course.lab.measure.numbers import mean_and_sd
from attention_course.lab.train import closure, store

PACKAGE = Path(closure.__file__).parents[2]

#: a small package with every way to import
FILES = {
    "__init__.py": "from little.core import attend\nfrom little.heads import Heads\n__version__ = '1'",
    "core.py": "from little import kernels, masks\n\n\ndef attend():\n    return kernels.choose, masks",
    "masks.py": "HIDDEN = 0",
    "heads.py": "from .core import attend\n\n\nclass Heads: ...",
    "far.py": "from .lab import tools\n",
    "kernels/__init__.py": (
        "from little.kernels.fast import fast\nfrom little.kernels.slow import slow, can\n\n"
        "def choose():\n    return can()\n"
    ),
    "kernels/fast.py": "from little.kernels import base\n\n\ndef fast(): ...",
    "kernels/slow.py": "def slow(): ...\ndef can(): ...",
    "kernels/base.py": "",
    "lab/__init__.py": "",
    "lab/tools.py": "import math\n",
    "lab/late.py": "def run():\n    from little.lab import tools\n    return tools",
    "lab/drawn.py": "from importlib.resources import files\nTEXT = files(__package__) / 'parts' / 'a.html'",
    "lab/parts/a.html": "<p>",
    "lab/named.py": "from importlib import import_module\nM = import_module('little.masks')",
    "lab/open.py": (
        "from importlib import import_module\n\n\ndef of(x):\n    return import_module(f'little.checks.{x}')"
    ),
    "checks/__init__.py": '"""Checks, with :mod:`little.masks`."""\nfrom little.checks.session import check',
    "checks/session.py": "def check(): print('a message')",
    "checks/one.py": "from little.core import attend",
    "cli.py": "def main():\n    from little.checks import check",
    "loud.py": "import os\nos.environ['X'] = '1'",
    "quiet.py": "import os\nX = os.environ.get('X')",
    "noisy/__init__.py": "from little.noisy import sounds, words",
    "noisy/sounds.py": "import little.loud",
    "noisy/words.py": "",
}


@pytest.fixture
def little(tmp_path):
    package = tmp_path / "little"
    for name, text in FILES.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    return package


def names(files, package):
    """Modules and data; packages' own ``__init__`` only where they define something that is used."""
    found = {path.relative_to(package).as_posix() for path in files}
    return found - {"__init__.py", "lab/__init__.py", "kernels/__init__.py", "checks/__init__.py"}


ATTEND = {"core.py", "masks.py", "kernels/slow.py"}
CHECKS = {"checks/session.py", "checks/one.py"} | ATTEND


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import math, torch", set()),
        ("import little.masks", {"masks.py"}),
        ("from little import masks as m", {"masks.py"}),
        ("import little", set()),
        ("import little\nlittle.masks.HIDDEN", {"masks.py"}),
        # a name of the package leads to the module that defines it, not to its neighbours
        ("from little import attend", ATTEND),
        ("import little as ac\nac.attend()", ATTEND),
        ("def f():\n    import little as ac\n    return ac.Heads", ATTEND | {"heads.py"}),
        # a package within: what is asked of it
        ("from little import kernels\nkernels.fast()", {"kernels/fast.py", "kernels/base.py"}),
        ("from little.kernels import slow", {"kernels/slow.py"}),
        ("from little.core import kernels\nkernels.fast()", ATTEND | {"kernels/fast.py", "kernels/base.py"}),
        ("import little.core\nlittle.core.kernels.fast()", ATTEND | {"kernels/fast.py", "kernels/base.py"}),
        ("from little.checks import check", {"checks/session.py"}),
        # imports in functions, relative ones, by a constant name, by a part of a name
        ("from little.lab import late", {"lab/late.py", "lab/tools.py"}),
        ("import little.far", {"far.py", "lab/tools.py"}),
        ("from little.lab import named", {"lab/named.py", "masks.py"}),
        ("from little.lab.open import of", {"lab/open.py"} | CHECKS),
        # data beside a module that looks for files
        ("from little.lab import drawn", {"lab/drawn.py", "lab/parts/a.html"}),
        # strings: names, programs, commands
        ("find_spec('little.kernels.base').origin", {"kernels/base.py"}),
        ("run(['-c', 'from little.lab import tools'])", {"lab/tools.py"}),
        ("run([python, '-m', 'little.cli'])", {"cli.py", "checks/session.py"}),
        ("!little check here.ipynb", {"cli.py", "checks/session.py"}),
        ("run(['little', 'check'])", None),
        ("find_spec('little') is None", set()),
        ("%pip install little.masks", set()),
        ("import little as ac\n%timeit ac.attend()", ATTEND),
        ("%%time\nimport little.masks", {"masks.py"}),
        ("%%bash\npython -m little.masks", {"masks.py"}),
        # a docstring and a comment use nothing
        ('"""See little.masks."""\n# import little.masks', set()),
        # whoever imports what acts on import stands on it
        ("from little.noisy import words", {"noisy/__init__.py", "noisy/words.py", "loud.py"}),
        ("import little.quiet", {"quiet.py"}),
        # where nothing can be told, everything counts
        ("from little import *", None),
        ("import little as ac\ngetattr(ac, name)", None),
        ("import little as ac\nac.__path__", None),
        ("answer = !ls", None),
        ("from little.kernels import *", {"kernels/fast.py", "kernels/slow.py", "kernels/base.py"}),
    ],
)
def test_files_behind(little, code, expected):
    if expected is None:
        expected = names([path for path in little.rglob("*") if path.is_file()], little)
    assert names(closure.files_behind([code], little), little) == expected


def test_a_name_of_one_cell_is_used_in_another(little):
    found = closure.files_behind(["import little as ac", "ac.masks"], little)
    assert names(found, little) == {"masks.py"}


def seen(code, package):
    return closure.digest(closure.files_behind(code, package), package)


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        ("checks/session.py", False),  # a message elsewhere
        ("kernels/slow.py", True),  # two imports away
        ("masks.py", True),
        ("core.py", True),
        ("heads.py", False),  # a neighbour that the package imports, too
        ("lab/tools.py", False),
        ("lab/parts/a.html", False),
        ("__init__.py", True),  # may give another thing the same name
    ],
)
def test_a_digest_changes_with_what_is_used_and_with_nothing_else(little, change, matters):
    before = seen("import little as ac\nac.attend()", little)
    with open(little / change, "a", encoding="utf8") as file:
        file.write("\n# changed\n")
    assert (seen("import little as ac\nac.attend()", little) != before) is matters


def test_a_digest_changes_with_data(little):
    before = seen("from little.lab import drawn", little)
    (little / "lab/parts/a.html").write_text("<b>")
    assert seen("from little.lab import drawn", little) != before
    (little / "lab/parts/b.css").write_text("p {}")
    assert seen("from little.lab import drawn", little) != before


def test_a_digest_changes_when_a_name_moves(little):
    before = seen("from little import attend", little)
    (little / "other.py").write_text("def attend(): ...")
    (little / "__init__.py").write_text("from little.other import attend")
    assert seen("from little import attend", little) != before


def test_a_digest_names_its_files(tmp_path):
    (tmp_path / "a").write_text("x")
    before = closure.digest([tmp_path / "a"], tmp_path)
    assert before == closure.digest([tmp_path / "a", tmp_path / "a"], tmp_path)
    assert before != closure.digest([tmp_path / "a"], tmp_path, "3.12")
    (tmp_path / "a").rename(tmp_path / "b")
    assert before != closure.digest([tmp_path / "b"], tmp_path)


# The package itself -----------------------------------------------------------------------------


def behind(*code):
    return {path.relative_to(PACKAGE).as_posix() for path in closure.files_behind(code, PACKAGE)}


def test_the_library_does_not_stand_on_what_judges_it():
    found = behind("from attention_course import attend")
    assert {"attention.py", "masks.py", "kernels/tiled.py"} <= found
    assert not {name for name in found if name.split("/")[0] in ("checks", "grading", "lab", "explorables")}
    assert "heads.py" not in found
    assert "masks.py" in behind("from attention_course.checks import check") and "cli.py" not in behind("")


def test_what_python_loads_is_a_part_of_what_is_found(tmp_path):
    """The walk reads; Python imports. Whatever Python has loaded beyond it only defines."""
    import subprocess
    import sys

    code = "from attention_course.lab.experiments import recurrence"
    script = f"import sys\n{code}\nprint(*[m for m in sys.modules if m.startswith('attention_course')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("attention_course").lstrip(".") for name in done.stdout.split()}
    found = {name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for name in behind(code)}
    # transformer's front imports its models, which import these: nothing of them is used
    unused = {"transformer.models", "seq2seq", "local"}
    assert loaded - found - {""} <= unused


# Kept runs --------------------------------------------------------------------------------------


def test_a_kept_run_stands_on_what_its_function_and_arguments_reach(monkeypatch):
    call = pickle.dumps((mean_and_sd, {"values": [1.0], "by": partial(store.keep, b"")}))
    assert store._modules(call) == {
        "attention_course.lab.measure.numbers",
        "attention_course.lab.train.store",
    }
    assert store._modules(pickle.dumps((mean_and_sd, {}), 2)) == {"attention_course.lab.measure.numbers"}
    assert store._modules(pickle.dumps((time.sleep, {"seconds": 1}))) == frozenset()


@pytest.mark.parametrize(("change", "matters"), [("kernels/slow.py", True), ("checks/session.py", False)])
def test_a_kept_run_belongs_to_the_source_it_was_made_with(little, change, matters):
    of = store._surroundings.__wrapped__  # not from its cache
    before = of(frozenset({"little.core"}), little)
    assert of(frozenset({"little.core"}), little) == before
    (little / change).write_text("x = 2")
    assert (of(frozenset({"little.core"}), little) != before) is matters


def test_a_kept_run_belongs_to_its_seeds_and_instructions(tmp_path, monkeypatch):
    of = store._surroundings.__wrapped__
    monkeypatch.delenv("ATTENTION_COURSE_SEED_OFFSET", raising=False)
    found = {of(frozenset())}
    monkeypatch.setenv("ATTENTION_COURSE_SEED_OFFSET", "1000")
    found.add(of(frozenset()))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    found.add(of(frozenset()))
    assert len(found) == 3


def test_a_line_of_python_may_begin_like_a_command():
    facts = closure._facts(("import masks\nnumber = (\n    7\n    % masks.size\n)\n",))
    assert ("size",) in facts.uses["masks"]
    with pytest.raises(SyntaxError):
        closure._facts(("import (\n",))


def test_a_relative_import_in_a_cell_leads_nowhere():
    assert behind("from . import masks") == behind("")
