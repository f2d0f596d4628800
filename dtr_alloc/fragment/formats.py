"""Reads a trace from a file of any supported kind, and writes it as any."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from dtr_alloc import bounded
from dtr_alloc.fragment import chrome_trace, rmm, torch_export, torch_snapshot
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Trace, TraceError

_HEAD_BYTES = 4096

WRITES = ("torch", "chrome", "trace")
"""The kinds of files that write() makes."""


def read(path: str | os.PathLike[str], *, allow_truncated: bool = False) -> Trace:
    """Reads and checks a trace; or a log of RMM or a memory snapshot of PyTorch, plain or
    compressed by gzip.

    allow_truncated: whether a trace or a log that a killed job left is read as far as it goes.

    Takes time and memory as the three readers and Trace.validate().

    Raises TraceError, which names the file, for any other, damaged, too large or contradictory
    file; OSError if it cannot be opened.
    """
    if not Path(path).is_file():  # a pipe may never answer, and could be read only once
        os.stat(path)
        raise TraceError(f"{os.fspath(path)} is no regular file")
    with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(trace_file.MAGIC[:2]):
        trace = trace_file.read(path, allow_truncated=allow_truncated)
    elif rmm.is_log(head):
        trace = rmm.read(path, allow_truncated=allow_truncated)
    elif torch_snapshot.is_head(head):
        trace = torch_snapshot.read(path)
    else:
        raise TraceError(
            f"{os.fspath(path)} begins with {head[:8]!r}: it is no trace of dtr_alloc, no log of "
            "memory events of RMM (enable_logging) and no memory snapshot of PyTorch"
        )
    try:
        trace.validate()
    except TraceError as error:
        raise TraceError(f"{os.fspath(path)}: {error}") from None
    except MemoryError:
        raise TraceError(f"{os.fspath(path)}: {bounded.OUT_OF_MEMORY}") from None
    return trace


def write(
    trace: Trace, path: str | os.PathLike[str], to: str, profile: Path | None = None
) -> Counter[str]:
    """Writes a checked trace as one of WRITES. A failure leaves the old file. The profile is that
    of chrome_trace.write().

    Returns the number of events left out, by kind; none but for ``chrome``.

    Raises TraceError if that kind cannot hold the trace, and OSError as the disk does.
    """
    if to == "chrome":
        return chrome_trace.write(trace, path, profile)
    (torch_export if to == "torch" else trace_file).write(trace, path)
    return Counter()
