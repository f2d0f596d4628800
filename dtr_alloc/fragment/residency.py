"""The blocks of a trace: their addresses, and when each begins and ends.

A content that moves, or is evicted and comes back, has several blocks. The map of the heap draws
each as a rectangle of time and address.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dtr_alloc.traces.trace import Trace

ALLOCATED, REMATERIALIZED, MOVED_IN = range(3)
"""The beginnings of a block: DTR_BEGAN_... of dtr/allocator_models.h."""
FREED, EVICTED, MOVED_OUT, STAYED = range(4)
"""The ends of a block: DTR_ENDED_... STAYED: the trace ends first."""


@dataclass
class Residencies:
    """Columns of equal length, in the order of their beginnings.

    Attributes:
        start: the event that began the block.
        end: the event that ended it, or the number of events.
        address: of its first byte.
        size_bytes: with rounding if the event that ends the block tells it, else as asked for.
        name: index in the trace's names.
        began: ALLOCATED, REMATERIALIZED or MOVED_IN.
        ended: FREED, EVICTED, MOVED_OUT or STAYED.
    """

    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    size_bytes: array[int] = field(default_factory=lambda: array("Q"))
    name: array[int] = field(default_factory=lambda: array("I"))
    began: array[int] = field(default_factory=lambda: array("B"))
    ended: array[int] = field(default_factory=lambda: array("B"))

    def __len__(self) -> int:
        return len(self.start)


class Segment(NamedTuple):
    """Physical memory that an allocator took from the device, or gave back, at an event."""

    event: int
    address: int
    size_bytes: int
    taken: bool


def placed(trace: Trace, addresses: Sequence[int], failed_event: int | None) -> Residencies:
    """The blocks of a model that ran over a valid trace of one device.

    Args:
        addresses: of each allocation, in the order of Trace.lifetimes(). Empty allocations and
            those that were not reached do not count.
        failed_event: where the run ended; None: at the end.
    """
    found = Residencies()
    last = len(trace) if failed_event is None else failed_event
    lifetimes = trace.lifetimes()
    columns = zip(lifetimes.start, lifetimes.end, lifetimes.size_bytes, addresses, strict=True)
    for start, end, size, address in columns:
        if not size or start >= last:
            continue
        is_freed = 0 <= end < last
        found.start.append(start)
        found.end.append(end if is_freed else last)
        found.address.append(address)
        found.size_bytes.append(size)
        found.name.append(trace.name[start])
        found.began.append(ALLOCATED)
        found.ended.append(FREED if is_freed else STAYED)
    return found
