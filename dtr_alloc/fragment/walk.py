"""Follows the blocks of a trace of one device, and measures its heap over time.

This is what happened in the recorded job; ``dtr_alloc.fragment.models`` plays other allocators on
the same requests.

Free bytes are in holes: ranges of reserved memory without a block, merged where they touch. The
segments of PyTorch's caching allocator come from separate calls, so holes of two segments do not
merge, unless a block crossed the border, as in expandable segments. A block outside of all segments
counts as reserved from then on: a trace without segments is a heap that never returns memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from dtr_alloc.core import check, ffi, lib
from dtr_alloc.fragment.residency import Residencies
from dtr_alloc.traces.trace import Kind, Trace, TraceError

NO_BUDGET = 2**64 - 1
_MEMORY = {Kind.ALLOCATE, Kind.SEGMENT_ALLOCATE}


@dataclass
class Series:
    """A heap after the start (Trace.start_rows) and each later event that changed it; columns of
    equal length.

    Attributes:
        event: index of the trace's event.
        time_ns: of that event.
        live_bytes: in use, as asked for.
        reserved_bytes: taken from the driver.
        free_bytes: in holes: reserved and in no block.
        largest_free_bytes: the largest hole.
        sum_free_squares: of the holes' sizes, in bytes².
    """

    event: array[int]
    time_ns: array[int]
    live_bytes: array[int]
    reserved_bytes: array[int]
    free_bytes: array[int]
    largest_free_bytes: array[int]
    sum_free_squares: array[float]

    def __len__(self) -> int:
        return len(self.event)


@dataclass
class Walk:
    """The history of a heap.

    Attributes:
        trace: of one device.
        blocks: of the trace.
        series: the heap over time.
        budget_bytes: the last budget, None without one.
        lost_at_evictions: the bytes lost (dtr_alloc.fragment.measures), by the event that asked for
            room and caused evictions.
    """

    trace: Trace
    blocks: Residencies
    series: Series
    budget_bytes: int | None
    lost_at_evictions: dict[int, int]
    _handle: Any = field(repr=False)
    _columns: Any = field(repr=False)
    """The core reads them while the handle exists."""

    def holes_at(self, event: int) -> list[int]:
        """The sizes of the holes after that event, in bytes, ascending."""
        sizes, count = ffi.new("uint64_t **"), ffi.new("uint64_t *")
        check(lib.dtr_fragment_walk_holes(self._handle, event, sizes, count))
        return ffi.unpack(sizes[0], count[0]) if count[0] else []


def column(typecode: str, start: Any, count: int) -> array[Any]:
    """A copy of an array of the core."""
    made = array(typecode)
    made.frombytes(ffi.buffer(start, count * made.itemsize))
    return made


def walk(trace: Trace) -> Walk:
    """Follows a valid trace of one device; see by_device(). Raises TraceError if blocks overlap."""
    options = ffi.new("dtr_fragment_walk_options *")
    columns = (
        ffi.from_buffer("uint8_t[]", trace.kind),
        ffi.from_buffer("uint64_t[]", trace.address),
        ffi.from_buffer("uint64_t[]", trace.size_bytes),
    )
    options.kind, options.address, options.size_bytes = columns
    options.count = len(trace)
    options.start_rows = trace.start_rows(trace.device[0]) if len(trace) else 0
    options.chunk_bytes = _moving_chunk_bytes(trace)
    options.walled = trace.meta.get("source") == "torch"
    heap, out = ffi.new("dtr_fragment_heap *"), ffi.new("dtr_fragment_walk **")
    try:
        check(lib.dtr_fragment_walk_run(options, heap, out))
    except ValueError as error:
        raise TraceError(str(error)) from None
    handle = ffi.gc(out[0], lib.dtr_fragment_walk_destroy)
    moments, blocks, losses = heap.moments, heap.blocks, heap.losses
    sizes = ("live_bytes", "reserved_bytes", "free_bytes", "largest_free_bytes")
    event = column("q", heap.row, moments)
    start = column("q", heap.start, blocks)
    lost = zip(
        column("q", heap.lost_row, losses), column("Q", heap.lost_bytes, losses), strict=True
    )
    return Walk(
        trace,
        Residencies(
            start=start,
            end=column("q", heap.end, blocks),
            address=column("Q", heap.address, blocks),
            size_bytes=column("Q", heap.block_bytes, blocks),
            name=array("I", map(trace.name.__getitem__, start)),
            began=column("B", heap.began, blocks),
            ended=column("B", heap.ended, blocks),
        ),
        Series(
            event=event,
            time_ns=array("q", map(trace.time_ns.__getitem__, event)),
            **{name: column("Q", getattr(heap, name), moments) for name in sizes},
            sum_free_squares=column("d", heap.sum_free_squares, moments),
        ),
        None if heap.budget_bytes == NO_BUDGET else heap.budget_bytes,
        dict(lost),
        handle,
        columns,
    )


def by_device(trace: Trace) -> dict[int, Trace]:
    """A trace for each device that has blocks or segments, by its number."""
    devices = sorted(set(trace.device))
    if len(devices) <= 1:
        return dict.fromkeys(devices, trace)
    rows: dict[int, list[int]] = {device: [] for device in devices}
    for row, device in enumerate(trace.device):
        rows[device].append(row)
    found = {device: trace.select(chosen) for device, chosen in rows.items()}
    return {device: part for device, part in found.items() if set(part.kind) & _MEMORY}


def _moving_chunk_bytes(trace: Trace) -> int:
    """The unit in which our heap maps memory elsewhere, 0 if it does not."""
    devices = trace.meta.get("devices", [])
    which = trace.device[0] if len(trace) else 0
    device = devices[which] if which < len(devices) else {}
    return 0 if device.get("fixed") else int(device.get("chunk_bytes") or 0)
