"""RMM's memory event log, read as a trace.

The log is CSV with the columns ``Thread,Time,Action,Pointer,Size,Stream``, one line for each
allocate, free and failed allocate of one memory resource (RMM's logging_resource_adaptor; its
replay benchmark reads the same). Spark RAPIDS writes no line of columns. A log has neither segments
nor names, and does not state its device.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from typing import Any

from dtr_alloc import bounded
from dtr_alloc.bounded import shown
from dtr_alloc.traces.trace import MOST_EVENTS, MOST_TIME_NS, Kind, Trace, TraceError

HEADER = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")

_ACTIONS = {
    "allocate": Kind.ALLOCATE,
    "free": Kind.FREE,
    "deallocate": Kind.FREE,  # in RMM's manual, not in its code
    "allocate failure": Kind.OUT_OF_MEMORY,
}
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2}):([0-9]{2})[:.]([0-9]{1,9})", re.ASCII)
_EPOCH = re.compile(r"([0-9]{1,12})\.([0-9]{1,9})", re.ASCII)
_DAY_NS = 24 * 3600 * 10**9
_MOST_LINE_BYTES = 4096
_MOST_FILE_BYTES = 1 << 33
_NOTHING = ("(nil)", "nullptr", "0", "0x0")


def is_log(head: bytes) -> bool:
    """Whether a file that begins so is a log: the columns, or an event of a log without them."""
    fields = head.partition(b"\n")[0].decode(errors="replace").split(",")
    return fields[0].strip() == HEADER[0] or (
        len(fields) == len(HEADER) and fields[2].strip() in _ACTIONS
    )


def read(path: str | os.PathLike[str], *, allow_truncated: bool = False) -> Trace:
    """Reads a log, plain or ``.gz``. The first event is at time 0. Times of day continue past
    midnight; an earlier time than the one before (threads write side by side) counts as the same.

    Args:
        path: the file.
        allow_truncated: whether an incomplete last line of a killed job is left out; the trace's
            meta says ``"truncated": true`` then.

    Takes about 5 microseconds for each line, of at most 4096 bytes, and at most 200 bytes for each
    event (MOST_EVENTS).

    Raises TraceError, which names the line, for any other file, for a block that is freed without
    an allocation, or allocated twice; OSError if the file cannot be opened.
    """
    trace = Trace({"source": "rmm", "time_unit": "ns"})
    live: set[int] = set()
    begin: int | None = None
    days = before = 0
    empty = 0
    texts = _texts(path, allow_truncated, trace.meta)
    for line, (_, when, action, pointer, size, stream) in _rows(texts, path):
        at = f"{os.fspath(path)}, line {line}"
        kind = _ACTIONS.get(action.strip())
        if kind is None:
            raise TraceError(
                f"{at}: the action is {shown(action)}; allowed: allocate, free, allocate failure"
            )
        if len(trace) == MOST_EVENTS:
            raise TraceError(f"{at}: more than {MOST_EVENTS} events, the most that are read")
        time = _time_ns(when, at) + days
        if begin is None:
            begin = before = time
        if before - time > _DAY_NS // 2:
            days += _DAY_NS
            time += _DAY_NS
        before = max(before, time)
        failed = kind == Kind.OUT_OF_MEMORY
        address = 0 if failed and not pointer.strip() else _number(pointer, "pointer", at)
        size_bytes = _number(size, "size", at)
        if not failed:
            if address == 0:
                empty += 1  # a request of nothing
                continue
            is_new = kind == Kind.ALLOCATE
            if is_new == (address in live):
                done, earlier = ("allocated", "freed") if is_new else ("freed", "allocated")
                raise TraceError(f"{at}: {address:#x} is {done} and was not {earlier} before")
            (live.add if is_new else live.remove)(address)
        trace.add(
            kind,
            time_ns=before - begin,
            address=address,
            size_bytes=size_bytes,
            stream=_number(stream, "stream", at),
        )
    if empty:
        trace.meta["empty_requests"] = empty
    return trace


def _rows(texts: Iterator[str], path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """Each event's line number and fields."""
    rows = csv.reader(texts)
    try:
        for row in rows:
            at = f"{os.fspath(path)}, line {rows.line_num}"
            if rows.line_num == 1 and not (len(row) == len(HEADER) and row[2].strip() in _ACTIONS):
                if tuple(name.strip() for name in row) != HEADER:
                    raise TraceError(
                        f"{at}: the columns are {','.join(row)[:80]!r}; a log of RMM has "
                        f"{','.join(HEADER)}"
                    )
            elif len(row) == len(HEADER):
                yield rows.line_num, row
            elif row:
                raise TraceError(
                    f"{at}: {len(row)} fields; allowed: {len(HEADER)} (was the file cut off? "
                    "allow_truncated, --allow-truncated, reads the lines before)"
                )
    except (bounded.TooMuch, bounded.Damaged) as error:
        raise TraceError(f"{os.fspath(path)}, after line {rows.line_num}: {error}") from None
    except csv.Error as error:
        raise TraceError(f"{os.fspath(path)}, line {rows.line_num}: {error}") from None


def _texts(
    path: str | os.PathLike[str], allow_truncated: bool, meta: dict[str, Any]
) -> Iterator[str]:
    """The lines. A last line that is left out is noted in the meta."""
    with bounded.opened(path) as file:
        for line in bounded.lines(file, _MOST_LINE_BYTES, _MOST_FILE_BYTES):
            if allow_truncated and not line.endswith(b"\n"):
                meta["truncated"] = True
                return
            yield line.decode(errors="replace")


def _time_ns(text: str, at: str) -> int:
    """``HH:MM:SS:micro`` and ``HH:MM:SS.micro`` of a day, or seconds since 1970."""
    text = text.strip()
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part) for part in match.groups()[:3])
        whole, part = (hours * 60 + minutes) * 60 + seconds, match[4]
        if ":" in text[match.start(4) - 1]:  # a number of microseconds, not a decimal fraction
            part = f"{part:0>6}"
    elif match := _EPOCH.fullmatch(text):
        whole, part = int(match[1]), match[2]
    else:
        raise TraceError(
            f"{at}: the time is {shown(text)}; allowed: HH:MM:SS.micro, HH:MM:SS:micro, or seconds "
            "with a fraction"
        )
    time = whole * 10**9 + int(f"{part:0<9}")
    if time > MOST_TIME_NS:
        raise TraceError(f"{at}: the time is {shown(text)}; allowed: up to {MOST_TIME_NS} ns")
    return time


def _number(text: str, what: str, at: str) -> int:
    text = text.strip()
    if text in _NOTHING:
        return 0
    try:
        number = int(text, 16 if text[:2].lower() == "0x" else 10)
    except ValueError:
        number = -1
    if not 0 <= number < 2**64:
        raise TraceError(f"{at}: the {what} is {shown(text)}; allowed: a number of 64 bits")
    return number
