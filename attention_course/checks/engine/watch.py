"""Notice which torch functions a learner's function calls, by name and by what torch then computes.

Names alone have back doors: ``torch._softmax``, ``torch.ops``, a scripted function, a switch that turns
the watch for names off. All of them end in the same operations, and these are watched as well. What has
no operation of its own, such as ``cosine_similarity``, is known by its name only.

Both watches are torch's modes, and a mode belongs to one thread: what a function has computed in another
thread, or in another process, is not seen. The grader flags the words by which one is started.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

#: function -> the operations that nothing but it, or a function that stands on it, ends in
OPERATIONS = {
    "softmax": ("_softmax", "_safe_softmax", "_masked_softmax", "_sparse_softmax"),
    "log_softmax": ("_log_softmax",),
    "logsumexp": ("logsumexp",),
    # torch's own attention is a kernel, or steps of which one is a softmax that no other function takes
    "scaled_dot_product_attention": (
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
        "_safe_softmax",
    ),
    "multi_head_attention_forward": ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    "nll_loss": ("nll_loss_forward", "nll_loss2d_forward"),
    "layer_norm": ("native_layer_norm",),
    "native_layer_norm": ("native_layer_norm",),
    "group_norm": ("native_group_norm",),
    "batch_norm": (
        "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "cudnn_batch_norm",
        "miopen_batch_norm",
    ),
}  # fmt: skip
#: function -> others that compute all of it: on the way, or as one of their cases
_IMPLIED = {
    "softmax": ("softmin", "gumbel_softmax", "scaled_dot_product_attention"),
    "scaled_dot_product_attention": ("multi_head_attention_forward",),
    "layer_norm": ("native_layer_norm", "group_norm", "batch_norm"),
    "native_layer_norm": ("layer_norm",),
    "batch_norm": ("instance_norm",),
}
#: these start torch's automatic differentiation, in which operations run as parts of a task
_DIFFERENTIATION = ("grad", "backward")


def closed(names: Iterable[str]) -> tuple[str, ...]:
    """The ``names``, and those of all torch functions that compute one of them."""
    found = list(names)
    for name in found:
        found += [other for other in _IMPLIED.get(name, ()) if other not in found]
    return tuple(found)


class Watch:
    """Inside: notes which of the named torch functions, or of those that compute one of them, are called;
    ``seen`` is what was noted."""

    def __init__(self, names: Sequence[str]):
        names = closed(names)
        operations = _OperationsOfCompiled if "torch._dynamo" in sys.modules else _Operations
        self._modes = _Names(names), operations(names)
        self._stack = ExitStack()

    def __enter__(self) -> "Watch":
        for mode in self._modes:
            self._stack.enter_context(mode)
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)

    @property
    def seen(self) -> frozenset[str]:
        """The names as they were called; those that an operation stands for, where no name was seen."""
        names, operations = self._modes
        return frozenset(names.seen or operations.seen)


class _Names(TorchFunctionMode):
    def __init__(self, names: Sequence[str]):
        super().__init__()
        self.names, self.seen = frozenset(names), set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = plain_name(getattr(func, "__name__", ""))
        if name in self.names:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, names: Sequence[str]):
        super().__init__()
        # of several that end in one operation, the first is the one that was named
        self.meant = {operation: name for name in reversed(names) for operation in OPERATIONS.get(name, ())}
        self.differentiation = [name for name in _DIFFERENTIATION if name in names]
        self.bodies = {code: name for name in names if (code := _body(name))}
        self.seen = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch's compiler leaves the watch alone. It would be imported for that, which takes a
        second in every process that checks."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operation = getattr(func, "__name__", "").partition(".")[0]
        if operation in self.meant:
            self.seen.add(self.meant[operation])
        if self.differentiation and torch._C._current_graph_task_id() != -1:
            self.seen.add(self.differentiation[0])
        frame = sys._getframe(1) if self.bodies else None
        while frame:  # torch's own Python below which this operation runs
            if frame.f_code in self.bodies:
                self.seen.add(self.bodies[frame.f_code])
            frame = frame.f_back
        return func(*args, **(kwargs or {}))


class _OperationsOfCompiled(_Operations):
    """The same where the compiler is there already: it must not compile the watch along."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return super().__torch_dispatch__(func, types, args, kwargs)


def plain_name(name: str) -> str:
    """``softmax`` for ``_softmax``, ``special_softmax`` and ``softmax.int``."""
    return name.partition(".")[0].lstrip("_").removeprefix("special_")


def _body(name: str):
    """The code of a torch function that is written in Python, None for any other."""
    return getattr(getattr(torch.nn.functional, name, None), "__code__", None)
