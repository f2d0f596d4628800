"""Sets of addresses, as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Ranges [begin, end) that neither overlap nor touch. A change takes O(ranges)."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first >= last:
            return
        left, right = self._begins[first], self._ends[last - 1]
        begins = [left] * (left < begin) + [end] * (end < right)
        ends = [begin] * (left < begin) + [right] * (end < right)
        self._begins[first:last] = begins
        self._ends[first:last] = ends

    def cover(self, begin: int, end: int) -> bool:
        """Whether they contain [begin, end), which is not empty."""
        at = bisect_right(self._begins, begin) - 1
        return at >= 0 and end <= self._ends[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._begins, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._begins)
