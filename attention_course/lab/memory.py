"""How many bytes of tensors are alive at a time: counted, so the same on every machine."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside ``with LiveBytes() as live:`` counts the bytes of all tensors that operations return.

    ``live.now`` is what is alive, ``live.peak`` the most there ever was. Tensors that share their
    memory count once. What an operation takes and gives back within itself is not seen, nor is what
    the processor's allocator keeps for later: the process as a whole is larger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self._count(one.untyped_storage())
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
