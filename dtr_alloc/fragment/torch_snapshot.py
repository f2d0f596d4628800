"""Reads PyTorch's memory snapshots as traces.

A snapshot (``torch.cuda.memory._dump_snapshot``) is a pickle, or JSON, of the present segments and
blocks and, with ``torch.cuda.memory._record_memory_history``, of the last events of each device.
That history may begin in the middle of a job: earlier blocks and segments are found in the present
segments and by following the events backwards. ``meta["unknown"]`` lists the gaps.

Upstream: torch/csrc/cuda/Module.cpp (the names in the pickle), c10/cuda/CUDACachingAllocator.cpp
(when events are recorded: sizes of alloc and free_requested are as asked for).
"""

from __future__ import annotations

import heapq
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from dtr_alloc import bounded
from dtr_alloc.bounded import shown
from dtr_alloc.fragment import plain_pickle
from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.traces.trace import (
    BEGINS_WITH_EVENTS,
    MOST_DEVICES,
    MOST_NAME_BYTES,
    MOST_TIME_NS,
    Kind,
    Trace,
    TraceError,
)

MOST_JSON_BYTES = 1 << 28
"""Of a snapshot as JSON: its shortest values take thirty times the memory of their text."""

STEP_ANNOTATION = "Optimizer.step"
"""A training step begins at the end of an annotation with this prefix."""

_SEGMENTS = {
    "segment_alloc": Kind.SEGMENT_ALLOCATE,
    "segment_map": Kind.SEGMENT_ALLOCATE,
    "segment_free": Kind.SEGMENT_FREE,
    "segment_unmap": Kind.SEGMENT_FREE,
}
_HEAD_BYTES = 64
_MOST_UNKNOWN = 1000
_MOST_RANGES = 1 << 16
_MOST_TEXT = 4096
_TORCH = re.compile(r"[/\\](torch|functorch|torchgen)[/\\]|<frozen |<string>")

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Value: TypeAlias = bool | int | float | str | None
_DeviceNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=MOST_DEVICES)]


class _Block(Struct):
    size: _Number
    state: str
    frames: Any = None
    # Older snapshots have sizes only.
    requested_size: _Number | None = None
    address: _Number | None = None


class _Segment(Struct):
    device: _DeviceNumber
    address: _Number
    total_size: _Number
    stream: _Number
    blocks: list[_Block]
    is_expandable: bool = False

    @property
    def end(self) -> int:
        return self.address + self.total_size

    def placed(self) -> Iterator[tuple[int, _Block]]:
        """The blocks with their addresses."""
        address = self.address
        for block in self.blocks:
            if block.address not in (None, address):
                raise TraceError(
                    f"the blocks of the segment at {self.address:#x} leave a gap at {address:#x}"
                )
            yield address, block
            address += block.size
        if self.blocks and address != self.end:
            raise TraceError(f"the blocks of the segment at {self.address:#x} do not fill it")


class _Event(Struct):
    action: Literal[
        "alloc", "free_requested", "free_completed", "oom", "segment_alloc", "segment_map",
        "segment_free", "segment_unmap", "snapshot", "workspace_snapshot", "user_defined",
    ]  # fmt: skip
    addr: _Number = 0
    size: _Number = 0
    stream: _Number = 0
    time_us: _Number = 0
    frames: Any = None


class _Annotation(Struct):
    device: _DeviceNumber
    time_us: _Number
    name: Any = ""
    stage: Any = ""


class _Snapshot(Struct):
    segments: list[_Segment]
    device_traces: Annotated[list[list[_Event]], Meta(max_length=MOST_DEVICES)] = field(
        default_factory=list
    )
    allocator_settings: dict[str, _Value | list[_Value] | dict[str, _Value]] = field(
        default_factory=dict
    )
    external_annotations: list[_Annotation] = field(default_factory=list)


class Row(NamedTuple):
    """An event of one device, before the devices' events are merged."""

    time_us: int
    kind: Kind
    address: int = 0
    size_bytes: int = 0
    stream: int = 0
    name: str = ""


def read(path: str | os.PathLike[str]) -> Trace:
    """Reads a snapshot: a pickle (plain_pickle.load) or JSON, plain or ``.gz``.

    Takes time and memory as plain_pickle.load(), or at most 9 GB for JSON of MOST_JSON_BYTES, and
    as Trace.validate() for its events.

    Raises TraceError, which names the file and the place in it, for any other or contradictory
    file; OSError if it cannot be opened.
    """
    try:
        return to_trace(load(path))
    except TraceError as error:
        if str(error).startswith(os.fspath(path)):
            raise
        raise TraceError(f"{os.fspath(path)}: {error}") from None


def load(path: str | os.PathLike[str]) -> Any:
    """The values in a file. Raises as read()."""
    with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
        is_json = _is_json(file.read(_HEAD_BYTES))
    if not is_json:
        return plain_pickle.load(path)
    try:
        with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
            return msgspec.json.decode(bounded.rest(file, MOST_JSON_BYTES))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{os.fspath(path)}: no JSON of a snapshot: {error}") from None


def is_head(head: bytes) -> bool:
    """Whether a file that begins so may be a snapshot: JSON, or a pickle."""
    return _is_json(head) or head.startswith(pickle.PROTO)


def _is_json(head: bytes) -> bool:
    return head.lstrip()[:1] in (b"[", b"{")


def to_trace(snapshot: Any) -> Trace:
    """The trace of a snapshot, as load() returns it, checked.

    ``free_requested`` is the FREE: the job lets go of the block then. If the allocator could reuse
    it only after other events (``free_completed``), a MARK "free completed" says when.

    Raises TraceError, which names the device and the event's index there.
    """
    if isinstance(snapshot, list):  # torch.cuda.memory_snapshot(): no history
        snapshot = {"segments": snapshot}
    try:
        found = msgspec.convert(snapshot, _Snapshot)
    except msgspec.ValidationError as error:
        raise TraceError(f"no memory snapshot of PyTorch: {error}") from None
    count = max([len(found.device_traces), *(segment.device + 1 for segment in found.segments)])
    devices = [_Device(number) for number in range(count)]
    for segment in found.segments:
        devices[segment.device].segments.append(segment)
    for device, events in zip(devices, found.device_traces, strict=False):
        device.events = events
    for device in devices:
        device.run()
    marks: list[list[Row]] = [[] for _ in devices]
    for annotation in found.external_annotations:
        if annotation.device < count:
            marks[annotation.device] += devices[annotation.device].marks_of(annotation)
    rows = [device.rows for device in devices]
    rows += [sorted(of_device, key=lambda row: row.time_us) for of_device in marks]
    meta: dict[str, Any] = {
        "source": "torch",
        "time_unit": "ns",
        "allocator_settings": found.allocator_settings,
        "begins_with": sum(device.blocks_at_begin for device in devices),
        "begins_with_segments": sum(device.segments_at_begin for device in devices),
        BEGINS_WITH_EVENTS: [
            device.blocks_at_begin + device.segments_at_begin for device in devices
        ],
    }
    unknown = [text for device in devices for text in device.unknown]
    if unknown:
        meta["unknown"] = unknown[:_MOST_UNKNOWN]
    trace = _merge(rows, meta, min((row.time_us for part in rows for row in part), default=0))
    trace.validate()
    return trace


def _merge(rows: list[list[Row]], meta: dict[str, Any], begin: int) -> Trace:
    trace = Trace(meta)
    numbers = {"": 0}
    name_bytes = 0
    devices = len(rows) // 2  # and as many lists of annotations

    def of(index: int) -> Iterator[tuple[int, int, int, Row]]:
        now = 0
        for number, row in enumerate(rows[index]):
            now = max(now, row.time_us - begin)
            if 1000 * now > MOST_TIME_NS:
                raise TraceError(
                    f"device {index % devices}: {row.time_us} us, {now} us after the first event; "
                    f"allowed: {MOST_TIME_NS // 1000} us after it"
                )
            yield now, index, number, row

    for now, index, _, row in heapq.merge(*map(of, range(len(rows)))):
        name = numbers.setdefault(row.name, len(numbers))
        if name == len(trace.names):
            trace.names.append(row.name)
            name_bytes += len(row.name.encode())
            if name_bytes > MOST_NAME_BYTES:
                raise TraceError(f"its names have more than {MOST_NAME_BYTES} bytes together")
        trace.add(
            row.kind,
            time_ns=1000 * now,
            address=row.address,
            size_bytes=row.size_bytes,
            stream=row.stream,
            device=index % devices,
            name=name,
        )
    return trace


class _Device:
    """One device's part of a snapshot."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.segments: list[_Segment] = []
        self.events: Sequence[_Event] = ()
        self.rows: list[Row] = []
        self.names = _Names()
        self.unknown: list[str] = []
        self.blocks_at_begin = self.segments_at_begin = 0

    def run(self) -> None:
        begin = self.events[0].time_us if self.events else 0
        ranges, whole = self.segments_before()
        for first, end in [*ranges, *whole]:
            self.rows.append(Row(begin, Kind.SEGMENT_ALLOCATE, first, end - first))
        self.rows.sort(key=lambda row: row.address)
        self.segments_at_begin = len(self.rows)
        before = self.blocks_before()
        self.rows += [row._replace(time_us=begin) for row in before]
        self.blocks_at_begin = len(before)
        if not self.events and self.segments:
            self.unknown.append(f"device {self.device}: everything before the snapshot: no history")
        elif before or self.segments_at_begin:
            self.unknown.append(
                f"device {self.device}: when and in which order what was there when the history "
                "begins was allocated"
            )
        self.follow()

    def segments_before(self) -> tuple[Ranges, list[tuple[int, int]]]:
        """The ranges of expandable segments, and the other segments, when the history begins."""
        ranges = Ranges()
        whole: dict[int, int] = {}
        for segment in self.segments:
            if segment.is_expandable:
                ranges.add(segment.address, segment.end)
                self.check(ranges)
            else:
                whole[segment.address] = segment.end
        for index, event in reversed(list(enumerate(self.events))):
            begin, end = event.addr, event.addr + event.size
            if event.action == "segment_alloc":
                if whole.pop(begin, None) is None:
                    raise TraceError(
                        f"device {self.device}, event {index}: the segment at {begin:#x} is "
                        "neither freed later nor there at the end"
                    )
            elif event.action == "segment_free":
                whole[begin] = end
            elif event.action == "segment_map":
                ranges.remove(begin, end)
            elif event.action == "segment_unmap":
                ranges.add(begin, end)
                self.check(ranges)
        return ranges, sorted(whole.items())

    def check(self, ranges: Ranges) -> None:
        # A change moves all that lie behind it.
        if len(ranges) > _MOST_RANGES:
            raise TraceError(
                f"device {self.device}: the memory of expandable segments is in more than "
                f"{_MOST_RANGES} pieces, the most that are read"
            )

    def blocks_before(self) -> list[Row]:
        """The blocks that were in use when the history begins, by address."""
        found: dict[int, Row] = {}
        seen: set[int] = set()
        for event in self.events:
            address = event.addr
            if event.action not in ("alloc", "free_requested", "free_completed"):
                continue
            if event.action == "free_requested" and address not in seen:
                found[address] = Row(0, Kind.ALLOCATE, address, event.size, event.stream)
            elif event.action == "free_completed" and address not in seen:
                self.unknown.append(
                    f"device {self.device}: when the block at {address:#x} was freed that others "
                    "still used when the history begins"
                )
            seen.add(address)
        for segment in self.segments:
            for address, block in segment.placed():
                if block.state == "active_allocated" and address not in seen:
                    size = block.size if block.requested_size is None else block.requested_size
                    name = self.names.of(block.frames)
                    found[address] = Row(0, Kind.ALLOCATE, address, size, segment.stream, name)
        return [found[address] for address in sorted(found)]

    def follow(self) -> None:
        """Appends the events as rows."""
        before: _Event | None = None
        for event in self.events:
            time, place = event.time_us, (event.addr, event.size, event.stream)
            if event.action in _SEGMENTS:
                self.rows.append(Row(time, _SEGMENTS[event.action], *place))
            elif event.action == "free_completed":
                if before is None or (before.action, before.addr) != ("free_requested", event.addr):
                    self.rows.append(Row(time, Kind.MARK, *place, "free completed"))
            elif event.action in ("alloc", "free_requested"):
                kind = Kind.ALLOCATE if event.action == "alloc" else Kind.FREE
                self.rows.append(Row(time, kind, *place, self.names.of(event.frames)))
            elif event.action == "oom":
                name = self.names.of(event.frames)
                self.rows.append(Row(time, Kind.OUT_OF_MEMORY, 0, *place[1:], name))
            else:
                self.rows.append(Row(time, Kind.MARK, name=event.action))
            before = event

    def marks_of(self, annotation: _Annotation) -> Iterator[Row]:
        """The rows of an annotation, as far as the history goes back."""
        time, name, stage = annotation.time_us, _text(annotation.name), _text(annotation.stage)
        if self.rows and time < self.rows[0].time_us:
            return
        if not name.startswith(STEP_ANNOTATION):
            yield Row(time, Kind.MARK, name=f"{stage} {name}")
        elif stage == "END":
            yield Row(time, Kind.STEP, name=name)


class _Names:
    """Short names of stacks: the innermost function outside of PyTorch, with its file and line; in
    a stack of PyTorch alone, the innermost; ``""`` without a stack."""

    def __init__(self) -> None:
        self._of_stack: dict[int, str] = {}  # a snapshot keeps one list for all that share it

    def of(self, stack: Any) -> str:
        if not isinstance(stack, list) or not stack:
            return ""
        if id(stack) not in self._of_stack:
            self._of_stack[id(stack)] = _name(stack)
        return self._of_stack[id(stack)]


def _name(stack: list[Any]) -> str:
    frames = [
        (_text(frame.get("name")), _text(frame.get("filename")), frame.get("line"))
        for frame in stack
        if isinstance(frame, dict)
    ]
    python = [frame for frame in frames if frame[1].endswith(".py")]
    chosen = next(
        (frame for frame in python if not _TORCH.search(frame[1])),
        next(iter(python or frames), None),
    )
    if chosen is None:
        return ""
    name, file, line = chosen
    file = file.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{name} ({file}:{shown(line) if isinstance(line, int) else 0})"


def _text(value: Any) -> str:
    """The first _MOST_TEXT characters of a text, with "?" for characters that no file can hold; ""
    for any other value. Without the cut, a text that a million frames share would be copied a
    million times."""
    if not isinstance(value, str):
        return ""
    return value[:_MOST_TEXT].encode(errors="replace").decode()
