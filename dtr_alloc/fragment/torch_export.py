"""Writes traces as memory snapshots for PyTorch's memory viewer (pytorch.org/memory_viz).

The viewer computes one moment from another by undoing events, so the events must be consistent:
each free is requested and then completed, each block is in a segment while it is in use, and the
segments at the end are the result of all events. If a trace does not describe its segments, each
range of addresses with blocks is one segment.

Evictions, moves and recomputations are named twice: in ``user_metadata``, which newer viewers show,
and as the innermost frame of the event. Events that PyTorch does not have (steps, budgets, requests
for room, marks) are annotations at their times. Upstream: torch/cuda/_memory_viz.py,
torch/utils/viz/MemoryViz.js.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from dtr_alloc import output_file
from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.fragment.torch_snapshot import STEP_ANNOTATION
from dtr_alloc.traces.trace import Kind, Trace

PROTOCOL = 4
_GRAIN = 512
_SEGMENT = 2 << 20
_ANNOTATIONS = (Kind.ROOM, Kind.BUDGET, Kind.STEP, Kind.MARK)


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a checked trace (Trace.validate) as a snapshot. Raises OSError as the disk does."""
    output_file.write(Path(path), pickle.dumps(to_snapshot(trace), PROTOCOL))


def to_snapshot(trace: Trace) -> dict[str, Any]:
    """The snapshot of a checked trace: numbers, texts, lists and dictionaries."""
    made = [_Device(trace, device) for device in range(max(trace.device, default=0) + 1)]
    for index, device_number in enumerate(trace.device):
        made[device_number].event(index)
    return {
        "segments": [segment for device in made for segment in device.segments()],
        "device_traces": [device.events for device in made],
        "allocator_settings": trace.meta.get("allocator_settings", {}),
        "external_annotations": [one for device in made for one in device.annotations],
    }


class _Device:
    """One device's part of a snapshot."""

    def __init__(self, trace: Trace, device: int) -> None:
        self.trace = trace
        self.device = device
        self.events: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.memory = Ranges()
        self.live: dict[int, dict[str, Any]] = {}  # by address: the event that allocated
        self.marks: dict[int, tuple[str, str]] = {}  # by address: of its next FREE
        self.moving = 0
        self.frames: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        self.begin()

    def begin(self) -> None:
        """Adds segments for the blocks if the trace's own segments do not contain them."""
        trace, said, used = self.trace, Ranges(), Ranges()
        is_told = True
        rows = zip(trace.kind, trace.device, trace.address, trace.size_bytes, strict=True)
        for kind, device, address, size in rows:
            if device != self.device:
                continue
            if kind == Kind.SEGMENT_ALLOCATE:
                said.add(address, address + size)
            elif kind == Kind.SEGMENT_FREE:
                said.remove(address, address + size)
            elif kind == Kind.ALLOCATE:
                is_told = is_told and said.cover(address, address + max(size, 1))
                end = -(-(address + max(size, 1)) // _SEGMENT) * _SEGMENT
                used.add(address // _SEGMENT * _SEGMENT, end)
        self.is_told = is_told
        if not is_told:
            for begin, end in used:
                self.put("segment_alloc", 0, begin, end - begin)
            self.memory = used

    def put(self, action: str, index: int, address: int, size: int, *names: str) -> dict[str, Any]:
        event = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": self.trace.stream[index] if len(self.trace) else 0,
            "time_us": self.trace.time_ns[index] // 1000 if len(self.trace) else 0,
            "frames": self.stack(names),
        }
        self.events.append(event)
        return event

    def stack(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """One list for all events that share it, as in PyTorch."""
        if names not in self.frames:
            self.frames[names] = [
                {"name": name, "filename": "dtr_alloc", "line": 0} for name in names if name
            ]
        return self.frames[names]

    def event(self, index: int) -> None:
        """Adds the viewer's events for one event of the trace."""
        trace = self.trace
        kind, address, size = trace.kind[index], trace.address[index], trace.size_bytes[index]
        name = trace.names[trace.name[index]]
        if kind == Kind.ALLOCATE:
            self.live[address] = self.put("alloc", index, address, size, name)
        elif kind == Kind.FREE:
            size = self.live.pop(address)["size"]
            mark, of = self.marks.pop(address, ("", name))
            for action in ("free_requested", "free_completed"):
                event = self.put(action, index, address, size, mark, of)
                if mark:
                    event["user_metadata"] = mark
        elif kind == Kind.EVICT:
            self.marks[address] = ("evict", name)
        elif kind == Kind.REMATERIALIZE:
            event = self.live[address]
            event["user_metadata"] = f"remat: {name}" if name else "remat"
            event["frames"] = self.stack((event["user_metadata"], name))
        elif kind == Kind.MOVE_FROM:
            self.moving = address
        elif kind == Kind.MOVE_TO:
            self.marks[self.moving] = (f"move to {address:#x}", name)
        elif kind == Kind.OUT_OF_MEMORY:
            self.put("oom", index, 0, size, name)
        elif kind in (Kind.SEGMENT_ALLOCATE, Kind.SEGMENT_FREE):
            self.segment_event(kind, index, address, size)
        elif kind in _ANNOTATIONS:
            is_step = kind == Kind.STEP
            text = STEP_ANNOTATION if is_step else f"{Kind(kind).name} {size} {name}".strip()
            time_us = trace.time_ns[index] // 1000
            said = {"name": text, "device": self.device, "time_us": time_us}
            self.annotations += [{"stage": stage, **said} for stage in ("START", "END")]

    def segment_event(self, kind: int, index: int, address: int, size: int) -> None:
        if not self.is_told:
            return
        end = address + size
        if kind == Kind.SEGMENT_ALLOCATE:
            self.memory.add(address, end)
            action = "segment_map"
        else:
            self.memory.remove(address, end)
            action = "segment_unmap"
        # All on one stream: the viewer joins neighbors of the same stream, as Ranges does.
        self.put(action, index, address, size)["stream"] = 0

    def segments(self) -> list[dict[str, Any]]:
        """The segments at the end, with their blocks."""
        made = []
        blocks = sorted(self.live)
        at = 0
        for begin, end in self.memory:
            segment: dict[str, Any] = {
                "device": self.device,
                "address": begin,
                "total_size": end - begin,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": self.is_told,
                "frames": [],
                "blocks": [],
            }
            here = begin
            while at < len(blocks) and blocks[at] < end:
                address = blocks[at]
                at += 1
                limit = blocks[at] if at < len(blocks) and blocks[at] < end else end
                self.add_block(segment, here, address - here, None)
                requested = self.live[address]["size"]
                size = min(max(-(-requested // _GRAIN), 1) * _GRAIN, limit - address)
                self.add_block(segment, address, size, self.live[address])
                here = address + size
            self.add_block(segment, here, end - here, None)
            in_use = [block for block in segment["blocks"] if block["state"] != "inactive"]
            segment["allocated_size"] = segment["active_size"] = sum(b["size"] for b in in_use)
            segment["requested_size"] = sum(block["requested_size"] for block in in_use)
            made.append(segment)
        return made

    @staticmethod
    def add_block(
        segment: dict[str, Any], address: int, size: int, event: dict[str, Any] | None
    ) -> None:
        if size <= 0:
            return
        segment["blocks"].append(
            {
                "address": address,
                "size": size,
                "requested_size": 0 if event is None else event["size"],
                "state": "inactive" if event is None else "active_allocated",
                "frames": [] if event is None else event["frames"],
            }
        )
