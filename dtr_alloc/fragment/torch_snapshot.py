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
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from dtr_alloc import bounded
from dtr_alloc.bounded import shown
from dtr_alloc.fragment import plain_pickle, torch_frames
from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.fragment.torch_frames import text_of
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

KEY = "dtr_alloc"
"""The key of a trace's meta in a snapshot that torch_export wrote."""

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
_OTHERS = ("free_completed", "snapshot", "workspace_snapshot", "user_defined")
ACTIONS = ("alloc", "free_requested", "oom", *_SEGMENTS, *_OTHERS)
"""The kinds of a device's events."""


class Row(NamedTuple):
    """An event of one device, before the devices' events are merged."""

    time_us: int
    kind: Kind
    address: int = 0
    size_bytes: int = 0
    stream: int = 0
    name: str = ""


def read(path: str | os.PathLike[str]) -> Trace:
    """Reads a snapshot: a pickle of any protocol or JSON, plain or ``.gz``.

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


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The snapshot in a file: ``segments``, ``device_traces``, ``allocator_settings``,
    ``external_annotations``; their parts are not checked. Raises as read()."""
    with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
        is_json = _is_json(file.read(_HEAD_BYTES))
    found = _json(path) if is_json else plain_pickle.load(path)
    if isinstance(found, list):  # torch.cuda.memory_snapshot(): no history
        found = {"segments": found}
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise TraceError(
            f"{os.fspath(path)}: a {'JSON' if is_json else 'pickle'} of a {type(found).__name__} "
            "without a list 'segments' is no memory snapshot of PyTorch"
        )
    for key, kind in (
        ("device_traces", list),
        ("allocator_settings", dict),
        ("external_annotations", list),
    ):
        if not isinstance(found.setdefault(key, kind()), kind):
            raise TraceError(f"{os.fspath(path)}: {key!r} is no {kind.__name__}")
    return found


def is_head(head: bytes) -> bool:
    """Whether a file that begins so may be a snapshot: JSON, or a pickle."""
    # Pickles begin with PROTO, or before protocol 2 with a list or a dictionary.
    return _is_json(head) or head[:1] in (b"\x80", b"(", b"]", b"}")


def _is_json(head: bytes) -> bool:
    return head.lstrip()[:1] in (b"[", b"{")


def _json(path: str | os.PathLike[str]) -> Any:
    try:
        with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
            return msgspec.json.decode(bounded.rest(file, MOST_JSON_BYTES))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{os.fspath(path)}: no JSON of a snapshot: {error}") from None


def to_trace(snapshot: dict[str, Any]) -> Trace:
    """The trace of a snapshot from load(), checked.

    ``free_requested`` is the FREE: the job lets go of the block then. If the allocator could reuse
    it only after other events (``free_completed``), a MARK "free completed" says when.

    Raises TraceError, which names the device and the event's index there.
    """
    history = snapshot["device_traces"]
    segments = _by_device(snapshot["segments"], "segment")
    annotations = _by_device(snapshot["external_annotations"], "annotation")
    devices = max([len(history), *(device + 1 for device in segments)])
    if devices > MOST_DEVICES:
        what = "a segment is of" if len(history) < devices else "there is a trace of"
        raise TraceError(f"{what} device {devices - 1}; allowed: up to {MOST_DEVICES - 1}")
    found = [
        _Device(device, segments.get(device, []), history[device] if device < len(history) else [])
        for device in range(devices)
    ]
    for device in found:
        device.run()
    rows = [device.rows for device in found]
    # As far as the history goes back.
    is_ours = KEY in snapshot
    read = _our_annotations if is_ours else _annotations
    rows += [read(annotations.get(device.device, []), device) for device in found]
    meta: dict[str, Any] = {
        "source": "torch",
        "time_unit": "ns",
        "allocator_settings": snapshot["allocator_settings"],
        "begins_with": sum(device.blocks_at_begin for device in found),
        "begins_with_segments": sum(device.segments_at_begin for device in found),
        BEGINS_WITH_EVENTS: [device.blocks_at_begin + device.segments_at_begin for device in found],
    }
    ours = snapshot.get(KEY)
    if isinstance(ours, dict) and isinstance(ours.get("meta"), dict):
        meta = {**meta, **ours["meta"]}
    unknown = [text for device in found for text in device.unknown]
    if unknown:
        meta["unknown"] = unknown[:_MOST_UNKNOWN]
    # Ours count from the first event on; where no times were recorded, all are 0.
    times = [row.time_us for part in rows for row in part if row.time_us]
    trace = _merge(rows, meta, 0 if is_ours else min(times, default=0))
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


def _by_device(parts: list[Any], what: str) -> dict[int, list[tuple[str, Any]]]:
    """The parts of each device, in order, with their names for messages."""
    found: dict[int, list[tuple[str, Any]]] = {}
    for index, part in enumerate(parts):
        at = f"{what} {index}"
        found.setdefault(_number(part, "device", at), []).append((at, part))
    return found


def _annotations(annotations: list[tuple[str, Any]], device: _Device) -> list[Row]:
    begin = device.rows[0].time_us if device.rows else 0
    rows = []
    for at, one in annotations:
        time = _number(one, "time_us", at)
        if time < begin:
            continue
        name, stage = text_of(one, "name"), text_of(one, "stage")
        if name.startswith(STEP_ANNOTATION):
            if stage == "END":
                rows.append(Row(time, Kind.STEP, name=name))
        else:
            rows.append(Row(time, Kind.MARK, name=f"{stage} {name}"))
    rows.sort(key=lambda row: row.time_us)
    return rows


def _our_annotations(annotations: list[tuple[str, Any]], device: _Device) -> list[Row]:
    rows = []
    for at, one in annotations:
        time = _number(one, "time_us", at)
        kind, _, rest = text_of(one, "name").partition(" ")
        size, _, name = rest.partition(" ")
        if one.get("stage") != "START":
            continue
        # 20 digits: of 64 bits.
        is_size = size.isascii() and size.isdecimal() and len(size) <= 20
        if kind not in Kind.__members__ or not is_size or int(size) >= 2**64:
            raise TraceError(f"{at}: {shown(one.get('name'))} is none that dtr_alloc writes")
        rows.append(Row(time, Kind[kind], 0, int(size), name=name))
    return rows


def _number(of: Any, key: str, at: str) -> int:
    value = of.get(key) if isinstance(of, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise TraceError(f"{at}: {key!r} is {shown(value)}; allowed: a number of 64 bits")
    return value


def _stretch(of: Any, address: str, size: str, at: str) -> tuple[int, int]:
    begin = _number(of, address, at)
    end = begin + _number(of, size, at)
    if end >= 2**64:
        raise TraceError(f"{at}: {end - begin} bytes at {begin:#x}; allowed: addresses of 64 bits")
    return begin, end


class _Device:
    """One device's part of a snapshot."""

    def __init__(self, device: int, segments: list[tuple[str, Any]], events: Any) -> None:
        self.device = device
        self.segments = segments
        if not isinstance(events, list):
            raise TraceError(f"the trace of device {device} is no list")
        self.events = events
        self.rows: list[Row] = []
        self.names = torch_frames.Names()
        self.unknown: list[str] = []
        self.blocks_at_begin = self.segments_at_begin = 0

    def at(self, index: int) -> str:
        return f"device {self.device}, event {index}"

    def time_us(self, index: int) -> int:
        event = self.events[index]
        return _number(event, "time_us", self.at(index)) if "time_us" in event else 0

    def run(self) -> None:
        actions = []
        for index, event in enumerate(self.events):
            action = event.get("action") if isinstance(event, dict) else None
            if not isinstance(action, str) or action not in ACTIONS:
                raise TraceError(
                    f"{self.at(index)}: the action is {shown(action)}; "
                    f"allowed: {', '.join(ACTIONS)}"
                )
            actions.append(action)
        begin = self.time_us(0) if self.events else 0
        ranges, whole = self.segments_before(actions)
        for first, end in [*ranges, *whole]:
            self.rows.append(Row(begin, Kind.SEGMENT_ALLOCATE, first, end - first))
        self.rows.sort(key=lambda row: row.address)
        self.segments_at_begin = len(self.rows)
        before = self.blocks_before(actions)
        self.rows += [row._replace(time_us=begin) for row in before]
        self.blocks_at_begin = len(before)
        if not self.events and self.segments:
            self.unknown.append(f"device {self.device}: everything before the snapshot: no history")
        elif before or self.segments_at_begin:
            self.unknown.append(
                f"device {self.device}: when and in which order what was there when the history "
                "begins was allocated"
            )
        self.follow(actions)

    def segments_before(self, actions: list[str]) -> tuple[Ranges, list[tuple[int, int]]]:
        """The ranges of expandable segments, and the other segments, when the history begins."""
        ranges = Ranges()
        whole: dict[int, int] = {}
        for at, segment in self.segments:
            begin, end = _stretch(segment, "address", "total_size", at)
            if segment.get("is_expandable"):
                ranges.add(begin, end)
                self.check(ranges)
            else:
                whole[begin] = end
        for index in range(len(actions) - 1, -1, -1):
            action, event = actions[index], self.events[index]
            if action not in _SEGMENTS:
                continue
            begin, end = _stretch(event, "addr", "size", self.at(index))
            if action == "segment_alloc":
                if whole.pop(begin, None) is None:
                    raise TraceError(
                        f"{self.at(index)}: the segment at {begin:#x} is neither freed later nor "
                        "there at the end"
                    )
            elif action == "segment_free":
                whole[begin] = end
            elif action == "segment_map":
                ranges.remove(begin, end)
            else:
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

    def blocks_before(self, actions: list[str]) -> list[Row]:
        """The blocks that were in use when the history begins, by address."""
        found: dict[int, Row] = {}
        seen: set[int] = set()
        for index, (action, event) in enumerate(zip(actions, self.events, strict=True)):
            if action not in ("alloc", "free_requested", "free_completed"):
                continue
            address = _number(event, "addr", self.at(index))
            if action == "free_requested" and address not in seen:
                size = _number(event, "size", self.at(index))
                stream = _number(event, "stream", self.at(index))
                found[address] = Row(0, Kind.ALLOCATE, address, size, stream)
            elif action == "free_completed" and address not in seen:
                self.unknown.append(
                    f"device {self.device}: when the block at {address:#x} was freed that others "
                    "still used when the history begins"
                )
            seen.add(address)
        for of, segment in self.segments:
            stream = _number(segment, "stream", of)
            for address, block in _blocks(segment, of):
                if block.get("state") == "active_allocated" and address not in seen:
                    key = "requested_size" if "requested_size" in block else "size"
                    size = _number(block, key, f"the block at {address:#x}")
                    name = self.names.of(block)
                    found[address] = Row(0, Kind.ALLOCATE, address, size, stream, name)
        return [found[address] for address in sorted(found)]

    def follow(self, actions: list[str]) -> None:
        """Appends the events as rows."""
        rows = self.rows
        for index, (action, event) in enumerate(zip(actions, self.events, strict=True)):
            at = self.at(index)
            time = self.time_us(index)
            if action in ("snapshot", "workspace_snapshot", "user_defined"):
                rows.append(Row(time, Kind.MARK, name=action))
                continue
            size, stream = _number(event, "size", at), _number(event, "stream", at)
            if action == "oom":
                rows.append(Row(time, Kind.OUT_OF_MEMORY, 0, size, stream, self.names.of(event)))
                continue
            address = _number(event, "addr", at)
            if action in _SEGMENTS:
                rows.append(Row(time, _SEGMENTS[action], address, size, stream))
            elif action == "free_completed":
                before = self.events[index - 1] if index else event
                if before["action"] != "free_requested" or before["addr"] != address:
                    rows.append(Row(time, Kind.MARK, address, size, stream, "free completed"))
            else:
                kind = Kind.ALLOCATE if action == "alloc" else Kind.FREE
                row = Row(time, kind, address, size, stream, self.names.of(event))
                marks = [
                    row._replace(kind=of, address=where)
                    for of, where in torch_frames.marks(event, kind, address)
                ]
                # An allocation comes before its marks, a free after.
                rows += [row, *marks] if kind == Kind.ALLOCATE else [*marks, row]


def _blocks(segment: dict[str, Any], of: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The blocks of a segment with their addresses (older snapshots have sizes only)."""
    blocks = segment.get("blocks")
    if not isinstance(blocks, list):
        raise TraceError(f"{of} has no list 'blocks'")
    address = segment["address"]
    for index, block in enumerate(blocks):
        at = f"block {index} of the segment at {segment['address']:#x}"
        size = _number(block, "size", at)
        if block.get("address", address) != address:
            raise TraceError(f"{at}: it does not begin where the one before ends")
        yield address, block
        address += size
    if blocks and address != segment["address"] + segment["total_size"]:
        raise TraceError(f"the blocks of the segment at {segment['address']:#x} do not fill it")
