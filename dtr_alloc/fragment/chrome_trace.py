"""Traces as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each device is a process: counters of live, reserved and allowed bytes, a slice for each step and
each recomputed content, and an instant for each eviction, move and failure. A profile of PyTorch
adds processes with its operators and kernels.

A trace has no begin and end of an operator. A recomputation lasts from the allocation of its block
until the content is back: that is the kernel, without the search for room.
"""

from __future__ import annotations

import gzip
import heapq
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.fragment import torch_profile
from dtr_alloc.traces.trace import MOST_DEVICES, Kind, Trace, TraceError

LIMIT_BYTES = 64 << 20
"""Of the JSON, before it is compressed: as much as a viewer holds."""
LEAST_LIMIT_BYTES = 1 << 16

_LEAST_EVENT_BYTES = 80
_MOST_COUNTER_BYTES = 192
_LETTERS = 400
"""Of a name: many events may share a long one."""
_COUNTERS = ("live", "reserved", "budget")
_INSTANTS = {
    Kind.EVICT: "evict",
    Kind.MOVE_TO: "move",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.MARK: "mark",
}
_AGAIN = "computed again"
_TRACKS = ("steps", *_INSTANTS.values(), _AGAIN)  # the last may have lanes after it


class _Event(NamedTuple):
    """An event's text, and the values that decide its position and whether it is kept."""

    weight: float
    time_ns: int
    duration_ns: int
    text: str


class _Events(NamedTuple):
    """Those of a kind.

    Attributes:
        total: their number.
        heaviest: as many as may be written.
    """

    total: int
    heaviest: list[_Event]


def write(
    trace: Trace,
    path: str | os.PathLike[str],
    limit_bytes: int = LIMIT_BYTES,
    profile: str | os.PathLike[str] | None = None,
) -> Counter[str]:
    """Writes a checked trace (Trace.validate), compressed.

    Each kind of event has an equal share of the limit; the rest of one share goes to the other
    kinds. Of a kind with more events, the longest slices, the largest blocks and the peaks of
    counters are kept.

    Args:
        trace: of a device or more.
        path: of the new file.
        limit_bytes: of the JSON before it is compressed; LEAST_LIMIT_BYTES or more.
        profile: a trace of torch.profiler of the same run, plain or ``.gz``: its operators are
            added at the trace's time. Takes ten times as much memory as its JSON has bytes.

    Returns the number of events left out, by kind.

    Raises TraceError, which names the profile, for any other file, one that is too large, or one of
    another time than the trace; OSError as the disk does.
    """
    most = limit_bytes // _LEAST_EVENT_BYTES
    groups = {"names": _names(trace)}
    groups |= _steps_and_instants(trace, most)
    groups[_AGAIN], lanes = _computed_again(trace, most)
    groups["names"].heaviest.extend(lanes)
    if profile is not None:
        groups |= _profiled(trace, profile, most)
    counters = _counters(trace, limit_bytes // 4 // _MOST_COUNTER_BYTES)
    left_out = Counter({"counters": counters.total - len(counters.heaviest)})
    kept = counters.heaviest
    # What surrounds the events has a sixteenth of the least limit at most.
    left = limit_bytes - LEAST_LIMIT_BYTES // 16 - sum(len(each.text) + 2 for each in kept)
    sized = sorted(groups.items(), key=lambda of: sum(len(each.text) for each in of[1].heaviest))
    for number, (name, events) in enumerate(sized):
        share = left // (len(sized) - number)
        chosen, size = _within(events.heaviest, share)
        kept += chosen
        left -= size
        left_out[name] += max(events.total, len(events.heaviest)) - len(chosen)
    left_out = +left_out  # only what there is
    kept.sort(key=lambda each: (each.time_ns, -each.duration_ns))  # inner slices come later
    about = {
        "source": trace.meta.get("source", "")[:_LETTERS],
        "limit_bytes": limit_bytes,
        "left_out": left_out,
    }
    with open(path, "wb") as file, gzip.open(file, "wt", encoding="utf-8") as text:
        text.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[')
        text.write(",\n".join(each.text for each in kept))
        text.write("]}\n")
    return left_out


def _within(events: Iterable[_Event], share: int) -> tuple[list[_Event], int]:
    """The heaviest that fit, and their bytes."""
    chosen, size = [], 0
    for each in sorted(events, key=lambda each: -each.weight):
        if size + len(each.text) + 2 > share:
            continue
        chosen.append(each)
        size += len(each.text) + 2
    return chosen, size


def _event(
    phase: str,
    name: str,
    process: int,
    track: int,
    args: dict[str, Any],
    *,
    time_ns: int = -1,
    duration_ns: int = 0,
    weight: float = 0,
) -> _Event:
    event = {"ph": phase, "name": name[:_LETTERS], "pid": process, "tid": track, "args": args}
    if phase != "M":
        event["ts"] = time_ns / 1000
    if phase == "X":
        event["dur"] = duration_ns / 1000
    if phase == "i":
        event["s"] = "t"
    return _Event(weight, time_ns, duration_ns, json.dumps(event, separators=(",", ":")))


def _named(kind: str, name: str, process: int, track: int = 0) -> _Event:
    return _event("M", kind, process, track, {"name": name})


def _slice(
    name: str, process: int, track: int, begin_ns: int, lasts_ns: int, args: dict[str, Any]
) -> _Event:
    return _event(
        "X", name, process, track, args, time_ns=begin_ns, duration_ns=lasts_ns, weight=lasts_ns
    )


def _block(trace: Trace, at: int, size_bytes: int) -> dict[str, Any]:
    address = hex(trace.address[at])
    return {"size": format_size(size_bytes), "bytes": size_bytes, "address": address}


def _heaviest(
    rows: list[int], most: int, weight: Callable[[int], int], event: Callable[[int], _Event]
) -> _Events:
    """The events of these rows."""
    return _Events(len(rows), [event(at) for at in heapq.nlargest(most, rows, key=weight)])


def _devices(trace: Trace) -> range:
    return range(max(trace.device, default=0) + 1)


def _names(trace: Trace) -> _Events:
    events = []
    for device in _devices(trace):
        events.append(_named("process_name", f"device {device}", device))
        for track, name in enumerate(_TRACKS):
            events.append(_named("thread_name", name, device, track))
    return _Events(len(events), events)


def _counters(trace: Trace, most: int) -> _Events:
    """About as many moments of all devices, with the peaks among them."""
    chosen: list[_Event] = []
    devices = _moments(trace)
    for device, moments in enumerate(devices):
        stride = -(-len(moments) // max(1, most // len(devices))) or 1
        for begin in range(0, len(moments), stride):
            time_ns, *values = max(moments[begin : begin + stride], key=lambda each: each[1])
            shown = dict(zip(_COUNTERS, values, strict=True))
            chosen.append(_event("C", "memory, bytes", device, 0, shown, time_ns=time_ns))
    return _Events(sum(map(len, devices)), chosen)


def _moments(trace: Trace) -> list[list[tuple[int, int, int, int]]]:
    """By device: times in nanoseconds, with live, reserved and allowed bytes."""
    blocks: dict[tuple[int, int], int] = {}
    now = [[0, 0, 0] for _ in _devices(trace)]
    moments: list[list[tuple[int, int, int, int]]] = [[] for _ in now]
    columns = zip(
        trace.kind, trace.device, trace.time_ns, trace.address, trace.size_bytes, strict=True
    )
    for kind, device, time_ns, address, size in columns:
        of = now[device]
        if kind == Kind.ALLOCATE:
            blocks[device, address] = size
            of[0] += size
        elif kind == Kind.FREE:
            of[0] -= blocks.pop((device, address), 0)
        elif kind == Kind.SEGMENT_ALLOCATE:
            of[1] += size
        elif kind == Kind.SEGMENT_FREE:
            of[1] -= size
        elif kind == Kind.BUDGET:
            of[2] = 0 if size == UNLIMITED_BYTES else size
        else:
            continue
        moments[device].append((time_ns, of[0], of[1], of[2]))
    return moments


def _steps_and_instants(trace: Trace, most: int) -> dict[str, _Events]:
    made_by: dict[tuple[int, int], int] = {}  # by device and address: the name of the ALLOCATE
    makers: dict[int, int] = {}  # by eviction
    rows: dict[int, list[int]] = {kind: [] for kind in _INSTANTS}
    begins: list[list[int]] = [[] for _ in _devices(trace)]
    last_ns = [0] * len(_devices(trace))
    for at, kind in enumerate(trace.kind):
        device = trace.device[at]
        last_ns[device] = trace.time_ns[at]
        if kind == Kind.ALLOCATE:
            made_by[device, trace.address[at]] = trace.name[at]
        elif kind == Kind.STEP:
            begins[device].append(trace.time_ns[at])
        elif kind in rows:
            rows[kind].append(at)
            if kind == Kind.EVICT:
                makers[at] = made_by[device, trace.address[at]]

    def instant(at: int) -> _Event:
        kind = Kind(trace.kind[at])
        said = {"what": trace.names[trace.name[at]][:_LETTERS]}
        if kind == Kind.EVICT:
            said = {"allocated by": trace.names[makers[at]][:_LETTERS], "for": said["what"]}
        size, track = trace.size_bytes[at], _TRACKS.index(_INSTANTS[kind])
        args, time_ns = said | _block(trace, at, size), trace.time_ns[at]
        where = trace.device[at], track
        return _event("i", _INSTANTS[kind], *where, args, time_ns=time_ns, weight=size)

    groups = {
        name: _heaviest(rows[kind], most, lambda at: trace.size_bytes[at], instant)
        for kind, name in _INSTANTS.items()
    }
    steps = []
    for device, end_ns in enumerate(last_ns):
        steps += [
            _slice(f"step {number}", device, _TRACKS.index("steps"), begin, end - begin, {})
            for number, (begin, end) in enumerate(pairwise([*begins[device], end_ns]), 1)
        ]
    groups["steps"] = _Events(len(steps), steps)
    return groups


def _computed_again(trace: Trace, most: int) -> tuple[_Events, list[_Event]]:
    """A slice for each operator that ran again, which may have brought several contents back, and
    the names of lanes. Slices of several threads may overlap, so they are put in lanes."""
    began: dict[tuple[int, int], tuple[int, int]] = {}  # by device and address: ALLOCATE, its name
    slices: list[list[int]] = []  # first row, last row, bytes
    last_of: dict[int, list[int]] = {}  # by device: its last slice, if more may have come with it
    for at, kind in enumerate(trace.kind):
        device = trace.device[at]
        place = device, trace.address[at]
        if kind == Kind.ALLOCATE:
            began[place] = at, trace.name[at]
        if kind != Kind.REMATERIALIZE:
            last_of.pop(device, None)
            continue
        # An operator that overwrote its argument allocated nothing, so its begin is unknown.
        first, name = began.pop(place, (at, trace.name[at]))
        if name != trace.name[at]:
            first = at
        before = last_of.get(device)
        if before is not None and trace.name[before[1]] == trace.name[at] and first < before[1]:
            before[:] = min(first, before[0]), at, before[2] + trace.size_bytes[at]
            continue
        last_of[device] = [first, at, trace.size_bytes[at]]
        slices.append(last_of[device])
    lanes: list[list[int]] = [[] for _ in _devices(trace)]  # when the last slice of each ends
    names: list[_Event] = []
    tracks: list[int] = []
    slices.sort()
    for first, last, _ in slices:
        ends = lanes[trace.device[last]]
        begin_ns, end_ns = trace.time_ns[first], trace.time_ns[last]
        lane = next((at for at, end in enumerate(ends) if end <= begin_ns), len(ends))
        if lane == len(ends):
            ends.append(0)
            if lane:
                track = len(_TRACKS) - 1 + lane
                names.append(_named("thread_name", _AGAIN, trace.device[last], track))
        ends[lane] = end_ns
        tracks.append(len(_TRACKS) - 1 + lane)

    def lasts_ns(number: int) -> int:
        first, last, _ = slices[number]
        return trace.time_ns[last] - trace.time_ns[first]

    def event(number: int) -> _Event:
        first, last, size = slices[number]
        name = trace.names[trace.name[last]] or _AGAIN
        begin_ns, args = trace.time_ns[first], _block(trace, last, size)
        track = tracks[number]
        return _slice(name, trace.device[last], track, begin_ns, lasts_ns(number), args)

    return _heaviest(list(range(len(slices))), most, lasts_ns, event), names


def _profiled(trace: Trace, path: str | os.PathLike[str], most: int) -> dict[str, _Events]:
    """Operators and kernels of PyTorch's profiler, within the time of the trace."""
    began_ns = trace.meta.get("began_unix_ns")
    if not isinstance(began_ns, int):
        raise TraceError(
            f"{os.fspath(path)}: the trace does not say when it began, as older ones, those that a "
            "killed job left and those of others; allowed: a trace that DTR_ALLOC_TRACE wrote to "
            "its end"
        )
    profile = torch_profile.read(path)
    last_ns = trace.time_ns[-1] if len(trace) else 0
    slices = [
        each._replace(begin_ns=each.begin_ns - began_ns)
        for each in profile.slices
        if 0 <= each.begin_ns - began_ns <= last_ns
    ]
    if not slices:
        raise TraceError(
            f"{os.fspath(path)} has {len(profile.slices)} operators, and none of them in the time "
            "of the trace; allowed: a profile of the same run"
        )
    processes: dict[int | str, int] = {}
    for each in profile.slices:
        processes.setdefault(each.process, MOST_DEVICES + len(processes))
    told = [
        _named(kind, text, processes[process], track)
        for kind, text, process, track in profile.names
        if process in processes
    ]

    def event_of(number: int) -> _Event:
        name, process, track, begin_ns, lasts_ns = slices[number]
        return _slice(name, processes[process], track, begin_ns, lasts_ns, {})

    operators = _heaviest(
        list(range(len(slices))), most, lambda number: slices[number].lasts_ns, event_of
    )
    return {
        "operators": _Events(len(profile.slices), operators.heaviest),
        "names of operators' threads": _Events(len(told), told),
    }
