"""How well the model of PyTorch's caching allocator repeats what a real one did.

A snapshot whose history begins with the job (``torch.cuda.memory._record_memory_history`` before
the first allocation) says of each allocation where it went, and when segments came and went. The
same requests go through the model, and both are compared event by event.

Addresses of segments are the device's choice, so they are compared within segments: the k-th
segment that the model takes stands for the k-th that was recorded. Up to torch 2.12, blocks of
equal size are chosen by address (``ties_by_address``): then the model is told the recorded ones.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from dtr_alloc.fragment.models import ModelRun, Prepared, segment_addresses
from dtr_alloc.traces.trace import Kind, Trace


@dataclass(frozen=True)
class Fidelity:
    """What a comparison found; all zeros and None but the first two: no difference."""

    allocations: int
    """That the model was asked for."""
    segment_events: int
    """Recorded: memory that came from the device or went back."""
    unplaced: int
    """Allocations that found no place, and those after them: the real one had one."""
    misplaced: int
    """Allocations in another place: another segment, or elsewhere in it."""
    first_misplaced_event: int | None
    """Index of the first one's row."""
    segment_errors: int
    """Recorded segment events whose counterpart (the k-th) is missing or comes at another
    allocation or is of another size, and such of the model without a counterpart."""
    reserved_errors: int
    """Allocations and frees after which reserved bytes differ."""
    max_reserved_error_bytes: int
    """By how much, at most."""
    mean_reserved_error: float
    """The mean difference after each event, over the mean of what was reserved."""
    peak_reserved_error: float
    """Of the peak, signed: (model - recorded) / recorded."""

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

    The arguments are those of run_model(); the budget is what the device had, or what
    set_per_process_memory_fraction left of it (``budget_is_fraction=1``).

    Raises ValueError as run_model(), and for a history that begins in the middle of a job.
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


_Event = tuple[int, int, bool, int]  # the row of the allocation, size, taken, address


def _recorded(trace: Trace, device: int) -> tuple[list[_Event], list[int]]:
    """Segment events, each with the row of the allocation during which it was; and the rows of
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
    """How many allocations lie elsewhere, the first one's row, and how many were placed at all."""
    assert result.placements is not None
    taken = [event for event in recorded if event[2]]
    begins: list[int] = []  # of the model's segments, ascending; with them: end, and the shift
    others: list[tuple[int, int]] = []
    segments = iter(result.segments)
    coming = next(segments, None)
    paired = 0
    wrong, first, number = 0, None, 0
    for row in asked:
        while coming is not None and coming.event <= row:
            if coming.taken:
                shift = taken[paired][3] - coming.address if paired < len(taken) else None
                paired += 1
                at = bisect_right(begins, coming.address)
                begins.insert(at, coming.address)
                others.insert(at, (coming.address + coming.size_bytes, shift or 0))
            else:
                _remove(begins, others, coming.address, coming.address + coming.size_bytes)
            coming = next(segments, None)
        if trace.kind[row] != Kind.ALLOCATE:
            continue
        if row == result.failed_event:
            break
        place = result.placements[number]
        number += 1
        if trace.size_bytes[row] == 0:
            continue
        at = bisect_right(begins, place) - 1
        if at < 0 or place >= others[at][0] or place + others[at][1] != trace.address[row]:
            wrong += 1
            first = row if first is None else first
    return wrong, first, number


def _remove(begins: list[int], others: list[tuple[int, int]], begin: int, end: int) -> None:
    """Cuts [begin, end) out: expandable segments go in other pieces than they came."""
    at = max(0, bisect_right(begins, begin) - 1)
    while at < len(begins) and begins[at] < end:
        low, (high, shift) = begins[at], others[at]
        if high <= begin:
            at += 1
            continue
        del begins[at], others[at]
        for piece in ((low, min(high, begin)), (max(low, end), high)):
            if piece[0] < piece[1]:
                begins.insert(at, piece[0])
                others.insert(at, (piece[1], shift))
                at += 1


def _reserved(
    recorded: list[_Event], modelled: list[tuple[int, int, bool]], rows: list[int]
) -> tuple[int, list[int], int]:
    """The recorded peak, the differences after each row, and the sum of what was reserved then."""
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
