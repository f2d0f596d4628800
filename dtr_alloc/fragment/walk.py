"""Follows a trace of one device through the addresses it has, and says how its heap was.

This is what really happened in the recorded job; ``dtr_alloc.fragment.replay`` says what another
allocator would have made of the same requests.

Free bytes lie in holes: ranges of reserved memory without a block, merged where they touch. The
segments of PyTorch's caching allocator come from calls of their own, so holes of two of them do not
merge, unless a block lay across the border, as in expandable segments. A block outside of all
segments counts as reserved from then on: where a trace says nothing of segments, that is the
memory of a heap that never gives any back.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Any

from dtr_alloc.fragment.holes import Holes
from dtr_alloc.fragment.residency import Residencies, residencies
from dtr_alloc.fragment.trace import Kind, Trace

NO_BUDGET = 2**64 - 1


@dataclass
class Series:
    """A heap after each event that changed it; columns of equal length.

    Attributes:
        event: index of the trace's event.
        time_ns: of that event.
        live_bytes: in use, as asked for.
        reserved_bytes: taken from the driver.
        free_bytes: reserved and in no block, so without what blocks are rounded up by.
        largest_free_bytes: the largest hole.
        sum_free_squares: of the holes' sizes, in bytes².
    """

    event: array[int] = field(default_factory=lambda: array("q"))
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    live_bytes: array[int] = field(default_factory=lambda: array("Q"))
    reserved_bytes: array[int] = field(default_factory=lambda: array("Q"))
    free_bytes: array[int] = field(default_factory=lambda: array("Q"))
    largest_free_bytes: array[int] = field(default_factory=lambda: array("Q"))
    sum_free_squares: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.event)


@dataclass
class Walk:
    """What a trace did to its heap.

    Attributes:
        trace: of one device.
        blocks: where each block lay.
        series: the heap over time.
        budget_bytes: the last budget, None without one.
        lost_at_evictions: the bytes lost (dtr_alloc.fragment.measures), by the event that asked
            for room, for each request that something was evicted for.
    """

    trace: Trace
    blocks: Residencies
    series: Series
    budget_bytes: int | None
    lost_at_evictions: dict[int, int]

    def holes_at(self, event: int) -> list[int]:
        """The sizes of the holes after that event, in bytes, ascending."""
        heap = _Heap(self.trace, self.blocks)
        for _ in heap.run(event + 1):
            pass
        return heap.holes.sizes()


def walk(trace: Trace) -> Walk:
    """Follows a valid trace of one device; see by_device()."""
    blocks = residencies(trace)
    heap = _Heap(trace, blocks)
    series = Series()
    holes = heap.holes
    times = trace.time_ns
    for event in heap.run(len(trace)):
        series.event.append(event)
        series.time_ns.append(times[event])
        series.live_bytes.append(heap.live_bytes)
        series.reserved_bytes.append(heap.reserved_bytes)
        series.free_bytes.append(holes.total_bytes)
        series.largest_free_bytes.append(holes.largest_bytes)
        series.sum_free_squares.append(float(holes.sum_squares))
    return Walk(trace, blocks, series, heap.budget_bytes, heap.lost)


def by_device(trace: Trace) -> dict[int, Trace]:
    """A trace for each device that has blocks or segments, by its number."""
    devices = sorted(set(trace.device))
    if len(devices) <= 1:
        return dict.fromkeys(devices, trace)
    rows: dict[int, list[int]] = {device: [] for device in devices}
    for row, device in enumerate(trace.device):
        rows[device].append(row)
    found = {device: trace.select(chosen) for device, chosen in rows.items()}
    return {device: part for device, part in found.items() if Kind.ALLOCATE in set(part.kind)}


@dataclass
class _Request:
    """A request that room is being made for."""

    event: int
    size_bytes: int
    free_bytes: int  # of the budget, when room was asked for
    freed: list[tuple[int, int]] = field(default_factory=list)  # since then
    evictions: int = 0


class _Heap:
    def __init__(self, trace: Trace, blocks: Residencies) -> None:
        self.trace = trace
        self.blocks = blocks
        self.holes = Holes()
        self.live_bytes = 0
        self.used_bytes = 0  # of whole blocks
        self.reserved_bytes = 0
        self.budget_bytes: int | None = None
        self.lost: dict[int, int] = {}
        self._walled = trace.meta.get("source") == "torch"
        self._walls: list[int] = []  # ascending

    def run(self, until: int) -> Any:
        """Applies the events before ``until`` and yields each that changed the heap."""
        resident: dict[int, tuple[int, int]] = {}  # address -> bytes of the block, as asked for
        request: _Request | None = None
        row = 0
        trace = self.trace
        sizes, holes = self.blocks.size_bytes, self.holes
        columns = zip(trace.kind, trace.address, trace.size_bytes, strict=True)
        for event, (kind, address, size) in enumerate(columns):
            if event >= until:
                return
            if kind == 0:  # ALLOCATE
                block = sizes[row]
                row += 1
                if self._walls:
                    self._open_walls(address, address + block)
                self.reserved_bytes += block - holes.remove(address, address + block)
                resident[address] = block, size
                self.used_bytes += block
                self.live_bytes += size
                if request is not None and request.size_bytes == size:
                    self._serve(request, address, address + block)
                    request = None
                yield event
            elif kind == 1:  # FREE
                block, size = resident.pop(address)
                holes.add(address, address + block)
                self.used_bytes -= block
                self.live_bytes -= size
                if request is not None:
                    request.freed.append((address, address + block))
                yield event
            elif kind == Kind.ROOM:
                limit = self.reserved_bytes if self.budget_bytes is None else self.budget_bytes
                request = _Request(event, size, max(0, limit - self.used_bytes))
            elif kind == Kind.EVICT:
                if request is not None:
                    request.evictions += 1
            elif kind == Kind.SEGMENT_ALLOCATE:
                self._reserve(address, address + size)
                yield event
            elif kind == Kind.SEGMENT_FREE:
                self.reserved_bytes -= holes.remove(address, address + size)
                yield event
            elif kind == Kind.OUT_OF_MEMORY:
                request = None
            elif kind == Kind.BUDGET:
                self.budget_bytes = None if size == NO_BUDGET else size

    def _serve(self, request: _Request, start: int, end: int) -> None:
        if not request.evictions:
            return
        overlap = sum(max(0, min(end, b) - max(start, a)) for a, b in request.freed)
        was_free = end - start - min(overlap, end - start)
        self.lost[request.event] = max(0, request.free_bytes - was_free)

    def _reserve(self, start: int, end: int) -> None:
        if self._walled:
            for wall in (start, end):
                if wall not in self.holes.walls:
                    self.holes.walls.add(wall)
                    insort(self._walls, wall)
        self.reserved_bytes += end - start - self.holes.remove(start, end)
        self.holes.add(start, end)

    def _open_walls(self, start: int, end: int) -> None:
        low, high = bisect_right(self._walls, start), bisect_left(self._walls, end)
        self.holes.walls.difference_update(self._walls[low:high])
        del self._walls[low:high]
