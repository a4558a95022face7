"""Seconds that a call takes on the processor."""

import time
from collections.abc import Callable
from typing import Any


def seconds(function: Callable[[], Any], *, repeats: int = 3) -> float:
    """Return the processor seconds of the quickest of ``repeats`` calls, after one to warm up.

    Processor seconds do not count the time a busy machine gave to others.
    """
    function()
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        taken.append(time.process_time() - began)
    return min(taken)
