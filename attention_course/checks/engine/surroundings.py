"""The notebook's settings: a check works whatever they are, and leaves them as they were."""

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside: float32, CPU, gradients on, no warnings shown. Afterwards: all as it was before."""
    numpy = sys.modules.get("numpy")
    dtype, torch_state, python_state = torch.get_default_dtype(), torch.get_rng_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # even where a notebook turned warnings into errors, a warning costs nobody a point
        warnings.simplefilter("ignore")
        stack.enter_context(torch.inference_mode(False))  # turns gradients on as well
        if torch.get_default_device().type != "cpu":  # it makes every torch function slower
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_rng_state(torch_state)
            random.setstate(python_state)
            if numpy_state is not None:
                numpy.random.set_state(numpy_state)
            if cuda_states is not None:
                torch.cuda.set_rng_state_all(cuda_states)
