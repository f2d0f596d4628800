"""What is kept in memory and never evicted, and why, in words: the engine's answer (dtr/storage.h),
and where that is the rule of an operator, the rule's."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from dtr_alloc.core import check, ffi, lib, listed
from dtr_alloc.costs import operator_name
from dtr_alloc.torch.op_rules import Rule
from dtr_alloc.torch.pins import parts

_LIBRARIES = {"dtr_alloc", "numpy", "torch", "triton"}
"""Packages whose code is none of the job's."""

_REASONS = {
    lib.DTR_KEPT_NOT: "",
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
        "an argument of its operator is not rebuilt from storages, as a quantized or nested one"
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
            is not the reason, or not known.
    """

    size_bytes: int
    operator: str
    why: str
    line: str = ""


class Places:
    """The lines of the job that asked for addresses, by numbers from 1 on; 0 is none."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def number_of_line(self) -> int:
        """Of the line that asks just now."""
        return self._numbers.setdefault(_line(), len(self._numbers))

    def line(self, number: int) -> str:
        return list(self._numbers)[number]


def _line() -> str:
    """The innermost line of the job."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _LIBRARIES and not file.startswith("<"):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def kept(runtime: Any, at_peak: bool = False) -> list[Kept]:
    """See dtr_alloc.kept()."""
    others = (lib.DTR_KEPT_NOT, lib.DTR_KEPT_IN_USE, lib.DTR_KEPT_TINY)
    return _listed(runtime, at_peak, lambda holder: holder.why_kept not in others)


def resident(runtime: Any) -> list[Kept]:
    """All that is in memory now, the largest first; with no reason where it can be evicted."""
    return _listed(runtime, False, lambda _: True)


def _listed(runtime: Any, at_peak: bool, counts: Callable[[Any], bool]) -> list[Kept]:
    ask = partial(lib.dtr_engine_holders, runtime.engine, at_peak)
    rules = {rule.key: rule for rule in runtime.recorder.rules}
    sizes: Counter[tuple[str, str, str]] = Counter()
    for holder in filter(counts, listed("dtr_holder", ask)):
        sizes[_said(runtime, rules, holder)] += holder.size_bytes
    return [Kept(size_bytes, *said) for said, size_bytes in sizes.most_common()]


def why_kept(runtime: Any, tensor: Tensor) -> Kept | None:
    """See dtr_alloc.why_kept()."""
    rules = {rule.key: rule for rule in runtime.recorder.rules}
    found = list(parts(tensor))
    for part in found:
        holder = ffi.new("dtr_holder *", {"why_kept": lib.DTR_KEPT_NOT_MET})
        if handle := runtime.handle(part):
            check(lib.dtr_why_kept(runtime.engine, handle, holder))
        if holder.why_kept != lib.DTR_KEPT_NOT:
            return Kept(part.untyped_storage().nbytes(), *_said(runtime, rules, holder))
    return None if found else Kept(0, "", "what it holds does not lie in storages")


def _said(runtime: Any, rules: dict[int, Rule], holder: Any) -> tuple[str, str, str]:
    """The last three attributes of a Kept."""
    why, rule = holder.why_kept, rules.get(holder.op_key)
    if why == lib.DTR_KEPT_PARAMETER:
        return "", _REASONS[why], ""
    line = runtime.places.line(holder.place) if why == lib.DTR_KEPT_ESCAPED else ""
    return rule.name if rule else operator_name(holder.op_key), _in_words(why, rule), line


def _in_words(why: int, rule: Rule | None) -> str:
    if rule is None and why == lib.DTR_KEPT_BY_CALL:
        return "it was made by a graph, and an operator that this calls is not repeated"
    if rule is not None and why == lib.DTR_KEPT_BY_RULE and rule.because:
        return f"its operator {rule.because}"
    if rule is not None and why in (lib.DTR_KEPT_BY_RULE, lib.DTR_KEPT_BY_CALL) and rule.tried:
        return "its operator was tried, and was not found to give the same again"
    return _REASONS[why]
