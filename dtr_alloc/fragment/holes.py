"""The free ranges of a heap, ordered by address and merged where they touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence


class Holes:
    """Ranges [start, end) of addresses that are free.

    Attributes:
        total_bytes: of all holes.
        sum_squares: of the holes' sizes, in bytes².
        walls: addresses across which holes do not merge, such as the borders of segments that
            came from different calls of ``cudaMalloc``.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self.sum_squares = 0
        self.walls: set[int] = set()
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._sizes: list[int] = []  # ascending

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def largest_bytes(self) -> int:
        return self._sizes[-1] if self._sizes else 0

    def sizes(self) -> list[int]:
        """In bytes, ascending."""
        return list(self._sizes)

    def ranges(self) -> list[tuple[int, int]]:
        """Starts and ends, ascending."""
        return [(start, self._ends[start]) for start in self._starts]

    def first_fit(self, size: int, before: int | None = None) -> int | None:
        """The lowest address of a hole of at least that size (that starts below ``before``)."""
        for start in self._starts:
            if before is not None and start >= before:
                return None
            if self._ends[start] - start >= size:
                return start
        return None

    def add(self, start: int, end: int) -> None:
        """Frees [start, end), no byte of which may be free already."""
        at = bisect_left(self._starts, start)
        if end not in self.walls and end in self._ends:
            merged = end
            end = self._ends[merged]
            self._drop(at, merged)
        if at and start not in self.walls:
            before = self._starts[at - 1]
            if self._ends[before] == start:
                self._drop(at - 1, before)
                start, at = before, at - 1
        self._insert(at, start, end)

    def remove(self, start: int, end: int) -> int:
        """Takes [start, end) out of all holes and returns how many bytes of it were free."""
        taken = 0
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self._starts) and self._starts[at] < end:
            low = self._starts[at]
            high = self._ends[low]
            if high <= start:
                at += 1
                continue
            self._drop(at, low)
            taken += min(high, end) - max(low, start)
            if low < start:
                self._insert(at, low, start)
                at += 1
            if end < high:
                self._insert(at, end, high)
                break
        return taken

    def _insert(self, at: int, start: int, end: int) -> None:
        size = end - start
        self._starts.insert(at, start)
        self._ends[start] = end
        insort(self._sizes, size)
        self.total_bytes += size
        self.sum_squares += size * size

    def _drop(self, at: int, start: int) -> None:
        size = self._ends.pop(start) - start
        del self._starts[at]
        del self._sizes[bisect_left(self._sizes, size)]
        self.total_bytes -= size
        self.sum_squares -= size * size


def common_bytes(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> int:
    """How many bytes lie in a range of both; each ascends."""
    total = i = k = 0
    while i < len(some) and k < len(others):
        (a, b), (c, d) = some[i], others[k]
        total += max(0, min(b, d) - max(a, c))
        if b < d:
            i += 1
        else:
            k += 1
    return total
