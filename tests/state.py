"""Print a digest of everything the tests' verdict depends on, for ``make test`` to compare.

That is every file of the project but what is built, the executions of the notebooks, and what decides
whether a test is skipped or a sum comes out otherwise: Chromium, bubblewrap, a GPU, Triton, switches.
"""

import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from browser import find_chromium

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import executed  # noqa: E402

BUILT = {".git", ".venv", "venv", "_build", "node_modules", "__pycache__", ".ipynb_checkpoints"}
CACHES = {".pytest_cache", ".ruff_cache", ".hypothesis", "attention_course.egg-info"}


def state() -> str:
    result = hashlib.sha256(sys.version.encode())
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(set(folders) - BUILT - CACHES)
        for name in sorted(files):
            path = Path(folder, name)
            if not path.is_symlink():
                result.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
                result.update(path.read_bytes())
    programs = (find_chromium(), shutil.which("nvidia-smi"), shutil.which("bwrap"))
    switches = [os.environ.get(name) for name in ("CI", *executed.lab("measure/machine").MOVES)]
    triton = importlib.util.find_spec("triton") is not None
    # when each notebook was executed last: its claims are another run's then
    runs = sorted(
        (str(path.relative_to(ROOT)), path.stat().st_mtime_ns)
        for path in (ROOT / executed.CACHES).glob("*/executed/*/*.ipynb")
    )
    result.update(repr((programs, switches, triton, runs)).encode())
    return result.hexdigest()


if __name__ == "__main__":
    print(state())
