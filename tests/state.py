"""Print a digest of everything the tests' verdict depends on, for ``make test`` to compare.

That is every file of the project but what is built, and what decides whether a test is skipped:
Chromium, bubblewrap, a GPU, and ``CI``.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

from browser import find_chromium

ROOT = Path(__file__).resolve().parent.parent
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
    machine = (find_chromium(), shutil.which("nvidia-smi"), shutil.which("bwrap"), os.environ.get("CI"))
    result.update(repr(machine).encode())
    return result.hexdigest()


if __name__ == "__main__":
    print(state())
