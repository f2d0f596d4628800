"""Measures of lost memory in a heap's history: the numbers of ``dtr-alloc fragment report``.

At each moment *live* bytes are in use, as asked for, *reserved* bytes are taken from the driver,
and *lost* = reserved - live: rounding inside of blocks, and *free* bytes, which are in *holes*:
ranges without a block, merged where they touch (dtr_alloc.fragment.walk).

- *peak live*, *peak reserved*: the largest value over time, each at its own moment.
- *utilization* = peak live / peak reserved. One minus it is the fragmentation ratio of GMLake (Guo
  et al., ASPLOS 2024) and STAlloc.
- *lost bytes* at most, and on average over the events that change the heap. All blocks from before
  the recording (Trace.start_rows) count as one event.
- the *worst moment* of a trace: its first out-of-memory error; without one, the request for room
  that lost most (below); without that, the moment of peak reserved bytes with the most live bytes.
  The worst moment of a model: its failure; without one, the moment of most lost bytes.
- *largest share* = largest hole / free at that moment: 1 if one request can have all free bytes.
  One minus it is the usual measure of external fragmentation.
- *evenness* = Σ hole² / free² at that moment: the probability that two random free bytes are in the
  same hole (Simpson's index, Nature 1949). Its inverse is a number of holes. Unlike the largest
  share, it depends on all holes. Both ratios are also averaged over the events after which
  something is free.
- *lost at evictions*: when a request causes evictions, the bytes that are free before it and still
  free once it has its block: it could use them neither as they were nor by mapping nor by moving.
  Its own block does not count, nor do evicted bytes, which were in use. Nor do free chunks of
  memory that is mapped by chunks, as they can be mapped anywhere. On average and at most over these
  requests. (native/simulate/fragmentation.h measures the same in simulations of op logs.)
- *smallest budget*: the least with which a model completes the trace (dtr_alloc.fragment.models);
  the trace itself has none. It is at least peak live.
- *time per operation*: nanoseconds that the model takes for one allocation or free on this machine.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import compress, count
from typing import TYPE_CHECKING, Any

from dtr_alloc.fragment.residency import MOVED_IN
from dtr_alloc.fragment.walk import Walk
from dtr_alloc.traces.trace import Kind, Trace, TraceError

if TYPE_CHECKING:
    from dtr_alloc.fragment.models import ModelRun


@dataclass(frozen=True)
class Measures:
    """The numbers of a trace, or of a model under it; sizes in bytes. None: not known, or there was
    nothing to measure. The terms are defined above.

    Attributes:
        name: ``as recorded``, or the model's.
        completed: whether it ended without an out-of-memory error.
        budget_bytes: None without one.
        worst_event: event of the worst moment.
        counts: events after the start by kind (``allocations``, ``evictions``, ``moved_bytes``,
            ...).
    """

    name: str
    completed: bool
    budget_bytes: int | None
    peak_live_bytes: int
    peak_reserved_bytes: int
    utilization: float | None
    mean_lost_bytes: float
    max_lost_bytes: int
    worst_event: int
    worst_free_bytes: int
    worst_largest_bytes: int
    worst_evenness: float | None
    mean_largest_share: float | None
    mean_evenness: float | None
    mean_lost_at_evictions_bytes: float | None
    max_lost_at_evictions_bytes: int | None
    smallest_budget_bytes: int | None
    ns_per_operation: float | None
    counts: dict[str, int]

    @property
    def worst_largest_share(self) -> float | None:
        return self.worst_largest_bytes / self.worst_free_bytes if self.worst_free_bytes else None


def size_unit(size: float) -> tuple[float, str]:
    """The unit for a size of this order: its bytes, and its name."""
    for name, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= 2 * factor:
            return float(factor), name
    return 1.0, "bytes"


def of_walk(walk: Walk) -> Measures:
    """The numbers of a recorded heap. Raises TraceError if the trace holds no memory."""
    trace, series = walk.trace, walk.series
    if not any(series.reserved_bytes):
        raise TraceError(NOTHING)
    lost = walk.lost_at_evictions.values()
    return Measures(
        name="as recorded",
        completed=Kind.OUT_OF_MEMORY not in trace.kind,
        budget_bytes=walk.budget_bytes,
        **_of_series(series, worst_event(walk)),
        mean_lost_at_evictions_bytes=sum(lost) / len(lost) if lost else None,
        max_lost_at_evictions_bytes=max(lost, default=None),
        smallest_budget_bytes=None,
        ns_per_operation=None,
        counts=_counts(walk),
    )


def of_run(result: ModelRun) -> Measures:
    """The numbers of a run of a model."""
    series = result.series
    worst = result.failed_event
    if worst is None:
        lost = [*map(int.__sub__, series.reserved_bytes, series.live_bytes)]
        worst = series.event[lost.index(max(lost))]
    held = result.peak_reserved_bytes
    return Measures(
        name=result.model,
        completed=result.completed,
        budget_bytes=result.budget_bytes,
        **{
            **_of_series(series, worst),
            # The series is a sample; these are of all events.
            "peak_live_bytes": result.peak_live_bytes,
            "peak_reserved_bytes": result.peak_reserved_bytes,
            "utilization": result.peak_live_bytes / held if held else None,
            "mean_lost_bytes": result.mean_lost_bytes,
            "max_lost_bytes": result.max_lost_bytes,
        },
        mean_lost_at_evictions_bytes=None,
        max_lost_at_evictions_bytes=None,
        smallest_budget_bytes=result.smallest_budget_bytes,
        ns_per_operation=result.ns_per_operation,
        counts={"events": result.events, "out_of_memory_errors": int(not result.completed)},
    )


def _of_series(series: Any, worst_event: int) -> dict[str, Any]:
    # The heap is as the last event at or before the worst one left it.
    worst = max(0, bisect_right(series.event, worst_event) - 1)
    peak_live = max(series.live_bytes, default=0)
    peak_reserved = max(series.reserved_bytes, default=0)
    free = largest = squares = 0
    if len(series.event):
        free, largest = series.free_bytes[worst], series.largest_free_bytes[worst]
        squares = series.sum_free_squares[worst]
    lost = [*map(int.__sub__, series.reserved_bytes, series.live_bytes)]
    shares, evenness, moments = 0.0, 0.0, 0
    columns = (series.free_bytes, series.largest_free_bytes, series.sum_free_squares)
    for size, most, square in zip(*columns, strict=True):
        if size:
            shares += most / size
            evenness += square / (size * size)
            moments += 1
    return {
        "peak_live_bytes": peak_live,
        "peak_reserved_bytes": peak_reserved,
        "utilization": peak_live / peak_reserved if peak_reserved else None,
        "mean_lost_bytes": sum(lost) / len(lost) if lost else 0.0,
        "max_lost_bytes": max(lost, default=0),
        "worst_event": worst_event,
        "worst_free_bytes": free,
        "worst_largest_bytes": largest,
        "worst_evenness": squares / free**2 if free else None,
        "mean_largest_share": shares / moments if moments else None,
        "mean_evenness": evenness / moments if moments else None,
    }


NOTHING = "the trace allocates nothing: there is nothing to measure"
LEAST_OPERATIONS = 10
"""The least number of allocations and frees with which allocators can be compared."""


def too_few_events(trace: Trace, device: int) -> str | None:
    """A sentence if, after its start (Trace.start_rows), a trace has too few allocations and frees
    of a device to compare allocators: fewer than LEAST_OPERATIONS, or than the blocks of the start,
    which were allocated in an unknown order."""
    start = trace.start_rows(device)
    before, after = (
        [*compress(trace.kind[rows], map(device.__eq__, trace.device[rows]))]
        for rows in (slice(start), slice(start, None))
    )
    blocks = before.count(Kind.ALLOCATE)
    operations = after.count(Kind.ALLOCATE) + after.count(Kind.FREE)
    if operations >= max(LEAST_OPERATIONS, blocks):
        return None
    if operations == 0:
        return "no history, only the memory of one moment: allocators cannot be compared"
    found = f"{operations} {'allocation or free' if operations == 1 else 'allocations and frees'}"
    if start:
        found += f" after a start of {blocks} {'block' if blocks == 1 else 'blocks'}"
    return f"{found}: too few to compare allocators"


def worst_event(walk: Walk) -> int:
    """The event of the worst moment."""
    trace, series = walk.trace, walk.series
    if Kind.OUT_OF_MEMORY in trace.kind:
        return trace.kind.index(Kind.OUT_OF_MEMORY)
    if lost := walk.lost_at_evictions:
        return max(lost, key=lost.__getitem__)
    at = max(zip(series.reserved_bytes, series.live_bytes, count(0, -1), strict=False))[2]
    return series.event[-at]


def _counts(walk: Walk) -> dict[str, int]:
    trace, blocks = walk.trace, walk.blocks
    moved = [
        size for how, size in zip(blocks.began, blocks.size_bytes, strict=True) if how == MOVED_IN
    ]
    start = trace.start_rows(trace.device[0])
    return {
        "events": len(trace) - start,
        "allocations": trace.kind[start:].count(Kind.ALLOCATE) - len(moved),
        "evictions": trace.kind.count(Kind.EVICT),
        "rematerializations": trace.kind.count(Kind.REMATERIALIZE),
        "moves": len(moved),
        "moved_bytes": sum(moved),
        "rooms": trace.kind.count(Kind.ROOM),
        "out_of_memory_errors": trace.kind.count(Kind.OUT_OF_MEMORY),
        "steps": trace.kind.count(Kind.STEP),
    }
