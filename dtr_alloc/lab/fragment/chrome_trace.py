"""Traces as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each device is a process: counters of what is live, reserved and allowed, an instant for each
eviction, return, move and failure, and a slice for each step. A long trace is thinned: of the
counters a part of the moments, which has the peaks, and of the instants the largest.
"""

from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from typing import Any

from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.traces.trace import Kind, Trace

MOST = 100_000
"""Counters, and instants, of a device."""
_INSTANTS = {
    Kind.EVICT: "evict",
    Kind.REMATERIALIZE: "computed again",
    Kind.MOVE_TO: "move",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.MARK: "mark",
}
_COUNTERS = ("live", "reserved", "budget")
_TRACKS = ("steps", *_INSTANTS.values())


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a checked trace (Trace.validate), compressed. Raises OSError as the disk does."""
    with open(path, "wb") as file, gzip.open(file, "wt", encoding="utf-8") as text:
        json.dump({"traceEvents": to_events(trace), "displayTimeUnit": "ms"}, text)


def to_events(trace: Trace) -> list[dict[str, Any]]:
    """The events of a checked trace. Times are in microseconds."""
    events = []
    for device in range(max(trace.device, default=0) + 1):
        rows = [at for at in range(len(trace)) if trace.device[at] == device]
        events.append(_name("process_name", f"device {device}", pid=device))
        for track, name in enumerate(_TRACKS):
            events.append(_name("thread_name", name, pid=device, tid=track))
        events += _counters(trace, device, rows)
        events += _instants(trace, device, rows)
        events += _steps(trace, device, rows)
    return events


def _name(kind: str, name: str, **of: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, **of, "args": {"name": name}}


def _counters(trace: Trace, device: int, rows: list[int]) -> list[dict[str, Any]]:
    now = dict.fromkeys(_COUNTERS, 0)
    live: dict[int, int] = {}
    moments: list[tuple[int, dict[str, int]]] = []
    for at in rows:
        kind, address, size = trace.kind[at], trace.address[at], trace.size_bytes[at]
        if kind == Kind.ALLOCATE:
            live[address] = size
            now["live"] += size
        elif kind == Kind.FREE:
            now["live"] -= live.pop(address, 0)
        elif kind == Kind.SEGMENT_ALLOCATE:
            now["reserved"] += size
        elif kind == Kind.SEGMENT_FREE:
            now["reserved"] -= size
        elif kind == Kind.BUDGET:
            now["budget"] = 0 if size == UNLIMITED_BYTES else size
        else:
            continue
        moments.append((trace.time_ns[at], dict(now)))
    stride = -(-len(moments) // MOST) or 1
    kept = []
    for begin in range(0, len(moments), stride):
        group = moments[begin : begin + stride]
        kept.append(max(group, key=lambda moment: moment[1]["live"]))
    return [
        {"ph": "C", "name": "memory, bytes", "pid": device, "ts": time / 1000, "args": values}
        for time, values in kept
    ]


def _instants(trace: Trace, device: int, rows: list[int]) -> list[dict[str, Any]]:
    told = [at for at in rows if trace.kind[at] in _INSTANTS]
    if len(told) > MOST:
        told = sorted(sorted(told, key=lambda at: -trace.size_bytes[at])[:MOST])
    return [
        {
            "ph": "i",
            "s": "t",
            "name": _INSTANTS[Kind(trace.kind[at])],
            "pid": device,
            "tid": _TRACKS.index(_INSTANTS[Kind(trace.kind[at])]),
            "ts": trace.time_ns[at] / 1000,
            "args": {
                "what": trace.names[trace.name[at]],
                "size": format_size(trace.size_bytes[at]),
                "bytes": trace.size_bytes[at],
                "address": hex(trace.address[at]),
            },
        }
        for at in told
    ]


def _steps(trace: Trace, device: int, rows: list[int]) -> list[dict[str, Any]]:
    begins = [trace.time_ns[at] for at in rows if trace.kind[at] == Kind.STEP]
    end_ns = trace.time_ns[rows[-1]] if rows else 0
    return [
        {
            "ph": "X",
            "name": f"step {number}",
            "pid": device,
            "tid": _TRACKS.index("steps"),
            "ts": begin / 1000,
            "dur": (end - begin) / 1000,
        }
        for number, (begin, end) in enumerate(pairwise([*begins, end_ns]), 1)
    ]
