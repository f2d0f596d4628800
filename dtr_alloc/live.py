"""What a running job shows of itself: a small file that ``dtr-alloc top`` reads, and a line on
stderr (``DTR_ALLOC_PROGRESS``).

The file is in memory that is shared with whoever reads it, so a step costs no call of the system.
It lies in a folder that only its user can use, and goes with the session.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.output_file import not_private

_SIZE = 4096
"""Of the file, in bytes; what is short of it is blanks."""
EVERY_SECONDS = 0.5
"""At most so often is anything shown."""
_LINE_SECONDS = 60.0
"""And so often where stderr is no terminal, whose line could be written over."""
_TRIES = 5
"""A reader's, as a job may be writing."""


def folder() -> Path:
    """Where the files of this user's jobs are. Raises OSError if it cannot be made, or if others
    could write there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = (
        Path(runtime) / "dtr_alloc"
        if runtime and os.path.isdir(runtime)
        else Path(tempfile.gettempdir()) / f"dtr_alloc-jobs-{os.geteuid()}"
    )
    path.mkdir(mode=0o700, exist_ok=True)
    if reason := not_private(path.lstat()):
        raise PermissionError(f"{path} {reason}")
    return path


class Live:
    """What one session shows. Without a folder there is no file, and the job goes on."""

    def __init__(self, progress: bool) -> None:
        self._progress = progress
        self._is_terminal = sys.stderr.isatty()
        self._pid = os.getpid()
        self._next = self._next_line = 0.0
        self._has_line = False
        self._path: Path | None = None
        self._memory: mmap.mmap | None = None

    def open(self) -> None:
        """Makes the file."""
        with suppress(OSError):
            path = folder() / f"{self._pid}.json"
            with suppress(FileNotFoundError):
                path.unlink()  # of an earlier session, or of a process that had this number
            self._path = path
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            file = os.open(path, flags, 0o600)
            try:
                os.ftruncate(file, _SIZE)
                self._memory = mmap.mmap(file, _SIZE)
            finally:
                os.close(file)

    def is_due(self) -> bool:
        """Whether it is time to show something."""
        return time.monotonic() >= self._next

    def show(self, values: dict[str, Any]) -> None:
        """Shows numbers of the last steps, with what tells the job from others."""
        now = time.monotonic()
        self._next = now + EVERY_SECONDS
        if self._memory is not None:
            job = {"pid": self._pid, "rank": os.environ.get("RANK"), "job": sys.argv[:1]}
            text = json.dumps({**job, **values}).encode()
            if len(text) <= _SIZE:
                self._memory[:] = text.ljust(_SIZE)
        if self._progress and now >= self._next_line:
            self._next_line = now + (0 if self._is_terminal else _LINE_SECONDS)
            begin, end = ("\r\033[K", "") if self._is_terminal else ("", "\n")
            print(f"{begin}dtr_alloc: {line(values)}", end=end, file=sys.stderr, flush=True)
            self._has_line = self._is_terminal

    def close(self) -> None:
        """Takes the file away. It may be called again; a forked child leaves its parent's."""
        if self._has_line and self._pid == os.getpid():
            print(file=sys.stderr)
            self._has_line = False
        if self._path is not None and self._pid == os.getpid():
            self._path.unlink(missing_ok=True)
            self._path = None


def line(values: dict[str, Any]) -> str:
    """The numbers in words."""
    budget = values["budget_bytes"]
    of = "" if budget >= UNLIMITED_BYTES else f" of {format_size(budget)}"
    words = [
        f"step {values['steps']:,}",
        f"{values['step_seconds']:.3g} s a step",
        f"{format_size(values['peak_allocated_bytes'])}{of} at the peak",
        f"{values['recompute_share']:.0%} of the compute again",
        "a plan is followed" if values["is_planned"] else "",
    ]
    return ", ".join(word for word in words if word)


def running() -> Iterator[dict[str, Any]]:
    """What this user's jobs show now, in the order of their process numbers. What processes left
    that are gone is taken away. Raises OSError as folder() does."""
    for path in sorted(folder().glob("*.json"), key=lambda path: (len(path.name), path.name)):
        if not _is_alive(path):
            path.unlink(missing_ok=True)
        elif (values := _read(path)) is not None:
            yield values


def _is_alive(path: Path) -> bool:
    import psutil  # not in every job

    try:
        return psutil.Process(int(path.stem)).create_time() <= path.stat().st_mtime + 1
    except (psutil.Error, ValueError, OSError):
        return False


def _read(path: Path) -> dict[str, Any] | None:
    for _ in range(_TRIES):
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError):
            time.sleep(0.001)
            continue
        return values if isinstance(values, dict) else None
    return None
