"""Says what is kept in memory, and why: results that are never evicted."""

from __future__ import annotations

import os
import sys
from collections import Counter
from types import FrameType
from typing import Any, NamedTuple

import torch

from dtr_alloc import costs
from dtr_alloc.core import ffi, lib
from dtr_alloc.torch.op_rules import IMPURE, NAMESPACES

_MOST_PLACES = 65536
_LIBRARIES = tuple(
    os.path.dirname(os.path.dirname(path)) + os.sep for path in (torch.__file__ or "", __file__)
)
"""Folders whose code is none of the job's."""


class Kept(NamedTuple):
    """Storages that are kept for one reason.

    Attributes:
        size_bytes: all of them.
        operator: what made them, such as ``aten::empty.default``; "" where nothing that was seen
            did.
        why: in words.
        line: of the job, where their address was asked for, such as ``model.py:81``; "" where that
            is not the reason.
    """

    size_bytes: int
    operator: str
    why: str
    line: str = ""


class Places:
    """The lines of the job that asked for addresses, by the storage's own address."""

    def __init__(self) -> None:
        self._by_handle: dict[int, str] = {}

    def note(self, handle: int) -> None:
        """The job asks for the address of a storage, given by its own, just now."""
        if len(self._by_handle) >= _MOST_PLACES:
            self._by_handle.pop(next(iter(self._by_handle)), None)
        self._by_handle[handle] = _line()

    def of(self, handle: int) -> str:
        return self._by_handle.get(handle, "")


def _line() -> str:
    """The innermost line that is neither ours nor PyTorch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def kept(runtime: Any) -> list[Kept]:
    """What is kept, the largest first. See dtr_alloc.kept()."""
    found, capacity = ffi.NULL, 0
    while (count := lib.dtr_engine_holders(runtime.engine, found, capacity)) > capacity:
        found, capacity = ffi.new("dtr_holder[]", count), count
    sizes: Counter[tuple[str, str, str]] = Counter()
    for holder in (found[i] for i in range(count)):
        operator = costs.operator_name(holder.op_key) if holder.op_key else ""
        line = ""
        if holder.kind == lib.DTR_HELD_ADDRESS:
            why = "its address was asked for"
            line = runtime.places.of(int(ffi.cast("intptr_t", holder.handle)))
        elif holder.kind == lib.DTR_HELD_PARAMETER:
            operator, why = "", "a parameter"
        elif holder.kind == lib.DTR_HELD_CONSTANT:
            why = _why_constant(operator)
        elif holder.kind == lib.DTR_HELD_PINNED:
            why = "pinned"
        else:
            continue
        sizes[operator, why, line] += holder.size_bytes
    return [Kept(size_bytes, *key) for key, size_bytes in sizes.most_common()]


def _why_constant(operator: str) -> str:
    namespace, _, rest = operator.partition("::")
    name = rest.partition(".")[0]
    if not operator:
        return "no operator that was seen made it: data, buffers, what was there before"
    if namespace not in NAMESPACES:
        return "not trusted (dtr_alloc.trust)"
    if name in IMPURE:
        return f"not repeated: {IMPURE[name]}"
    return "what it was made from cannot be kept or computed again"
