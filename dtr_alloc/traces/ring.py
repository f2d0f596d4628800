"""Keeps the last events of a recording in memory, and writes them once a request has failed.

The file is a trace like any other (docs/reference/trace-format.md): it begins with the blocks and
segments from before the first kept event, and ends with the request.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dtr_alloc.traces.trace import BEGINS_WITH_EVENTS, COLUMNS, Kind
from dtr_alloc.traces.trace_file import TraceWriter

LEAST_EVENTS = 1 << 18
"""The least number of kept events, if there are so many. They take ten megabytes."""

Columns = Sequence["array[int]"]


class Ring:
    """Replaces a TraceWriter, and writes nothing unless a request fails.

    Args:
        path: the file.
        meta: of the trace.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self.is_written = False
        self.meta = meta
        self._names = {"": 0}
        self._parts: deque[list[array[int]]] = deque()
        self._events = 0
        self._before = _Present([of["chunk_bytes"] for of in meta["devices"]])

    def name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def write(self, columns: Columns) -> None:
        """Keeps events. The first failed request writes the file; later events do not count. Raises
        OSError as the disk does."""
        if self.is_written:
            return
        kinds = columns[0]
        has_failed = Kind.OUT_OF_MEMORY in kinds
        end = kinds.index(Kind.OUT_OF_MEMORY) + 1 if has_failed else len(kinds)
        self._parts.append([column[:end] for column in columns])
        self._events += end
        while self._parts and self._events - len(self._parts[0][0]) >= LEAST_EVENTS:
            self._forget_first()
        if has_failed:
            self.is_written = True
            self._write_file()

    def _forget_first(self) -> None:
        part = self._parts.popleft()
        self._before.follow(part)
        self._events -= len(part[0])
        # Of a move whose first half is gone.
        if self._parts and self._parts[0][0][:1] == array("B", [Kind.MOVE_TO]):
            self._before.follow([column[:1] for column in self._parts[0]])
            self._parts[0] = [column[1:] for column in self._parts[0]]
            self._events -= 1

    def _write_file(self) -> None:
        begin_ns = self._parts[0][1][0]
        start = [array(column.typecode) for column in COLUMNS]
        for row in self._before.events():
            for column, number in zip(start, row, strict=True):
                column.append(number)
        counts = [start[5].count(device) for device in range(len(self.meta["devices"]))]
        meta = {**self.meta, BEGINS_WITH_EVENTS: counts}
        if "began_unix_ns" in meta:
            meta["began_unix_ns"] += begin_ns
        with TraceWriter(self.path, meta) as writer:
            for text in self._names:
                writer.name(text)
            writer.write(start)
            for part in self._parts:
                part[1] = array("q", [at - begin_ns for at in part[1]])
                writer.write(part)
        print(
            f"dtr_alloc: out of memory; the last {self._events:,} events are in {self.path} "
            f"(dtr-alloc fragment report {self.path})",
            file=sys.stderr,
        )

    def close(self, end: dict[str, Any]) -> None:
        """Does nothing, as leave() and abandon()."""

    def leave(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class _Present:
    """The budgets, memory and blocks of pools at one moment."""

    def __init__(self, chunk_bytes: Sequence[int]) -> None:
        self._chunk_bytes = chunk_bytes
        self._budgets: dict[int, int] = {}
        self._chunks: list[set[int]] = [set() for _ in chunk_bytes]
        self._blocks: dict[tuple[int, int], tuple[int, int, int]] = {}  # size, stream, name
        self._moving: tuple[int, int] = (0, 0)

    def follow(self, columns: Columns) -> None:
        """Applies these events."""
        for kind, _, address, size, stream, device, name in zip(*columns, strict=True):
            place = device, address
            if kind == Kind.ALLOCATE:
                self._blocks[place] = size, stream, name
            elif kind == Kind.FREE:
                self._blocks.pop(place, None)
            elif kind == Kind.MOVE_FROM:
                self._moving = place
            elif kind == Kind.MOVE_TO:  # the content keeps its name
                size, stream, _ = self._blocks[place]
                self._blocks[place] = size, stream, self._blocks[self._moving][2]
            elif kind in (Kind.SEGMENT_ALLOCATE, Kind.SEGMENT_FREE):
                chunks = range(address, address + size, self._chunk_bytes[device])
                of_device = self._chunks[device]
                is_new = kind == Kind.SEGMENT_ALLOCATE
                (of_device.update if is_new else of_device.difference_update)(chunks)
            elif kind == Kind.BUDGET:
                self._budgets[device] = size

    def events(self) -> Iterator[tuple[int, ...]]:
        """Rows that stand for the present state, at time 0."""
        for device, budget in self._budgets.items():
            yield Kind.BUDGET, 0, 0, budget, 0, device, 0
        for device, chunks in enumerate(self._chunks):
            for begin, end in _stretches(sorted(chunks), self._chunk_bytes[device]):
                yield Kind.SEGMENT_ALLOCATE, 0, begin, end - begin, 0, device, 0
        for (device, address), (size, stream, name) in sorted(self._blocks.items()):
            yield Kind.ALLOCATE, 0, address, size, stream, device, name


def _stretches(chunks: Sequence[int], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Merges neighboring chunks."""
    places = enumerate(chunks)
    for _, stretch in groupby(places, lambda place: place[1] - place[0] * chunk_bytes):
        side_by_side = [chunk for _, chunk in stretch]
        yield side_by_side[0], side_by_side[-1] + chunk_bytes
