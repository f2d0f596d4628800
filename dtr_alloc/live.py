"""What a running job shows of itself: a small file that ``dtr-alloc top`` reads, and a line on
stderr (``DTR_ALLOC_PROGRESS``).

The file is in memory that is shared with whoever reads it, so a step costs no call of the system.
It lies in a folder that only its user can use, and goes with the session.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
"""And so often where stderr is no terminal, whose line could be written over, or beside a bar."""
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


class _Line:
    """The last line of a terminal, drawn by rich, which gives way to whatever the job prints.

    Streams keep their identity, as loggers and bars hold them; rich's own redirection replaces
    them, and holds back a bar's text until its line ends. While a line of the job is open, nothing
    is drawn. If that is a bar, which draws itself again, what would be drawn goes above it now and
    then.
    """

    def __init__(self) -> None:
        from rich.console import Console  # not in every job

        self._stream = sys.stderr
        self._write = sys.stderr.write
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._is_drawn = self._is_open = self._is_bar = False
        self._next = 0.0
        self._console = Console(file=sys.stderr, markup=False, highlight=False)
        self._streams: list[tuple[Any, Callable[[str], int]]] = []
        for stream in {id(each): each for each in (sys.stdout, sys.stderr)}.values():
            with suppress(AttributeError):  # of one that a job has put there
                if stream.isatty():
                    self._streams.append((stream, self._follow(stream)))

    def _follow(self, stream: Any) -> Callable[[str], int]:
        write = stream.write

        def written(text: str) -> int:
            if os.getpid() != self._pid:  # the lock may be held for ever in a forked child
                return int(write(text))
            with self._lock:
                self._clear()
                rest = text.rpartition("\n")[2]
                goes_on = "\n" not in text
                self._is_open = bool(rest) or (goes_on and self._is_open)
                self._is_bar = "\r" in rest or (goes_on and self._is_bar)
                return int(write(text))

        stream.write = written
        return written

    def _clear(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._write("\r\033[K")
            self._stream.flush()

    def draw(self, text: str) -> None:
        """Draws the text in place of what was drawn before, cut to the width."""
        with self._lock:
            self._clear()
            above = self._is_open and self._is_bar and time.monotonic() >= self._next
            if self._is_open and not above:
                return
            if above:
                self._next = time.monotonic() + _LINE_SECONDS
                self._write("\r\033[K")
            self._console.print(text, end="\n" if above else "", no_wrap=True, overflow="ellipsis")
            self._is_open = self._is_bar = above  # the bar's line is empty until it is drawn again
            self._is_drawn = not above
            self._stream.flush()

    def close(self) -> None:
        """Leaves what was drawn last above what follows."""
        with self._lock:
            if self._is_drawn:
                self._is_drawn = False
                self._write("\n")
            for stream, written in self._streams:
                if stream.__dict__.get("write") is written:
                    del stream.write


class Live:
    """What one session shows. Without a folder there is no file, and the job goes on."""

    def __init__(self, progress: bool) -> None:
        self._progress = progress
        self._pid = os.getpid()
        self._next = self._next_line = 0.0
        self._line: _Line | None = None
        self._path: Path | None = None
        self._memory: mmap.mmap | None = None

    def open(self) -> None:
        """Makes the file, and takes the last line of a terminal."""
        atexit.register(self.close)  # a job need not end its session
        if self._progress and sys.stderr.isatty():
            self._line = _Line()
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
        if self._memory is not None:
            job = {"pid": self._pid, "rank": os.environ.get("RANK"), "job": sys.argv[:1]}
            text = json.dumps({**job, **values}).encode()
            if len(text) <= _SIZE:
                self._memory[:] = text.ljust(_SIZE)
        if not values["steps"]:
            return
        self._next = now + EVERY_SECONDS
        if self._line is not None:
            self._line.draw(f"dtr_alloc: {line(values)}")
        elif self._progress and now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            print(f"dtr_alloc: {line(values)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the file away. It may be called again; a forked child leaves its parent's."""
        atexit.unregister(self.close)
        if self._line is not None and self._pid == os.getpid():
            self._line.close()
            self._line = None
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
