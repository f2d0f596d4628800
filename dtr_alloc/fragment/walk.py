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

from dtr_alloc.fragment.holes import Holes, common_bytes
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
            for room, each time that something was evicted for it.
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
class _Call:
    """Room was asked for."""

    event: int
    size_bytes: int
    free: list[tuple[int, int]]  # what was free then
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
        self._calls: list[_Call] = []  # for the request that has no place yet
        self._chunk_bytes = _moving_chunk_bytes(trace)
        self._walled = trace.meta.get("source") == "torch"
        self._walls: list[int] = []  # ascending

    def run(self, until: int) -> Any:
        """Applies the events before ``until`` and yields each that changed the heap."""
        resident: dict[int, tuple[int, int]] = {}  # address -> bytes of the block, as asked for
        row = 0
        trace, calls = self.trace, self._calls
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
                if calls and calls[0].size_bytes == size and not self._moves_to(event):
                    self._count_lost()
                yield event
            elif kind == 1:  # FREE
                block, size = resident.pop(address)
                holes.add(address, address + block)
                self.used_bytes -= block
                self.live_bytes -= size
                yield event
            elif kind == Kind.ROOM:
                if calls and calls[0].size_bytes != size:
                    calls.clear()
                calls.append(_Call(event, size, self._not_in_whole_chunks()))
            elif kind == Kind.EVICT:
                if calls:
                    calls[-1].evictions += 1
            elif kind == Kind.SEGMENT_ALLOCATE:
                self._reserve(address, address + size)
                yield event
            elif kind == Kind.SEGMENT_FREE:
                self.reserved_bytes -= holes.remove(address, address + size)
                yield event
            elif kind == Kind.OUT_OF_MEMORY:
                calls.clear()
            elif kind == Kind.BUDGET:
                self.budget_bytes = None if size == NO_BUDGET else size

    def _moves_to(self, event: int) -> bool:
        """Whether the block that this event allocates is there for a content that moves."""
        kinds = self.trace.kind
        return event + 1 < len(kinds) and kinds[event + 1] == Kind.MOVE_FROM

    def _count_lost(self) -> None:
        """The request has its place."""
        for call in self._calls:
            if call.evictions:
                self.lost[call.event] = common_bytes(call.free, self.holes.ranges())
        self._calls.clear()

    def _not_in_whole_chunks(self) -> list[tuple[int, int]]:
        """What is free and cannot be mapped elsewhere."""
        ranges, chunk = self.holes.ranges(), self._chunk_bytes
        if not chunk:
            return ranges
        found = []
        for start, end in ranges:
            first, last = -(-start // chunk) * chunk, end // chunk * chunk
            found += [(start, end)] if first > last else [(start, first), (last, end)]
        return [(start, end) for start, end in found if start < end]

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


def _moving_chunk_bytes(trace: Trace) -> int:
    """The unit in which memory of a trace of ours can be mapped elsewhere, 0 if it cannot."""
    devices = trace.meta.get("devices", [])
    which = trace.device[0] if len(trace) else 0
    device = devices[which] if which < len(devices) else {}
    return 0 if device.get("fixed") else int(device.get("chunk_bytes") or 0)
