"""What is kept in memory and never evicted, and why, in words: the engine's answer (dtr/storage.h),
and where that is the rule of an operator, the rule's."""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dtr_alloc.core import check, ffi, lib, listed
from dtr_alloc.torch.op_rules import Rule
from dtr_alloc.torch.pins import parts

_MOST_PLACES = 65536
_LIBRARIES = tuple(
    os.path.dirname(os.path.dirname(path)) + os.sep for path in (torch.__file__ or "", __file__)
)
"""Folders whose code is none of the job's."""


_REASONS = {
    lib.DTR_KEPT_NOT_MET: "no operator that is recorded has made or used it",
    lib.DTR_KEPT_OF_OTHERS: "its memory was not allocated under the budget",
    lib.DTR_KEPT_ESCAPED: "its address was given away",
    lib.DTR_KEPT_PINNED: "it is pinned",
    lib.DTR_KEPT_IN_USE: "an operator or a captured graph is using it",
    lib.DTR_KEPT_UNWRITTEN: "a part of it was written by no operator",
    lib.DTR_KEPT_TINY: "it is tiny",
    lib.DTR_KEPT_FOUND: "its content was there when an operator first used it",
    lib.DTR_KEPT_BY_RULE: "its operator was said not to give the same again",
    lib.DTR_KEPT_BY_CALL: "an argument of its operator, on another device, is too large to be kept",
    lib.DTR_KEPT_OPAQUE: (
        "an argument of its operator is not rebuilt from a storage: sparse, quantized or nested"
    ),
    lib.DTR_KEPT_ELSEWHERE: "its operator overwrites memory on another device",
    lib.DTR_KEPT_OVERWRITTEN: "its operator read and overwrote what cannot be computed again",
    lib.DTR_KEPT_PARAMETER: "it is a parameter",
    lib.DTR_KEPT_STATE: "it is state that its operator updates",
    lib.DTR_KEPT_IN_PARTS: "what its operator wrote of it is no part that is kept account of",
    lib.DTR_KEPT_WATCHED: "its operator reads memory of others that takes too long to compare",
    lib.DTR_KEPT_CAPTURED: "its operator belongs to a captured graph, or reads what one writes",
    lib.DTR_KEPT_SETTLED: (
        "what it was computed from was overwritten, or died and would take as much memory as it"
    ),
    lib.DTR_KEPT_FAILED: "its operator failed",
}


class Kept(NamedTuple):
    """Storages that cannot be evicted, for one reason.

    Attributes:
        size_bytes: all of them.
        operator: what made the content, such as ``aten.add.Tensor``; ``""`` if it is not known.
        why: a clause.
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
    """See dtr_alloc.kept()."""
    rules = {rule.key: rule for rule in runtime.recorder.rules}
    sizes: Counter[tuple[str, str, str]] = Counter()
    for holder in listed("dtr_holder", partial(lib.dtr_engine_holders, runtime.engine)):
        if holder.why_kept not in (lib.DTR_KEPT_NOT, lib.DTR_KEPT_IN_USE, lib.DTR_KEPT_TINY):
            handle = int(ffi.cast("intptr_t", holder.handle))
            sizes[_reason(runtime, handle, holder.why_kept, rules.get(holder.op_key))] += (
                holder.size_bytes
            )
    return [Kept(size_bytes, *reason) for reason, size_bytes in sizes.most_common()]


def why_kept(runtime: Any, tensor: Tensor) -> Kept | None:
    """See dtr_alloc.why_kept()."""
    key = ffi.new("uint64_t *")
    found = list(parts(tensor))
    for part in found:
        handle = runtime.handle(part)
        why = lib.dtr_why_kept(runtime.engine, handle, key) if handle else lib.DTR_KEPT_NOT_MET
        if why < 0:
            check(-why)
        if why == lib.DTR_KEPT_NOT:
            continue
        rule = next((rule for rule in runtime.recorder.rules if rule.key == key[0]), None)
        address = int(ffi.cast("intptr_t", handle)) if handle else 0
        return Kept(part.untyped_storage().nbytes(), *_reason(runtime, address, why, rule))
    return None if found else Kept(0, "", "what it holds does not lie in storages")


def _reason(runtime: Any, handle: int, why: int, rule: Rule | None) -> tuple[str, str, str]:
    """The last three attributes of a Kept."""
    if why == lib.DTR_KEPT_PARAMETER:
        return "", _REASONS[why], ""
    line = runtime.places.of(handle) if why == lib.DTR_KEPT_ESCAPED else ""
    return rule.name if rule else "", _in_words(why, rule), line


def _in_words(why: int, rule: Rule | None) -> str:
    if rule is not None and why == lib.DTR_KEPT_BY_RULE and rule.because:
        return f"its operator {rule.because}"
    if rule is not None and why in (lib.DTR_KEPT_BY_RULE, lib.DTR_KEPT_BY_CALL) and rule.tried:
        return "its operator was tried, and was not found to give the same again"
    return _REASONS[why]
