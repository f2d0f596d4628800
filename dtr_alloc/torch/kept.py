"""Accounts in words: the contents of the memory, kept contents and the reasons (the engine's,
dtr/storage.h, or those of an operator's rule), and operators that ran again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from torch import Tensor

from dtr_alloc.core import check, ffi, lib, listed
from dtr_alloc.costs import operator_name
from dtr_alloc.records import Kept, Repeats
from dtr_alloc.torch.call_sites import CallSite
from dtr_alloc.torch.op_rules import Rule
from dtr_alloc.torch.pins import parts
from dtr_alloc.torch.session import Session

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
    lib.DTR_KEPT_UNRECORDED: "its operator ran while the recorder rested",
}


def kept(runtime: Session, at_peak: bool = False) -> list[Kept]:
    """See dtr_alloc.kept()."""
    others = (lib.DTR_KEPT_NOT, lib.DTR_KEPT_IN_USE, lib.DTR_KEPT_TINY)
    when = lib.DTR_HOLDERS_KEPT_MOST if at_peak else lib.DTR_HOLDERS_NOW
    return _listed(runtime, when, lambda why: why not in others)


def fullest(runtime: Session) -> list[Kept]:
    """The contents at the peak of memory, to a sixteenth, the largest first; without a reason if
    they could be evicted."""
    return _listed(runtime, lib.DTR_HOLDERS_FULLEST, lambda _: True)


def _listed(runtime: Session, when: int, counts: Callable[[int], bool]) -> list[Kept]:
    """Holders whose reason counts."""
    ask = partial(lib.dtr_engine_holders, runtime.engine, when)
    holders = [
        (holder.size_bytes, holder.why_kept, holder.op_key, holder.place)
        for holder in listed("dtr_holder", ask)
        if counts(holder.why_kept)
    ]
    rules, call_sites = _rules(runtime), runtime.call_sites.by_number()
    sizes: Counter[tuple[str, str, str, str]] = Counter()
    for size_bytes, why, key, place in holders:
        sizes[_said(rules, why, key, call_sites[place])] += size_bytes
    return [Kept(size_bytes, *said) for said, size_bytes in sizes.most_common()]


def repeats(runtime: Session) -> list[Repeats]:
    """Operators that ran again in the session, if account was kept, the longest first."""
    counted = [
        (each.cost_ns / 1e9, each.times, each.op_key, each.place)
        for each in listed("dtr_repeats", partial(lib.dtr_engine_repeats, runtime.engine))
    ]
    rules, call_sites = _rules(runtime), runtime.call_sites.by_number()
    return [
        Repeats(seconds, times, _operator(key, rules), *reversed(call_sites[place]))
        for seconds, times, key, place in counted
    ]


def _rules(runtime: Session) -> dict[int, Rule]:
    return {rule.key: rule for rule in runtime.recorder.rules}


def _operator(key: int, rules: dict[int, Rule]) -> str:
    return rules[key].name if key in rules else operator_name(key)


def why_kept(runtime: Session, tensor: Tensor) -> Kept | None:
    """See dtr_alloc.why_kept()."""
    rules = _rules(runtime)
    found = list(parts(tensor))
    for part in found:
        holder = ffi.new("dtr_holder *", {"why_kept": lib.DTR_KEPT_NOT_MET})
        if handle := runtime.handle(part):
            check(lib.dtr_why_kept(runtime.engine, handle, holder))
        if holder.why_kept != lib.DTR_KEPT_NOT:
            call_site = runtime.call_sites.by_number()[holder.place]
            said = _said(rules, holder.why_kept, holder.op_key, call_site)
            return Kept(part.untyped_storage().nbytes(), *said)
    return None if found else Kept(0, "", "what it holds does not lie in storages")


def _said(rules: dict[int, Rule], why: int, key: int, at: CallSite) -> tuple[str, str, str, str]:
    """All fields of a Kept but its size."""
    if why == lib.DTR_KEPT_PARAMETER:
        return "", _REASONS[why], "", ""
    return _operator(key, rules), _in_words(why, rules.get(key)), at.line, at.module


def _in_words(why: int, rule: Rule | None) -> str:
    if rule is None and why == lib.DTR_KEPT_BY_CALL:
        return (
            "a graph or function made it, and this or an operator that this calls is not repeated"
        )
    if rule is not None and why == lib.DTR_KEPT_BY_RULE and rule.because:
        return f"its operator {rule.because}"
    if rule is not None and why in (lib.DTR_KEPT_BY_RULE, lib.DTR_KEPT_BY_CALL) and rule.tried:
        return "its operator was tried, and was not found to give the same again"
    return _REASONS[why]
