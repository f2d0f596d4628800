"""What PyTorch's profiler wrote (``export_chrome_trace``): its operators and kernels."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from dtr_alloc import bounded
from dtr_alloc.traces.trace import MOST_TIME_NS, TraceError

MOST_BYTES = 1 << 30
"""Of its JSON."""

_CATEGORIES = frozenset(
    ("cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset")
)


class Slice(NamedTuple):
    """An operator or a kernel.

    Attributes:
        begin_ns: since the epoch of Unix.
    """

    name: str
    process: int | str
    track: int
    begin_ns: int
    lasts_ns: int


class Profile(NamedTuple):
    """In the order of the file.

    Attributes:
        names: of processes and threads: "process_name" or "thread_name", the name, the process,
            the track.
    """

    slices: list[Slice]
    names: list[tuple[str, str, int | str, int]]


def read(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile, plain or ``.gz``. Takes ten times as much memory as its JSON has bytes.

    Raises TraceError that names what is none or too large, and OSError.
    """
    place = os.fspath(path)
    document = _json(place)
    base_ns = document.get("baseTimeNanoseconds", 0)
    if not isinstance(base_ns, int) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{place} is no trace of torch.profiler")
    found = Profile([], [])
    for at, event in enumerate(document["traceEvents"]):
        try:
            phase, name, track = event["ph"], event["name"], _number(event.get("tid"))
            if phase == "M" and name in ("process_name", "thread_name"):
                told = _is(str, event["args"]["name"])
                found.names.append((name, told, _process(event), track))
            if phase != "X" or event.get("cat") not in _CATEGORIES:
                continue
            begin_ns = _nanoseconds(event["ts"]) + base_ns
            lasts_ns = _nanoseconds(event["dur"])
            if lasts_ns < 0:
                raise ValueError
            of = _is(str, name), _process(event), track
            found.slices.append(Slice(*of, begin_ns, lasts_ns))
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
            reason = f"event {at} is none of torch.profiler: {bounded.shown(event)}"
            raise TraceError(f"{place}: {reason}") from None
    return found


def _is(kind: Any, value: Any) -> Any:
    """A value of that kind. Raises TypeError for another."""
    if not isinstance(value, kind):
        raise TypeError
    return value


def _process(event: dict[str, Any]) -> int | str:
    found: int | str = _is(int | str, event["pid"])
    return found


def _nanoseconds(microseconds: Any) -> int:
    time_ns: int = round(_is(int | float, microseconds) * 1000)
    if abs(time_ns) > MOST_TIME_NS:
        raise OverflowError
    return time_ns


def _number(track: object) -> int:
    """Of a thread. PyTorch gives texts to what it adds itself."""
    return track if isinstance(track, int) and abs(track) < 2**53 else 0


def _json(path: str) -> dict[str, Any]:
    """An object in a file. Raises TraceError."""
    try:
        with bounded.opened(path) as file:
            found = json.loads(bounded.rest(file, MOST_BYTES))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except MemoryError:
        raise TraceError(f"{path}: {bounded.OUT_OF_MEMORY}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no trace of torch.profiler: {error}") from None
    return found
