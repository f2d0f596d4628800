"""Traces in memory: the events of an allocator, a row each, as columns of plain numbers.

Traces come from our pools (dtr_alloc.traces.recording), from PyTorch's memory snapshots and from
RMM's logs; they are measured, run through models and exported. docs/reference/trace-format.md is
the manual of the events.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from operator import add
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

MOST_EVENTS = 1 << 25
"""Of a trace that is read. They take some ten gigabytes in all, and a minute to process."""

MOST_NAME_BYTES = 1 << 26
"""Of all its names, in UTF-8."""

MOST_DEVICES = 256
MOST_TIME_NS = 2**62
MOST_BYTES = 2**60
"""Of all blocks of a trace together, and of all its segments, so that sums stay within 64 bits for
any rounding."""


BEGINS_WITH_EVENTS = "begins_with_events"
"""In a trace's meta: by device, the number of its first events that stand for blocks and segments
from before the recording."""


class TraceError(ValueError):
    """A trace is contradictory, or its file cannot be read: the message says where and why."""


class Kind(IntEnum):
    """The kind of an event. Address and size are those of the block, unless stated otherwise."""

    ALLOCATE = 0
    """A block begins to be in use. Size: as asked for."""
    FREE = 1
    """The block at this address is free."""
    EVICT = 2
    """The next event of this address, its FREE, is an eviction."""
    REMATERIALIZE = 3
    """An evicted content is back in the block at this address, which is in use already."""
    MOVE_FROM = 4
    """A content moved from this block; MOVE_TO is the next event of the device. The FREE of
    this block is the next event of its address."""
    MOVE_TO = 5
    """To this block, which is in use already."""
    ROOM = 6
    """A request of this size did not fit, and room is asked for. No address."""
    OUT_OF_MEMORY = 7
    """A request of this size failed. No address."""
    SEGMENT_ALLOCATE = 8
    """Physical memory came to these addresses."""
    SEGMENT_FREE = 9
    """Physical memory left these addresses."""
    BUDGET = 10
    """The size is the budget from here on; 2**64 - 1: none. No address."""
    STEP = 11
    """A training step begins."""
    MARK = 12
    """Described by its name."""


class Column(NamedTuple):
    """A column of a trace: its attribute, its array's type, and the bytes of a number."""

    name: str
    typecode: str
    width: int


COLUMNS = (
    Column("kind", "B", 1),
    Column("time_ns", "q", 8),
    Column("address", "Q", 8),
    Column("size_bytes", "Q", 8),
    Column("stream", "Q", 8),
    Column("device", "H", 2),
    Column("name", "I", 4),
)


class _DeviceMeta(Struct):
    chunk_bytes: Annotated[int, Meta(ge=0, le=MOST_BYTES)] | None = None


class _Meta(Struct):
    """The values of a trace's meta that are read here; there may be more."""

    source: str | None = None
    devices: list[_DeviceMeta] = msgspec.field(default_factory=list)
    begins_with_events: list[Annotated[int, Meta(ge=0)]] = msgspec.field(default_factory=list)


class Lifetimes(NamedTuple):
    """The allocations of a trace, in order.

    Attributes:
        start: the index of the event that allocates.
        end: that of the event that frees, -1 if none does.
        size_bytes: as asked for.
        stream: of the allocation.
        device: of the allocation.
    """

    start: array[int]
    end: array[int]
    size_bytes: array[int]
    stream: array[int]
    device: array[int]


@dataclass
class Trace:
    """The events of an allocator. The columns are of equal length, one row an event.

    Attributes:
        meta: ``source`` (``dtr_alloc``, ``torch``, ``rmm``), ``time_unit`` (``ns``) and other
            values of the source; plain JSON.
        names: strings that events refer to; names[0] is ``""``.
        kind: one of Kind.
        time_ns: since the first event; never decreasing.
        address: where; 0 where there is none.
        size_bytes: see Kind.
        stream: the stream's number in its program, 0 for the default one.
        device: the number of the device.
        name: index in names: the operator, or another text for people.
    """

    meta: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=lambda: [""])
    kind: array[int] = field(default_factory=lambda: array("B"))
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    size_bytes: array[int] = field(default_factory=lambda: array("Q"))
    stream: array[int] = field(default_factory=lambda: array("Q"))
    device: array[int] = field(default_factory=lambda: array("H"))
    name: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.kind)

    def add(
        self,
        kind: int,
        *,
        time_ns: int = 0,
        address: int = 0,
        size_bytes: int = 0,
        stream: int = 0,
        device: int = 0,
        name: int = 0,
    ) -> None:
        """Appends an event, of numbers that the columns can hold."""
        row = (kind, time_ns, address, size_bytes, stream, device, name)
        for column, number in zip(self.columns(), row, strict=True):
            column.append(number)

    def columns(self) -> list[array[int]]:
        return [getattr(self, column.name) for column in COLUMNS]

    def select(self, rows: Iterable[int]) -> Trace:
        """The trace of these rows, in this order; meta and names are shared."""
        chosen = list(rows)
        columns = (array(of.typecode, [of[row] for row in chosen]) for of in self.columns())
        return Trace(self.meta, self.names, *columns)

    def start_rows(self, device: int) -> int:
        """The number of rows up to the last one that stands for a block or segment of a device from
        before the recording; 0 if there are none, or if the source does not say."""
        told = self.meta.get(BEGINS_WITH_EVENTS, [])
        left = told[device] if device < len(told) else 0
        for row, of in enumerate(self.device):
            if left == 0:
                return row
            left -= of == device
        return len(self)

    def validate(self) -> None:
        """Checks all promises of docs/reference/trace-format.md, and the limits above.

        Takes about a microsecond and at most 300 bytes for each event.

        Raises TraceError, which names the event's index and the fault.
        """
        self._validate_columns()  # before others look at them
        self._validate_meta()
        self._validate_sizes()
        before = 0
        for index, time in enumerate(self.time_ns):
            if time < before:
                raise TraceError(
                    f"event {index} is at {time} ns, before event {index - 1} at {before} ns; "
                    "allowed: times from 0 that never decrease"
                )
            before = time
        if before > MOST_TIME_NS:
            raise TraceError(f"the last event is at {before} ns; allowed: up to 2**62")
        _Follower(self).run()

    def lifetimes(self) -> Lifetimes:
        """Each allocation with its end, in the order of allocations.

        A block that moved is one allocation: from its first allocation to the end of its last
        block. Raises TraceError as validate() for columns that are none, and for events without a
        partner.
        """
        self._validate_columns()
        return _Follower(self).run()

    def _validate_columns(self) -> None:
        lengths = {column.name: len(getattr(self, column.name)) for column in COLUMNS}
        if len(set(lengths.values())) > 1:
            raise TraceError(f"the columns have different lengths: {lengths}")
        for column in COLUMNS:
            found = getattr(self, column.name)
            if not isinstance(found, array) or found.typecode != column.typecode:
                raise TraceError(f"the column {column.name} is no array of {column.typecode!r}")
        if not self.names or self.names[0] != "":
            raise TraceError(f"names[0] is {self.names[:1]!r}; allowed: the empty string")
        if not len(self):
            return
        if len(self) > MOST_EVENTS:
            raise TraceError(f"there are {len(self)} events; allowed: up to {MOST_EVENTS}")
        for column_name, what, limit in (
            ("device", "is of device", MOST_DEVICES),
            ("kind", "is of kind", len(Kind)),
            ("name", "has name", len(self.names)),
        ):
            numbers = getattr(self, column_name)
            if max(numbers) >= limit:
                index = next(i for i, number in enumerate(numbers) if number >= limit)
                raise TraceError(
                    f"event {index} {what} {numbers[index]}; allowed: 0 to {limit - 1}"
                )

    def _validate_meta(self) -> None:
        try:
            msgspec.convert(self.meta, _Meta)
        except msgspec.ValidationError as error:
            raise TraceError(f"the meta: {error}") from None

    def _validate_sizes(self) -> None:
        """Addresses end within 64 bits, and sums of sizes do."""
        for kinds, what in (
            ((Kind.ALLOCATE, Kind.FREE), "blocks"),
            ((Kind.SEGMENT_ALLOCATE, Kind.SEGMENT_FREE), "segments"),
        ):
            is_one = bytes(kind in kinds for kind in range(256))
            chosen = self.kind.tobytes().translate(is_one)
            if sum(compress(self.size_bytes, chosen)) > 2 * MOST_BYTES:
                raise TraceError(
                    f"the sizes of all {what} add up to more than {MOST_BYTES} bytes, the most "
                    "that are read"
                )
            ends = map(add, compress(self.address, chosen), compress(self.size_bytes, chosen))
            if max(ends, default=0) >= 2**64:
                rows = zip(self.address, self.size_bytes, chosen, strict=True)
                index = next(
                    i for i, (at, size, is_of) in enumerate(rows) if is_of and at + size >= 2**64
                )
                raise TraceError(
                    f"event {index} is of {self.size_bytes[index]} bytes at "
                    f"{self.address[index]:#x}; allowed: addresses of 64 bits"
                )


class _Follower:
    """Pairs the events of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.live: dict[int | tuple[int, int], int] = {}  # by place: index in the lists below
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.dropped: set[int] = set()  # allocations that only continue another one
        self.expected: dict[int | tuple[int, int], int] = {}  # by place: the mark before its FREE
        self.moving: dict[int, int] = {}  # by device: the MOVE_FROM whose MOVE_TO is due

    def run(self) -> Lifetimes:
        trace = self.trace
        live, starts, ends = self.live, self.starts, self.ends
        expected, moving = self.expected, self.moving
        columns = zip(trace.kind, trace.address, trace.device, strict=True)
        for index, (kind, address, device) in enumerate(columns):
            place = (device, address) if device else address
            if moving and device in moving and kind != Kind.MOVE_TO:
                raise self.error(moving[device], f"no MOVE_TO follows it: event {index} does")
            if kind == 0:
                if place in live:
                    raise self.error(
                        index,
                        f"a block is in use there since event {starts[live[place]]}",
                    )
                live[place] = len(starts)
                starts.append(index)
                ends.append(-1)
            elif kind == 1:
                if expected:
                    expected.pop(place, None)
                block = live.pop(place, None)
                if block is None:
                    raise self.error(index, "no block is in use there")
                if block >= 0:
                    ends[block] = index
            elif kind <= Kind.MOVE_TO:
                self.mark(index, kind, place, device)
        if moving:
            raise self.error(next(iter(moving.values())), "no MOVE_TO follows it: the trace ends")
        return self.result()

    def mark(self, index: int, kind: int, place: int | tuple[int, int], device: int) -> None:
        live = self.live
        if place not in live:
            raise self.error(index, "no block is in use there")
        if place in self.expected:
            raise self.error(
                index, f"the FREE that event {self.expected[place]} announces must come first"
            )
        if kind == Kind.EVICT:
            self.expected[place] = index
        elif kind == Kind.MOVE_FROM:
            self.expected[place] = index
            self.moving[device] = index
        elif kind == Kind.MOVE_TO:
            if device not in self.moving:
                raise self.error(index, "no MOVE_FROM stands before it")
            begun = self.moving.pop(device)
            source = self.trace.address[begun]
            old = (device, source) if device else source
            moved = live[old]
            self.dropped.add(live[place])
            live[place] = moved
            live[old] = -1  # its FREE ends nothing

    def error(self, index: int, reason: str) -> TraceError:
        kind = Kind(self.trace.kind[index]).name
        where = f"{kind} of {self.trace.address[index]:#x}"
        if device := self.trace.device[index]:
            where += f" on device {device}"
        return TraceError(f"event {index}, {where}: {reason}")

    def result(self) -> Lifetimes:
        trace, starts, ends = self.trace, self.starts, self.ends
        if self.dropped:
            kept = [block for block in range(len(starts)) if block not in self.dropped]
            starts = [starts[block] for block in kept]
            ends = [ends[block] for block in kept]
        columns = (trace.size_bytes, trace.stream, trace.device)
        of_starts = (array(of.typecode, [of[start] for start in starts]) for of in columns)
        return Lifetimes(array("q", starts), array("q", ends), *of_starts)
