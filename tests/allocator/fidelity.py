"""Compares the model of PyTorch's caching allocator with a real one.

A snapshot whose history begins with the job (``torch.cuda.memory._record_memory_history`` before
the first allocation) has the address of each allocation, and the times of segments. The same
requests go through the model, and both are compared event by event.

The device chooses the addresses of segments, so addresses are compared within segments: the k-th
segment of the model stands for the k-th recorded one. Up to torch 2.12, the allocator chooses among
blocks of equal size by address (``ties_by_address``), so the model is given the recorded ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import itemgetter
from typing import Any

from dtr_alloc.fragment.models import ModelRun, Prepared
from dtr_alloc.traces.trace import Kind, Trace


def assert_same(trace: Trace, budget_bytes: int | None = None, **options: Any) -> int:
    """Every allocation has its recorded place in the model, and every segment comes and goes at the
    recorded event. Returns the number of allocations.

    The budget is the device's memory, or its part by set_per_process_memory_fraction
    (``budget_is_fraction=1``). The history begins with the job.
    """
    assert not trace.meta.get("begins_with")
    assert not trace.meta.get("begins_with_segments")
    prepared = Prepared(trace)
    if options.get("ties_by_address"):
        addresses = zip(trace.kind, trace.address, strict=True)
        options["segment_addresses"] = array(
            "Q", [address for kind, address in addresses if kind == Kind.SEGMENT_ALLOCATE]
        )
    result = prepared.run("pytorch", budget_bytes, samples=0, placements=True, **options)
    recorded, asked = _recorded(trace)
    assert result.completed
    assert [(s.event, s.size_bytes, s.taken) for s in result.segments] == [r[:3] for r in recorded]
    assert _misplaced(trace, result, recorded, asked) == []
    return prepared.allocations


def run_model(
    trace: Trace,
    model: str = "pytorch",
    budget_bytes: int | None = None,
    *,
    device: int | None = None,
    **options: Any,
) -> ModelRun:
    """Prepared(trace, device).run(...)."""
    return Prepared(trace, device).run(model, budget_bytes, **options)


_Event = tuple[int, int, bool, int]  # the row of the allocation, size, taken, address


def _recorded(trace: Trace) -> tuple[list[_Event], list[int]]:
    """Segment events, each with the row of the allocation that caused it; and the rows of
    allocations and frees."""
    events: list[_Event] = []
    open_from = 0
    asked = []
    columns = zip(trace.kind, trace.size_bytes, trace.address, strict=True)
    for row, (kind, size, address) in enumerate(columns):
        if kind in (Kind.SEGMENT_ALLOCATE, Kind.SEGMENT_FREE):
            events.append((-1, size, kind == Kind.SEGMENT_ALLOCATE, address))
        elif kind in (Kind.ALLOCATE, Kind.FREE):
            asked.append(row)
            if kind == Kind.ALLOCATE:
                for at in range(open_from, len(events)):
                    events[at] = (row, *events[at][1:])
                open_from = len(events)
    return events, asked


def _misplaced(
    trace: Trace, result: ModelRun, recorded: list[_Event], asked: list[int]
) -> list[int]:
    """The rows of the allocations that have another address."""
    assert result.placements is not None
    taken = (address for *_, is_taken, address in recorded if is_taken)
    held: list[tuple[int, int, int]] = []  # of the model's segments: begin, end, and the shift
    coming = iter([*result.segments, None])
    change = next(coming)
    places = iter(result.placements)
    wrong = []
    for row in asked:
        while change is not None and change.event <= row:
            begin, end = change.address, change.address + change.size_bytes
            if change.taken:
                held.append((begin, end, next(taken) - begin))
            else:
                held = _without(held, begin, end)
            held.sort()
            change = next(coming)
        if trace.kind[row] != Kind.ALLOCATE:
            continue
        place = next(places)
        if trace.size_bytes[row] == 0:
            continue
        at = bisect_right(held, place, key=itemgetter(0)) - 1
        if at < 0 or place >= held[at][1] or place + held[at][2] != trace.address[row]:
            wrong.append(row)
    return wrong


def _without(held: list[tuple[int, int, int]], begin: int, end: int) -> list[tuple[int, int, int]]:
    """Cuts [begin, end) out: expandable segments are given back in other parts than taken."""
    parts = (
        part
        for low, high, shift in held
        for part in ((low, min(high, begin), shift), (max(low, end), high, shift))
    )
    return [part for part in parts if part[0] < part[1]]
