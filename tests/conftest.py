"""What every test gets: shapes checked at run time, a seed, few threads, GPU tests where there is one."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis.database import DirectoryBasedExampleDatabase
from jaxtyping import config, install_import_hook

pytest_plugins = ["browser"]

# Before anything imports the package: from here on every annotation in it is checked at each call.
install_import_hook("attention_course", "beartype.beartype")

# Draws differ from run to run on a reader's machine, where failing ones are kept; under CI they never do.
if os.environ.get("CI") == "true":
    hypothesis.settings.register_profile("course", deadline=None, derandomize=True)
else:
    examples = Path(__file__).resolve().parent.parent / "_build" / ".hypothesis"
    hypothesis.settings.register_profile(
        "course", deadline=None, database=DirectoryBasedExampleDatabase(examples)
    )
hypothesis.settings.load_profile("course")


def pytest_configure() -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device: run this on a machine with an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same random numbers, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked():
    """Switch jaxtyping's checks off: bad input then reaches the package's own messages."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture
def compiler():
    """A fresh torch.compile: what other tests compiled in this process counts against a limit."""
    torch._dynamo.reset()
