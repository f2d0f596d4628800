"""Why a tensor cannot be evicted, in words: the engine's answer (dtr_why_kept), and where that is
the rule of an operator, the rule's."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from dtr_alloc.core import check, ffi, lib
from dtr_alloc.torch.op_rules import Rule
from dtr_alloc.torch.pins import parts

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


class Reason(NamedTuple):
    """Why a tensor cannot be evicted.

    Attributes:
        why: a clause.
        operator: what made the content, such as ``aten.add.Tensor``; ``""`` if it is not known.
    """

    why: str
    operator: str


def why_kept(runtime: Any, tensor: Tensor) -> Reason | None:
    """See dtr_alloc.why_kept."""
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
        return Reason(_in_words(why, rule), rule.name if rule else "")
    return None if found else Reason("what it holds does not lie in storages", "")


def _in_words(why: int, rule: Rule | None) -> str:
    if rule is not None and why == lib.DTR_KEPT_BY_RULE and rule.because:
        return f"its operator {rule.because}"
    if rule is not None and why in (lib.DTR_KEPT_BY_RULE, lib.DTR_KEPT_BY_CALL) and rule.tried:
        return "its operator was tried, and was not found to give the same again"
    return _REASONS[why]
