"""What holds across the whole repository: one address, clean notebooks, pins that fit the floors."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import executed  # noqa: E402

BUILT = {".git", ".venv", "venv", "_build", "node_modules", "__pycache__", ".ipynb_checkpoints"}
VENDORED = ROOT / "book" / "_static" / "vendor"


def project_files() -> list[Path]:
    """Every file of the project: what git tracks or would track, or all but what is built."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = list(ROOT.rglob("*"))
    return sorted(
        path
        for path in paths
        if path.is_file()
        and not BUILT.intersection(path.relative_to(ROOT).parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
        and VENDORED not in path.parents
    )


def text_files() -> dict[str, str]:
    texts = {}
    for path in project_files():
        try:
            texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf8")
        except UnicodeDecodeError:
            continue
    return texts


NOTEBOOKS = [
    path
    for path in project_files()
    if path.suffix == ".ipynb" and path.relative_to(ROOT).parts[0] in {"book", "exercises"}
]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
REPOSITORY = CONFIG["repository"]["url"]
SLUG = REPOSITORY.removeprefix("https://github.com/")
SETUP = """\
import importlib.util
if importlib.util.find_spec("attention_course") is None:  # a fresh Colab machine
    %pip install --quiet "{package} @ git+{repository}\""""
#: what else a page's library needs, by what its cells name
EXTRAS = {
    "pretrained": "attention-course[pretrained]",
    "attention_course.beyond": "attention-course[beyond]",
}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(ROOT).as_posix())


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def test_the_address_of_the_repository_is_the_same_everywhere():
    """``_config.yml`` decides; ``make repository URL=…`` changes it everywhere."""
    ours = re.compile(r"github\.com/([\w.-]+/attention-course)\b|/github/([\w.-]+/[\w.-]+)/blob/")
    found = {
        (name, "".join(match.groups(default="")))
        for name, text in text_files().items()
        if name != "tests/test_project.py"
        for match in ours.finditer(text)
    }
    assert found, "the address stands nowhere"
    assert {where for where in found if where[1] != SLUG} == set()
    for name in ("pyproject.toml", "README.md", "CITATION.cff", "_config.yml"):
        assert REPOSITORY in text_files()[name], name


def test_make_repository_changes_every_address(tmp_path):
    for name, text in text_files().items():
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf8")
    url = "https://github.com/a-school/its-own.copy"
    subprocess.run(["make", "repository", f"URL={url}"], cwd=tmp_path, check=True, capture_output=True)
    assert yaml.safe_load((tmp_path / "_config.yml").read_text())["repository"]["url"] == url
    left = [name for name in text_files() if SLUG in (tmp_path / name).read_text(encoding="utf8")]
    assert left == []
    assert json.loads((tmp_path / "book" / "index.ipynb").read_text(encoding="utf8"))["cells"]


@each_notebook
def test_notebook_is_stripped(path):
    """No traces of a run but the outputs of cells tagged ``keep_output``. ``make tidy`` cures it."""
    notebook = json.loads(path.read_text(encoding="utf8"))
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert "execution" not in cell["metadata"], cell["source"]
        if "keep_output" in tags(cell):
            assert "nbval-check-output" in tags(cell), f"kept but never compared: {cell['source']}"
            assert cell["outputs"], f"nothing is kept: {cell['source']}"
            assert cell["execution_count"] == 1, "nbval compares no output of a cell that bears no count"
        else:
            assert cell["outputs"] == [], f"output is stored: {cell['source']}"
            assert cell["execution_count"] is None, cell["source"]


@each_notebook
def test_notebook_has_cell_ids_and_a_plain_kernel(path):
    notebook = json.loads(path.read_text(encoding="utf8"))
    identities = [cell.get("id") for cell in notebook["cells"]]
    assert None not in identities
    assert len(set(identities)) == len(identities)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


def meaning(cell: str) -> tuple[list[str], list[str]]:
    """A cell without its layout: its Python statements, and its ``%`` commands word by word."""
    lines = cell.splitlines()
    commands = [line.strip() for line in lines if line.strip().startswith("%")]
    python = [re.sub(r"^(\s*)%.*", r"\1pass", line) for line in lines]
    return [ast.dump(statement) for statement in ast.parse("\n".join(python)).body], commands


@each_notebook
def test_notebook_starts_with_the_setup_cell(path):
    """Folded away, with the imports behind it or alone; left out where a page shows no code at all."""
    cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    first, text = code[0], "\n".join("".join(cell["source"]) for cell in code)
    [package] = {EXTRAS[name] for name in EXTRAS if name in text} or {"attention-course"}
    setup = SETUP.format(package=package, repository=REPOSITORY)
    (statements, commands), (expected, installs) = meaning("".join(first["source"])), meaning(setup)
    assert (statements[: len(expected)], commands) == (expected, installs)
    assert {"hide-input", "remove-input"} & set(tags(first))


def test_contents_and_chapters_agree():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    listed = list(executed.listed(contents))
    assert len(set(listed)) == len(listed)
    pages = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in project_files()
        if path.suffix in {".ipynb", ".md"}
        and path.relative_to(ROOT).parts[0] == "book"
        and not path.relative_to(ROOT).parts[1].startswith("_")
    }
    assert set(listed) == pages


def test_keys_of_the_bibliography_are_unique_and_every_citation_has_one():
    keys = re.findall(r"^@\w+\{([^,]+),", (ROOT / "book" / "references.bib").read_text(encoding="utf8"), re.M)
    assert len(set(keys)) == len(keys)
    cited = set()
    for path in (ROOT / "book").rglob("*"):
        if path.suffix in {".md", ".ipynb"} and ".ipynb_checkpoints" not in path.parts:
            for group in re.findall(r"\{cite:\w+\}`([^`]+)`", path.read_text(encoding="utf8")):
                cited.update(key.strip() for key in group.split(","))
    assert cited - set(keys) == set()


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf8").splitlines()
    lines = [line.split("#")[0].strip() for line in lines]
    found = {}
    for line in filter(None, lines):
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"not an exact pin: {line}"
        found[canonicalize_name(requirement.name)] = specifier.version
    return found


def floors() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    extras = project["optional-dependencies"]
    pinned = [line for name, lines in extras.items() if name != "triton" for line in lines]
    lines = project["dependencies"] + pinned
    return [Requirement(line) for line in lines if not line.startswith(project["name"])]


def test_pins_satisfy_the_floors():
    for requirement in floors():
        name = canonicalize_name(requirement.name)
        assert name in pins(), f"{requirement} is not pinned in requirements.txt"
        assert requirement.specifier.contains(pins()[name]), requirement


def test_the_package_asks_for_floors_only():
    for requirement in floors():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators <= {">=", "<"}, requirement


def test_this_environment_is_the_pinned_one():
    """Otherwise a green run says nothing about the pins. ``make environment`` cures it."""
    wrong = {
        name: installed
        for name, version in pins().items()
        if (installed := metadata.version(name).split("+")[0]) != version
    }
    assert wrong == {}


def test_no_paths_of_a_machine():
    """No home, no scratch folder, no address of a registry: the project speaks of itself alone."""
    paths = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|opt|mnt)/\w|[A-Z]:\\\\Users|index-url")
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in text_files().items()
        if name != "tests/test_project.py"
        for number, line in enumerate(text.splitlines(), 1)
        if paths.search(line)
    ]
    assert found == []


def test_importing_the_package_stays_light():
    heavy = {"matplotlib", "IPython", "tqdm", "nbformat", "nbclient", "networkx", "ipywidgets"}
    heavy |= {"keras", "transformers", "sklearn", "gymnasium", "torch_geometric"}
    code = (
        "import sys, torch, jaxtyping; before = set(sys.modules); import attention_course; "
        f"print(sorted({heavy!r} & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_of_the_package_are_loaded_when_they_are_asked_for():
    import attention_course
    from attention_course import attention, checks
    from attention_course.checks.engine import session

    assert all(hasattr(attention_course, name) for name in attention_course.__all__)
    assert all(hasattr(checks, name) for name in checks.__all__)
    assert attention_course.attend is attention.attend and checks.check is session.check
    for package in (attention_course, checks):
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
            package.nothing  # noqa: B018
    code = "import sys, attention_course.checks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Which room may import which: CONTRIBUTING.md, "The rooms" ---------------------------------------

PACKAGE = ROOT / "attention_course"
GROUND = {"inputs", "device"}
SUMS = {"masks", "scores", "kernels"}
PARTS = {*SUMS, "positions", "linear", "attention", "local", "heads"}
LIBRARY = {*GROUND, *PARTS, "seq2seq", "transformer", "interop", "decoding", "ring", "palette"}
CHAPTERS = {path.parent.name for path in PACKAGE.glob("checks/*/__init__.py")} - {"engine"}

#: room -> what it may import of the project beside itself
MAY_IMPORT = {
    "": {"attention", "heads", "device"},  # the five names used most
    "inputs": set(),
    "device": set(),
    "palette": set(),
    "masks": GROUND,
    "positions": GROUND,
    "kernels": {*GROUND, "masks"},
    "linear": {*GROUND, "masks"},
    "scores": {*GROUND, "kernels"},
    "ring": {*GROUND, "kernels"},
    "attention": {*GROUND, *SUMS},
    "local": {*GROUND, *SUMS, "attention"},
    "heads": {*GROUND, *SUMS, "attention"},
    "seq2seq": {*GROUND, *PARTS},
    "transformer": {*GROUND, *PARTS, "seq2seq"},
    "interop": {*GROUND, *PARTS, "transformer"},
    "decoding": {*GROUND, *PARTS, "transformer"},
    "beyond": LIBRARY,
    "inside": {*LIBRARY, "lab.page"},  # whose style its pictures have
    "explorables": {*LIBRARY, "lab.data"},  # which holds the running example
    "lab": set(),
    "lab.data": {*LIBRARY, "beyond"},
    "lab.measure": {*LIBRARY, "lab.data"},
    "lab.train": {*LIBRARY, "lab.data", "lab.measure"},
    "lab.page": {*LIBRARY, "lab.measure"},
    "lab.experiments": {*LIBRARY, "inside", "beyond", "lab.data", "lab.measure", "lab.train", "lab.page"},
    "checks": {"checks.engine"},
    "checks.engine": set(),
    **{f"checks.{name}": {*LIBRARY, "beyond", "checks.engine", "lab.data"} for name in CHAPTERS},
    "grading": {"checks", "checks.engine", "palette"},
    "cli": {"checks", "checks.engine", "grading"},
}

#: what may be loaded where a stranger's code runs: nothing that holds an answer
WITH_A_STRANGER = {
    *(f"grading.{name}" for name in ("zygote", "child", "wire", "sandbox", "seccomp")),
    *(f"checks.engine.{name}" for name in ("observe", "exercise", "surroundings", "watch", "words")),
    # how an answer is used
    *(f"checks.engine.{name}" for name in ("asks", "use", "module", "training", "effort", "language")),
}


def modules_of_the_package() -> dict[str, Path]:
    """Every module by its name behind ``attention_course.``; the package itself is ``""``."""
    return {
        ".".join(part for part in path.relative_to(PACKAGE).with_suffix("").parts if part != "__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


MODULES = modules_of_the_package()


def imported(module: str) -> set[str]:
    """The modules of the package that ``module`` imports, at its top or within a function."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: an import that does not say from where"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(
                name if name.removeprefix("attention_course.") in MODULES else node.module for name in whole
            )
    ours = (name for name in found if name.partition(".")[0] == "attention_course")
    return {name.removeprefix("attention_course").removeprefix(".") for name in ours}


def room(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] in {"lab", "checks"} else parts[:1])


def test_every_room_has_a_rule():
    assert {room(module) for module in MODULES} == set(MAY_IMPORT)


def test_imports_point_one_way():
    assert [
        f"{module} imports {other or 'attention_course'}"
        for module in MODULES
        for other in sorted(imported(module))
        if room(other) not in {room(module), *MAY_IMPORT[room(module)]}
    ] == []


def test_only_a_widget_imports_an_experiment():
    """What a second experiment needs moves into one of the laboratory's other rooms."""
    assert [
        f"{module} imports {other}"
        for module in MODULES
        for other in sorted(imported(module))
        if room(other) == "lab.experiments" and module != f"{other}_widget"
    ] == []


def test_a_strangers_process_loads_no_answer():
    """Followed through what they import: the packages between are made without their ``__init__``."""
    reached, new = set(), {"grading.zygote", "grading.child", "grading.wire", "grading.sandbox"}
    while new:
        reached |= new
        new = {other for module in new for other in imported(module)} - reached
    assert reached - WITH_A_STRANGER == set()


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["codespell"]],
    ids=["ruff check", "ruff format", "codespell"],
)
def test_code_and_text_are_tidy(command):
    """``make tidy`` cures what can be cured by itself."""
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
