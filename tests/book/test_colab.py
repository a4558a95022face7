"""The imitation of Colab in colab.py: what it installs, what git finds, what counts as an error."""

import json
import subprocess
import sys

import colab
import pytest
from packaging.requirements import Requirement

from attention_course.lab.page.claims import MIME

PYPROJECT = """
[project]
name = "course"
dependencies = ["torch>=2.5", "numpy>=1.26"]
[project.optional-dependencies]
book = ["keras>=3.10", "sphinx>=7"]
huggingface = ["transformers>=4.57,<6"]
test = ["course[book]", "pytest>=8"]
"""


def test_colab_has_the_dependencies_and_what_single_pages_use():
    found = {str(requirement) for requirement in colab.requirements(PYPROJECT)}
    assert found == {"torch>=2.5", "numpy>=1.26", "ipywidgets>=7.7.1", "keras>=3.10", "transformers<6,>=4.57"}


def test_every_floor_of_this_project_is_found():
    requirements = colab.requirements((colab.ROOT / "pyproject.toml").read_text(encoding="utf8"))
    names = [requirement.name for requirement in requirements]
    assert {"torch", "numpy", "jaxtyping", "nbclient"} | colab.EXTRAS <= set(names)
    assert len(names) == len(set(names))
    assert all(requirement.specifier.contains(colab.floor(requirement)) for requirement in requirements)


@pytest.mark.parametrize(
    ("requirement", "versions", "want"),
    [
        ("numpy>=1.26", ["2.0.0", "1.26.4", "1.26.0", "1.25.2"], "1.26.0"),
        ("torch>=2.5", ["2.10.0", "2.9.1"], "2.9.1"),  # not in the order of letters
        ("transformers>=4.57,<6", ["6.0.0", "5.0.0", "4.57.1", "4.56.0"], "4.57.1"),
        ("tqdm>=4.66", ["4.67.0", "4.66.0rc1"], "4.67.0"),
    ],
)
def test_the_lowest_version_that_the_registry_has(requirement, versions, want):
    assert colab.lowest(Requirement(requirement), versions) == want


def test_a_floor_above_everything_that_the_registry_has():
    with pytest.raises(ValueError, match=r"torch>=2\.5 has no version"):
        colab.lowest(Requirement("torch>=2.5"), ["2.4.1", "2.3.0"])


def test_git_finds_the_copy_behind_the_address(tmp_path):
    """The set-up cells' very address; what git ignores is not in the copy."""
    copy = colab.snapshot(tmp_path / "copy")
    environ = colab.behind(colab.address(), copy)
    clone = tmp_path / "clone"
    command = ["git", "clone", "--quiet", "--depth", "1", colab.address(), str(clone)]
    subprocess.run(command, env={"PATH": str(colab.programs(tmp_path / "programs")), **environ}, check=True)
    assert (clone / "pyproject.toml").read_bytes() == (colab.ROOT / "pyproject.toml").read_bytes()
    assert (clone / "benchmarks" / "results").is_dir() and not (clone / "_build").exists()


def test_programs_that_colab_lacks_are_not_found(tmp_path, monkeypatch):
    for number, name in enumerate(("git", "bwrap", "git")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text(str(number))
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / str(number)) for number in range(3)))
    folder = colab.programs(tmp_path / "programs")
    assert [path.name for path in folder.iterdir()] == ["git"]
    assert (folder / "git").read_text() == "0"  # the first on the path, as a shell would have it


def test_the_fake_module_stands_beside_other_packages_of_google(tmp_path):
    (tmp_path / "google" / "protobuf").mkdir(parents=True)
    colab.fake_colab(tmp_path)
    code = "import google.colab, google.protobuf, sys; sys.exit('google.colab' not in sys.modules)"
    subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(tmp_path)}, check=True)


def test_the_copies_and_the_solutions_run():
    texts = colab.notebooks()
    kinds = ("book/", "exercises/release/", "exercises/source/")
    counts = [sum(name.startswith(kind) for name in texts) for kind in kinds]
    chapters = len(list((colab.ROOT / "exercises" / "source").iterdir()))
    assert counts[0] > chapters and counts[1] == counts[2] == chapters > 10 and sum(counts) == len(texts)
    for text in texts.values():
        [cell] = json.loads(colab.setup_alone(text))["cells"]
        assert "%pip install" in "".join(cell["source"])


#: raises what a starter may, raises what nobody may, warns, claims
OUTPUTS = [
    {"output_type": "error", "ename": "NotImplementedError", "evalue": "", "traceback": []},
    {"output_type": "error", "ename": "TypeError", "evalue": "no number", "traceback": []},
    {"output_type": "stream", "name": "stderr", "text": ["it is\n", "old\n"]},
    {
        "output_type": "display_data",
        "data": {
            MIME: [
                {"words": "It learns", "number": 1.0, "held": True},
                {"words": "It copies", "number": 0.123456, "held": False},
                {"words": "It halts", "number": None, "held": False},
            ]
        },
    },
]
EXECUTED = {"cells": [{"cell_type": "markdown"}, *({"outputs": [output]} for output in OUTPUTS)]}


def test_only_what_a_starter_may_raise_is_no_error():
    assert colab.errors(EXECUTED) == ["cell 2: NotImplementedError: ", "cell 3: TypeError: no number"]
    assert colab.errors(EXECUTED, colab.UNFINISHED) == ["cell 3: TypeError: no number"]


def test_claims_and_warnings_are_told():
    assert colab.otherwise(EXECUTED) == ["It copies: 0.123", "It halts: not finite"]
    assert colab.warnings(EXECUTED) == ["cell 4 warns: it is\nold"]


def test_the_table_has_a_column_for_each_environment():
    def column(version, seconds, *errors):
        return colab.Column({"torch": version}, {"book/a.ipynb": colab.Run(seconds, [*errors], [], [])})

    text = colab.report({"lowest": column("2.5.0", 61.2, "cell 1: E: no"), "newest": column("2.15.0", 1.4)})
    rows = [line.split() for line in text.splitlines()]
    assert ["torch", "2.5.0", "2.15.0"] in rows
    assert ["book/a.ipynb", "61", "1"] in rows and ["all", "61", "1"] in rows
    assert "errors: 1\n  lowest, book/a.ipynb: cell 1: E: no" in text
    assert text.endswith("claims that came out otherwise: 0")
