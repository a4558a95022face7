"""What goes between the grader and a notebook's process: values only, never objects.

A frame is a header in JSON and, behind it, the bytes of the tensors the header names. Nothing here
can make the reader run code: no pickle, no torch.load, no type is looked up by name but a dtype from
a fixed list. Reading is bounded in bytes, in number, in depth and in time: tightly what a stranger's
process writes (:data:`FROM_NOTEBOOK`), widely what the grader writes (:data:`FROM_GRADER`).
"""

import json
import math
import select
import socket
import struct
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.observe import is_plain

#: one frame: what the largest case of any exercise needs, many times over
FRAME_BYTES = 64 << 20


@dataclass(frozen=True)
class Bounds:
    """The most that one frame may hold: bytes of tensors, bytes of text, tensors."""

    bytes: int
    header: int
    tensors: int


#: an answer to one call
FROM_NOTEBOOK = Bounds(FRAME_BYTES, 1 << 20, 64)
#: the inputs of all cases of a chapter at once, of which there may be hundreds
FROM_GRADER = Bounds(FRAME_BYTES, 16 << 20, 10_000)

_LENGTHS = struct.Struct("!IQ")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class WireError(Exception):
    """What arrived is no frame."""


class WireClosed(WireError):
    """Nobody is at the other end any more."""


class WireTimeout(WireError):
    """Nothing, or not all of it, arrived in time."""


class TooLarge(ValueError):
    """A value is larger than a frame may be."""


# Frames ---------------------------------------------------------------------------------------


def pack(header: dict[str, Any], tensors: list[Tensor], bounds: Bounds = FROM_NOTEBOOK) -> bytes:
    """One frame; ``header`` is JSON and refers to ``tensors`` by their index.

    Raises:
        TooLarge: it would hold more than ``bounds`` allow.
    """
    if len(tensors) > bounds.tensors:
        raise TooLarge(f"{len(tensors):,} tensors")
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > bounds.bytes:  # known before a byte is copied: an expanded tensor may claim terabytes
        raise TooLarge(f"{size / 2**20:,.0f} MiB")
    described = [{"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)} for tensor in tensors]
    text = json.dumps({**header, "tensors": described}).encode()
    if len(text) > bounds.header:
        raise TooLarge(f"{len(text) / 2**20:,.0f} MiB of text")
    payload = b"".join(map(_bytes, tensors))
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def send(
    channel: socket.socket,
    header: dict[str, Any],
    tensors: list[Tensor],
    seconds: float,
    bounds: Bounds = FROM_NOTEBOOK,
) -> None:
    """Write one frame within ``bounds``.

    Raises:
        TooLarge, WireClosed, WireTimeout.
    """
    view, deadline = memoryview(pack(header, tensors, bounds)), monotonic() + seconds
    while view:
        _wait(channel, deadline, write=True)
        try:
            view = view[channel.send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            continue
        except OSError:
            raise WireClosed("closed while writing") from None


def receive(
    channel: socket.socket, seconds: float, idle=None, bounds: Bounds = FROM_NOTEBOOK
) -> tuple[dict[str, Any], list[Tensor]]:
    """Read one frame; ``idle`` is called now and then while nothing arrives.

    Raises:
        WireError: what came is no frame, or holds more than ``bounds`` allow. WireClosed, WireTimeout.
    """
    deadline = monotonic() + seconds
    header_size, size = _LENGTHS.unpack(_read(channel, _LENGTHS.size, deadline, idle))
    if header_size > bounds.header or size > bounds.bytes:
        raise WireError(f"a frame of {header_size} + {size} bytes")
    header = _header(_read(channel, header_size, deadline, idle))
    described = header.get("tensors")
    if not isinstance(described, list) or len(described) > bounds.tensors:
        raise WireError("no list of tensors, or a longer one than may be")
    return header, _tensors(described, _read(channel, size, deadline, idle))


def _read(channel: socket.socket, size: int, deadline: float, idle) -> bytearray:
    data = bytearray()
    while len(data) < size:
        _wait(channel, deadline, idle=idle)
        try:
            piece = channel.recv(min(size - len(data), 1 << 20), socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except OSError:
            piece = b""
        if not piece:
            raise WireClosed("closed while reading")
        data += piece
        if idle:  # a trickle must not keep anybody from looking
            idle()
    return data


def _wait(channel: socket.socket, deadline: float, *, write: bool = False, idle=None) -> None:
    while True:
        left = deadline - monotonic()
        if left <= 0:
            raise WireTimeout("out of time")
        # poll, not select: a process with many open files has descriptors that select refuses
        poll = select.poll()
        poll.register(channel, select.POLLOUT if write else select.POLLIN)
        if poll.poll(1000 * min(left, 0.05)):
            return
        if idle:
            idle()


def _header(data: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header is no JSON: {type(error).__name__}") from None
    if not isinstance(header, dict):
        raise WireError("the header is no JSON object")
    return header


def _tensors(described: list, data: bytearray) -> list[Tensor]:
    """The tensors that lie in ``data`` one behind the other, exactly as long as it is."""
    tensors, start = [], 0
    for description in described:
        description = description if isinstance(description, dict) else {}
        dtype, shape = description.get("dtype"), description.get("shape")
        if not isinstance(dtype, str) or dtype not in _DTYPES or not _is_shape(shape):
            raise WireError("a tensor without dtype or shape")
        dtype, count = _DTYPES[dtype], math.prod(shape)
        end = start + count * dtype.itemsize
        if end > len(data):
            raise WireError("a tensor longer than its bytes")
        # a copy of its own: nothing later points into the frame
        flat = torch.frombuffer(data[start:end], dtype=dtype) if count else torch.empty(0, dtype=dtype)
        tensors.append(flat.reshape(shape))
        start = end
    if start != len(data):
        raise WireError("bytes that belong to no tensor")
    return tensors


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= 16
        and all(type(size) is int and 0 <= size <= FRAME_BYTES for size in shape)
        and math.prod(size or 1 for size in shape) <= FRAME_BYTES
    )


# Values ---------------------------------------------------------------------------------------

#: a tuple longer or deeper than this is no answer to any exercise
_MEMBERS, _DEPTH = 16, 3


def encode(value: Any, tensors: list[Tensor], depth: int = 0) -> Any:
    """``value`` in JSON; plain tensors are appended to ``tensors``. What is no value is described."""
    if value is None:
        return None
    kind = type(value)
    if is_plain(value) and value.dtype in _NAMES and value.dim() <= 16:
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if issubclass(kind, tuple) and tuple.__len__(value) <= _MEMBERS and depth < _DEPTH:  # a NamedTuple, too
        return {"tuple": [encode(member, tensors, depth + 1) for member in tuple.__iter__(value)]}
    if issubclass(kind, (tuple, list)):
        return {"members": len(value), "list": issubclass(kind, list)}
    described: dict[str, Any] = {"kind": kind.__name__[:60], "module": str(kind.__module__)[:60]}
    if issubclass(kind, Tensor):
        described["tensor"] = True
    if kind is Tensor:  # a subclass may answer anything, or not at all
        described["layout"] = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        described["device"] = value.device.type
    return described


def decode(value: Any, tensors: list[Tensor], depth: int = 0) -> Any:
    """The value that ``encode`` described, or a stand-in of the same kind that can do nothing.

    Raises:
        WireError: it is none of the things that ``encode`` writes.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WireError("no value")
    if "tensor" in value and type(value["tensor"]) is int:
        if not 0 <= value["tensor"] < len(tensors):
            raise WireError("a tensor that did not come along")
        return tensors[value["tensor"]]
    if isinstance(value.get("tuple"), list):
        if len(value["tuple"]) > _MEMBERS or depth >= _DEPTH:
            raise WireError("a tuple that is too long or too deep")
        return tuple(decode(member, tensors, depth + 1) for member in value["tuple"])
    if type(value.get("members")) is int:
        # only its length is ever told
        members = [None] * min(max(value["members"], 0), 1000)
        return members if value.get("list") else tuple(members)
    return _stand_in(value)


def _stand_in(value: dict) -> Any:
    kind, module = (_name(value.get(key)) for key in ("kind", "module"))
    if not value.get("tensor"):
        return type(kind, (), {"__module__": module})()
    layout = value.get("layout")
    if kind in ("Tensor", "Parameter") and value.get("device") not in ("cpu", None):
        return torch.empty(0, device="meta")
    if kind == "Tensor" and layout == "nested":
        return torch.nested.nested_tensor([torch.zeros(1)])
    if kind == "Tensor" and layout != "strided":
        return torch.zeros(1).to_sparse()
    if kind == "Tensor":  # of a dtype that cannot travel
        kind = "Tensor of another dtype"
    return torch.zeros(0).as_subclass(type(kind, (Tensor,), {"__module__": module}))


def _name(text: Any) -> str:
    text = text if isinstance(text, str) else "object"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60]) or "object"
