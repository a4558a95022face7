"""Memory in use: bytes of live tensors, counted, and what the system counts for the process."""

import weakref
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside ``with LiveBytes() as live:`` counts the bytes of all tensors that operations return.

    ``live.now`` is what is alive, ``live.peak`` the most there ever was. Tensors that share their
    memory count once, and the count is the same on every machine. What an operation takes and gives
    back within itself is not seen (``cost.peak_bytes`` sees it), nor is what the allocator keeps for
    later: the process as a whole is larger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address not in self._known:
            self._known.add(address)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, address, size)

    def _gone(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def of_process(field: str) -> int:
    """Return a line of /proc/self/status in bytes (Linux only): VmRSS is held now, VmHWM was the most ever.

    Raises a ``ValueError`` for a field that is not there.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")
