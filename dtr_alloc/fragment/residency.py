"""Where each block of a trace lay, and from when to when.

An allocation that moves, or is evicted and comes back, has several blocks. Each is a rectangle of
time and address: what the map of the heap draws.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtr_alloc.traces.trace import Trace

ALLOCATED, REMATERIALIZED, MOVED_IN = range(3)
"""How a block began: DTR_BEGAN_... of dtr/allocator_models.h."""
FREED, EVICTED, MOVED_OUT, STAYED = range(4)
"""How a block ended: DTR_ENDED_... STAYED: the trace ends first."""


@dataclass
class Residencies:
    """Columns of equal length, in the order of their beginnings.

    Attributes:
        start: the event that began it.
        end: the event that ended it; the number of the trace's events if none did.
        address: of its first byte.
        size_bytes: of the block, rounding included, where the event that ends it says that; what
            was asked for otherwise.
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


def placed(trace: Trace, addresses: Sequence[int], failed_event: int | None) -> Residencies:
    """The blocks of a model run over a valid trace of one device.

    Args:
        addresses: of each allocation, in the order of Trace.lifetimes(); those of sizes 0 and those
            that were not reached do not count.
        failed_event: where the run ended, None at the end.
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
