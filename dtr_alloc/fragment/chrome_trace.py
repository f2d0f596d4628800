"""Traces as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each device is a process: counters of live, reserved and allowed bytes, a slice for each step and
each recomputed content, and an instant for each eviction, move and failure. They may be added to a
profile of PyTorch.

A trace has no begin and end of an operator. A recomputation lasts from the allocation of its block
until the content is back: that is the kernel, without the search for room.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from heapq import nlargest
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from dtr_alloc import bounded, output_file
from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.traces.trace import Kind, Trace, TraceError

MOST = 1 << 16
"""The most events of a kind: a viewer holds some hundred thousand."""
MOST_PROFILE_BYTES = 1 << 30
"""Of its JSON."""
FIRST_PROCESS = 1 << 22
"""The number of the first device's process: larger than those of Linux, which a profile has."""

_LETTERS = 400
"""Of a name: many events may share a long one."""
_STEPS, _AGAIN = "steps", "computed again"
_INSTANTS = {
    Kind.EVICT: "evict",
    Kind.MOVE_TO: "move",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.MARK: "mark",
}
_TRACKS = (_STEPS, *_INSTANTS.values(), _AGAIN)
"""By their numbers. Slices that overlap have tracks after the last one."""


class _Span(NamedTuple):
    """An event of a track: the rows of a slice; of an instant, the row that allocated the block,
    and its own."""

    name: str
    first: int
    last: int
    size_bytes: int = 0


class _Timed(Struct):
    """The part of a profile's event that is read. Times are in microseconds."""

    ph: str
    ts: float = 0


def write(
    trace: Trace, path: str | os.PathLike[str], profile: str | os.PathLike[str] | None = None
) -> Counter[str]:
    """Writes a checked trace (Trace.validate), compressed. Of a kind with more than MOST events,
    the longest slices, the largest blocks and the peaks of counters are kept.

    Args:
        trace: of a device or more.
        path: of the new file.
        profile: a trace of torch.profiler of the same run, plain or ``.gz``: its events come first,
            and those of the trace have its time. Takes three times as much memory as its JSON has
            bytes, and 100 bytes for each of its events.

    Returns the number of events left out, by kind.

    Raises TraceError, which names the profile, for any other file, one that is too large, or one of
    another time than the trace; OSError as the disk does.
    """
    document: dict[str, Any] = {"displayTimeUnit": "ms", "traceEvents": []}
    begin_ns = 0
    if profile is not None:
        document, begin_ns = _profile(trace, profile)
    events = list(_counters(trace))
    left_out = Counter[str]()
    for track, spans in _spans(trace).items():
        is_slice = track in (_STEPS, _AGAIN)
        weight = partial(_lasts_ns, trace) if is_slice else attrgetter("size_bytes")
        kept = nlargest(MOST, spans, key=weight)
        left_out[track] = len(spans) - len(kept)
        kept.sort(key=attrgetter("first"))
        events += (_slices if is_slice else _instants)(trace, track, kept)
    for event in events:
        event["ts"] = (event["ts"] + begin_ns) / 1000
    document["traceEvents"] += [*_names(events), *events]
    output_file.write(Path(path), gzip.compress(msgspec.json.encode(document)))
    return +left_out


def _counters(trace: Trace) -> Iterator[dict[str, Any]]:
    """Of each device: of so many stretches of its events the moment with the most live bytes."""
    sizes: dict[tuple[int, int], int] = {}
    now: dict[int, list[int]] = {}
    moments: dict[int, list[tuple[int, ...]]] = {}
    columns = (trace.kind, trace.device, trace.time_ns, trace.address, trace.size_bytes)
    for kind, device, time_ns, address, size in zip(*columns, strict=True):
        of = now.setdefault(device, [0, 0, 0])
        if kind == Kind.ALLOCATE:
            sizes[device, address] = size
            of[0] += size
        elif kind == Kind.FREE:
            of[0] -= sizes.pop((device, address))
        elif kind in (Kind.SEGMENT_ALLOCATE, Kind.SEGMENT_FREE):
            of[1] += size if kind == Kind.SEGMENT_ALLOCATE else -size
        elif kind == Kind.BUDGET:
            of[2] = 0 if size == UNLIMITED_BYTES else size
        else:
            continue
        moments.setdefault(device, []).append((time_ns, *of))
    for device, found in moments.items():
        stride = -(-len(found) * len(moments) // MOST)
        for begin in range(0, len(found), stride):
            time_ns, *values = max(found[begin : begin + stride], key=lambda moment: moment[1])
            shown = dict(zip(("live", "reserved", "budget"), values, strict=True))
            yield _event("C", "memory, bytes", device, 0, time_ns, shown)


def _spans(trace: Trace) -> dict[str, list[_Span]]:
    """The events of each track, in the order of their last rows."""
    found: dict[str, list[_Span]] = {track: [] for track in _TRACKS}
    made: dict[tuple[int, int], int] = {}  # by device and address: the row of the block's ALLOCATE
    fresh: dict[tuple[int, int], int] = {}  # the same, until a content is back in the block
    steps: dict[int, tuple[int, int]] = {}  # by device: the number of its step, and the first row
    again: dict[int, int] = {}  # by device: the index of a slice that more contents may belong to
    last: dict[int, int] = {}
    for row, (kind, device, address) in enumerate(
        zip(trace.kind, trace.device, trace.address, strict=True)
    ):
        last[device], place = row, (device, address)
        with_before = again.pop(device, None)
        if kind == Kind.ALLOCATE:
            made[place] = fresh[place] = row
        elif kind == Kind.REMATERIALIZE:
            again[device] = _add_again(
                trace, found[_AGAIN], row, fresh.pop(place, row), with_before
            )
        elif kind == Kind.STEP:
            number, first = steps.get(device, (0, row))
            if number:
                found[_STEPS].append(_Span(f"step {number}", first, row))
            steps[device] = number + 1, row
        elif kind in _INSTANTS:
            track = _INSTANTS[Kind(kind)]
            found[track].append(_Span(track, made.get(place, row), row, trace.size_bytes[row]))
    for device, (number, first) in steps.items():
        found[_STEPS].append(_Span(f"step {number}", first, last[device]))
    return found


def _add_again(trace: Trace, slices: list[_Span], row: int, first: int, before: int | None) -> int:
    """Adds a content that is back, perhaps to the slice before it, as an operator may bring several
    back. Returns the index of the slice."""
    if trace.name[first] != trace.name[row]:
        first = row  # the operator overwrote its argument, and its begin is unknown
    name, size_bytes = trace.names[trace.name[row]] or _AGAIN, trace.size_bytes[row]
    if before is not None and slices[before].name == name and first < slices[before].last:
        one = slices[before]
        slices[before] = _Span(name, min(first, one.first), row, one.size_bytes + size_bytes)
        return before
    slices.append(_Span(name, first, row, size_bytes))
    return len(slices) - 1


def _lasts_ns(trace: Trace, span: _Span) -> int:
    return trace.time_ns[span.last] - trace.time_ns[span.first]


def _slices(trace: Trace, track: str, spans: Iterable[_Span]) -> Iterator[dict[str, Any]]:
    """In the order of their begins. Slices of several threads may overlap, so they lie in lanes."""
    lanes: dict[int, list[int]] = {}  # by device: when the last slice of each ends
    for span in spans:
        begin_ns, lasts_ns = trace.time_ns[span.first], _lasts_ns(trace, span)
        ends = lanes.setdefault(trace.device[span.last], [])
        lane = next((at for at, end in enumerate(ends) if end <= begin_ns), len(ends))
        ends[lane : lane + 1] = [begin_ns + lasts_ns]
        args = _block(trace, span) if track == _AGAIN else {}
        number = _TRACKS.index(track) + lane
        event = _event("X", span.name, trace.device[span.last], number, begin_ns, args)
        yield event | {"dur": lasts_ns / 1000}


def _instants(trace: Trace, track: str, spans: Iterable[_Span]) -> Iterator[dict[str, Any]]:
    for span in spans:
        said = {"what": _text(trace, span.last)}
        if track == _INSTANTS[Kind.EVICT]:
            said = {"allocated by": _text(trace, span.first), "for": said["what"]}
        args, at_ns = said | _block(trace, span), trace.time_ns[span.last]
        number = _TRACKS.index(track)
        yield _event("i", track, trace.device[span.last], number, at_ns, args) | {"s": "t"}


def _text(trace: Trace, row: int) -> str:
    return trace.names[trace.name[row]][:_LETTERS]


def _block(trace: Trace, span: _Span) -> dict[str, Any]:
    size, address = span.size_bytes, hex(trace.address[span.last])
    return {"size": format_size(size), "bytes": size, "address": address}


def _event(
    phase: str, name: str, device: int, track: int, time_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    where = {"pid": FIRST_PROCESS + device, "tid": track}
    return {"ph": phase, "name": name[:_LETTERS], **where, "ts": time_ns, "args": args}


def _names(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The names of the processes and the tracks of events."""
    for process, track in sorted({(event["pid"], event["tid"]) for event in events}):
        name = _TRACKS[min(track, len(_TRACKS) - 1)]
        for kind, text in (("process", f"device {process - FIRST_PROCESS}"), ("thread", name)):
            of = {"pid": process, "tid": track, "args": {"name": text}}
            yield {"ph": "M", "name": f"{kind}_name", **of}


def _profile(trace: Trace, path: str | os.PathLike[str]) -> tuple[dict[str, Any], int]:
    """A profile, with its events as they are written, and the begin of the trace on its clock, in
    nanoseconds."""
    place = os.fspath(path)
    began_ns = trace.meta.get("began_unix_ns")
    if not isinstance(began_ns, int):
        raise TraceError(
            f"{place}: the trace does not say when it began, as older ones, those of others and "
            "those that a killed job left; allowed: a trace that DTR_ALLOC_TRACE wrote to its end"
        )
    decode = msgspec.json.decode
    try:
        with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
            document = decode(bounded.rest(file, MOST_PROFILE_BYTES), type=dict[str, Raw])
        base_ns = decode(document.get("baseTimeNanoseconds", b"0"), type=int)
        events = document.get("traceEvents", b"")
        times_us = [each.ts for each in decode(events, type=list[_Timed]) if each.ph == "X"]
        both: dict[str, Any] = {**document, "traceEvents": decode(events, type=list[Raw])}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{place} is no trace of torch.profiler: {error}") from None
    begin_us, end_us = (began_ns - base_ns) / 1000, (trace.time_ns[-1] if len(trace) else 0) / 1000
    if not any(0 <= time_us - begin_us <= end_us for time_us in times_us):
        raise TraceError(
            f"{place} has {len(times_us)} operators, and none of them in the time of the trace; "
            "allowed: a profile of the same run"
        )
    return both, began_ns - base_ns
