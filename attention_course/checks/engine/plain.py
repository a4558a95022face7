"""A plain file of Python in the place of a notebook: it is imported, and what it defines is checked.

What stands below ``if __name__ == "__main__":`` does not run, so a file may train and write there.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

#: the chapter whose exercises a plain file has, and under which names it answers them
CHAPTER = "19_capstone"
ANSWERS = {
    "tokenizer": "Tokenizer", "logits": "GPT", "start": "GPT", "overfit": "GPT", "generate": "GPT",
    "sample": "GPT", "update": "update", "train": "train",
}  # fmt: skip


def cells(path: Path) -> list[str]:
    """The cells of a notebook that checks the file at ``path``: it is imported, then each answer checked."""
    start = (
        "from attention_course.checks import check\n"
        "from attention_course.checks.engine.plain import imported\n"
        f"answers = imported({str(path.resolve())!r})"
    )
    return [start, *(f'check("{CHAPTER}.{name}", answers.{one})' for name, one in ANSWERS.items())]


def imported(path: str) -> ModuleType:
    """The file as a module. Whatever it raises gets out."""
    spec = spec_from_file_location(Path(path).stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
