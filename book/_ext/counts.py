"""Give every code cell the run count that the tests expect.

nbval refuses a stored output in a cell without a run count, and nbstripout
strips all counts or none. So ``make tidy`` calls this after it: a cell whose
output is kept counts 1, and every other none.
"""

import json
import sys
from pathlib import Path


def counted(notebook: dict) -> dict:
    """Return ``notebook`` with counts on cells that store an output only."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = 1 if cell["outputs"] else None
            for output in cell["outputs"]:
                if "execution_count" in output:
                    output["execution_count"] = None
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        notebook = counted(json.loads(path.read_text(encoding="utf8")))
        path.write_text(
            json.dumps(notebook, indent=1, ensure_ascii=False) + "\n",
            encoding="utf8",
        )
