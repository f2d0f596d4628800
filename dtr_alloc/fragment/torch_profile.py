"""The operators and kernels in a trace of PyTorch's profiler (``export_chrome_trace``)."""

from __future__ import annotations

import os
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from dtr_alloc import bounded
from dtr_alloc.traces.trace import MOST_TIME_NS, TraceError

MOST_BYTES = 1 << 30
"""Of its JSON."""

_CATEGORIES = frozenset(
    ("cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset")
)
_MOST_US = MOST_TIME_NS // 1000
_Time: TypeAlias = Annotated[float, Meta(ge=-_MOST_US, le=_MOST_US)]


class _Event(Struct):
    """Times are in microseconds."""

    ph: str
    name: str
    pid: int | str = 0
    tid: int | str = 0
    cat: str = ""
    ts: _Time = 0
    dur: Annotated[float, Meta(ge=0, le=_MOST_US)] = 0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def track(self) -> int:
        """The number of a thread. PyTorch's own events have texts."""
        return self.tid if isinstance(self.tid, int) and abs(self.tid) < 2**53 else 0


class _Document(Struct, rename="camel"):
    trace_events: list[_Event]
    base_time_nanoseconds: int = 0


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

    Raises TraceError, which names the file, for any other or too large file; and OSError.
    """
    place = os.fspath(path)
    try:
        with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
            found = msgspec.json.decode(bounded.rest(file, MOST_BYTES), type=_Document)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{place} is no trace of torch.profiler: {error}") from None
    base_ns = found.base_time_nanoseconds
    profile = Profile([], [])
    for of in found.trace_events:
        if of.ph == "X" and of.cat in _CATEGORIES:
            begin_ns, lasts_ns = round(of.ts * 1000) + base_ns, round(of.dur * 1000)
            profile.slices.append(Slice(of.name, of.pid, of.track, begin_ns, lasts_ns))
        elif of.ph == "M" and of.name in ("process_name", "thread_name"):
            text = str(of.args.get("name", ""))
            profile.names.append((of.name, text, of.pid, of.track))
    return profile
