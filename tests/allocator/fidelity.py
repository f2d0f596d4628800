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
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from dtr_alloc.fragment.models import ModelRun, Prepared
from dtr_alloc.traces.trace import Kind, Trace


@dataclass(frozen=True)
class Fidelity:
    """The differences; all zeros and None after the first two fields: there are none."""

    allocations: int
    segment_events: int
    """Recorded: memory that was taken from the device or given back."""
    unplaced: int
    """Allocations that failed in the model, and those after them."""
    misplaced: int
    """Allocations in another segment, or at another address in it."""
    first_misplaced_event: int | None
    segment_errors: int
    """Recorded segment events without a counterpart (the k-th) at the same allocation and of the
    same size, and those of the model without a counterpart."""
    reserved_errors: int
    """Allocations and frees after which reserved bytes differ."""
    max_reserved_error_bytes: int
    mean_reserved_error: float
    """The mean difference after each event, over the mean of recorded bytes."""
    peak_reserved_error: float
    """Signed: (model - recorded) / recorded."""

    @property
    def exact(self) -> bool:
        """Every place, and every segment at every event, is as recorded."""
        return not (self.unplaced or self.misplaced or self.segment_errors or self.reserved_errors)


def compare(
    trace: Trace,
    model: str = "pytorch",
    budget_bytes: int | None = None,
    *,
    device: int | None = None,
    **options: Any,
) -> Fidelity:
    """Runs the model over a recorded trace (torch_snapshot.py) and compares.

    The arguments are those of Prepared.run(); the budget is the device's memory, or its part by
    set_per_process_memory_fraction (``budget_is_fraction=1``).

    Raises ValueError as Prepared.run(), and for a history that begins in the middle of a job.
    """
    if trace.meta.get("begins_with") or trace.meta.get("begins_with_segments"):
        raise ValueError(
            "the history begins in the middle of the job: what the allocator did before is "
            "unknown; allowed: one that is recorded from before the first allocation"
        )
    prepared = Prepared(trace, device)
    if options.get("ties_by_address"):
        options["segment_addresses"] = segment_addresses(trace, prepared.device)
    result = prepared.run(model, budget_bytes, samples=0, placements=True, **options)
    recorded, asked = _recorded(trace, prepared.device)
    counted = {row for row in asked if trace.size_bytes[row] or trace.kind[row] == Kind.FREE}
    modelled = [(s.event, s.size_bytes, s.taken) for s in result.segments]
    wrong = sum(a != b for a, b in zip([r[:3] for r in recorded], modelled, strict=False))
    wrong += abs(len(recorded) - len(modelled))
    places = _misplaced(trace, result, recorded, asked)
    truth, differences, total = _reserved(recorded, modelled, [r for r in asked if r in counted])
    return Fidelity(
        allocations=prepared.allocations,
        segment_events=len(recorded),
        unplaced=0 if result.completed else prepared.allocations - places[2],
        misplaced=places[0],
        first_misplaced_event=places[1],
        segment_errors=wrong,
        reserved_errors=sum(d != 0 for d in differences),
        max_reserved_error_bytes=max(differences, default=0),
        mean_reserved_error=sum(differences) / total if total else 0.0,
        peak_reserved_error=(result.peak_reserved_bytes - truth) / truth if truth else 0.0,
    )


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


def segment_addresses(trace: Trace, device: int = 0) -> array[int]:
    """The addresses of the segments of a recorded run, in the order of their allocation: the option
    ``segment_addresses`` of the model "pytorch". With ``ties_by_address`` it then chooses among
    equal blocks as the recorded allocator did."""
    return array(
        "Q",
        [
            address
            for kind, address, of in zip(trace.kind, trace.address, trace.device, strict=True)
            if kind == Kind.SEGMENT_ALLOCATE and of == device
        ],
    )


_Event = tuple[int, int, bool, int]  # the row of the allocation, size, taken, address


def _recorded(trace: Trace, device: int) -> tuple[list[_Event], list[int]]:
    """Segment events, each with the row of the allocation that caused it; and the rows of
    allocations and frees."""
    events: list[_Event] = []
    open_from = 0
    asked = []
    columns = zip(trace.kind, trace.device, trace.size_bytes, trace.address, strict=True)
    for row, (kind, of, size, address) in enumerate(columns):
        if of != device:
            continue
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
) -> tuple[int, int | None, int]:
    """How many allocations have another address, the first one's row, and how many were placed."""
    assert result.placements is not None
    taken = (address for *_, is_taken, address in recorded if is_taken)
    held: list[tuple[int, int, int]] = []  # of the model's segments: begin, end, and the shift
    coming = iter([*result.segments, None])
    change = next(coming)
    wrong, first, number = 0, None, 0
    for row in asked:
        while change is not None and change.event <= row:
            begin, end = change.address, change.address + change.size_bytes
            if change.taken:
                held.append((begin, end, next(taken, begin) - begin))
            else:
                held = _without(held, begin, end)
            held.sort()
            change = next(coming)
        if trace.kind[row] != Kind.ALLOCATE:
            continue
        if row == result.failed_event:
            break
        place = result.placements[number]
        number += 1
        if trace.size_bytes[row] == 0:
            continue
        at = bisect_right(held, place, key=itemgetter(0)) - 1
        if at < 0 or place >= held[at][1] or place + held[at][2] != trace.address[row]:
            wrong += 1
            first = row if first is None else first
    return wrong, first, number


def _without(held: list[tuple[int, int, int]], begin: int, end: int) -> list[tuple[int, int, int]]:
    """Cuts [begin, end) out: expandable segments are given back in other parts than taken."""
    parts = (
        part
        for low, high, shift in held
        for part in ((low, min(high, begin), shift), (max(low, end), high, shift))
    )
    return [part for part in parts if part[0] < part[1]]


def _reserved(
    recorded: list[_Event], modelled: list[tuple[int, int, bool]], rows: list[int]
) -> tuple[int, list[int], int]:
    """The recorded peak, the differences after each row, and the sum of recorded bytes."""
    truth = model = peak = total = 0
    real, ours = 0, 0
    differences = []
    for row in rows:
        while real < len(recorded) and 0 <= recorded[real][0] <= row:
            truth += recorded[real][1] if recorded[real][2] else -recorded[real][1]
            peak = max(peak, truth)
            real += 1
        while ours < len(modelled) and modelled[ours][0] <= row:
            model += modelled[ours][1] if modelled[ours][2] else -modelled[ours][1]
            ours += 1
        differences.append(abs(model - truth))
        total += truth
    return peak, differences, total
