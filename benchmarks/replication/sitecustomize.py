"""Move every seed: with this folder on PYTHONPATH, each process adds ATTENTION_COURSE_SEED_OFFSET.

Python imports a module of this name at its start, so kernels and the processes they spawn do alike.
torch and numpy are patched when they are imported, not before: a process that needs neither stays light.
"""

import importlib.abc
import importlib.machinery
import os
import random
import sys

OFFSET = int(os.environ.get("ATTENTION_COURSE_SEED_OFFSET", "0"))


def moved(seed):
    """Return a seed moved by the offset; what is no whole number stays."""
    return seed + OFFSET if type(seed) is int else seed


def move_random() -> None:
    seed = random.Random.seed

    class Random(random.Random):
        def seed(self, a=None, version=2):
            return seed(self, moved(a), version)

    Random.__module__, Random.__qualname__ = "random", "Random"
    random.Random = Random
    random.seed = Random().seed  # the module's functions draw from one hidden generator
    for name in (
        "random",
        "choice",
        "choices",
        "randint",
        "randrange",
        "sample",
        "shuffle",
        "uniform",
        "gauss",
    ):
        setattr(random, name, getattr(random.seed.__self__, name))


def move_numpy(numpy) -> None:
    default_rng, seed = numpy.random.default_rng, numpy.random.seed
    numpy.random.default_rng = lambda *given, **named: default_rng(*map(moved, given), **named)
    numpy.random.seed = lambda given=None: seed(moved(given))


def move_torch(torch) -> None:
    original, seed_all = torch.Generator, torch.manual_seed

    class Generator(original):
        def manual_seed(self, seed):
            return super().manual_seed(moved(seed))

    torch.Generator = Generator
    torch.manual_seed = torch.random.manual_seed = lambda seed: seed_all(moved(seed))


class Hook(importlib.abc.MetaPathFinder):
    """Patches a module as soon as it was executed."""

    def __init__(self, patches) -> None:
        self.patches = patches

    def find_spec(self, name, path=None, target=None):
        if name not in self.patches:
            return None
        patch = self.patches.pop(name)  # from here on the other finders are asked
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


if OFFSET:
    move_random()
    sys.meta_path.insert(0, Hook({"torch": move_torch, "numpy": move_numpy}))
