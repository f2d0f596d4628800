"""The free ranges of an arena, ordered by address and merged where they touch."""

from __future__ import annotations

from bisect import bisect_left


class Holes:
    """Ranges [start, end) of addresses that are free."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def first_fit(self, size: int) -> int | None:
        """The lowest address of a hole of at least that size."""
        for start, end in zip(self._starts, self._ends, strict=True):
            if end - start >= size:
                return start
        return None

    def add(self, start: int, end: int) -> None:
        """Frees [start, end), no byte of which may be free already."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._ends.pop(at)
            del self._starts[at]
        if at and self._ends[at - 1] == start:
            self._ends[at - 1] = end
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)

    def take(self, start: int, size: int) -> None:
        """Takes the low end of the hole that starts there and is at least that large."""
        at = bisect_left(self._starts, start)
        self._starts[at] += size
        if self._starts[at] == self._ends[at]:
            del self._starts[at], self._ends[at]
