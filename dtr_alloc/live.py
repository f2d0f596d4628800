"""The display of a running job: a small file for ``dtr-alloc top``, and lines on stderr
(``DTR_ALLOC_PROGRESS``).

The file is written twice a second at most. It is in a folder that only its user can access, and is
removed with the session. An error ends the display, with one line, and never the job.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from dtr_alloc import bounded, output_file
from dtr_alloc.bounded import printable
from dtr_alloc.config import UNLIMITED_BYTES, format_size

_MOST_BYTES = 4096
"""Of the file of a job."""
EVERY_SECONDS = 0.5
"""The shortest time between two displays."""
_LINE_SECONDS = (60.0, 10.0)
"""The shortest time between two lines: in a file, on a terminal."""


class Shown(TypedDict):
    """Figures of a job: of its first device's pool, and of the steps since the last display. Sizes
    in bytes; ``job`` is the first word of its command, if there is one."""

    pid: int
    rank: str | None
    job: list[str]
    steps: int
    step_seconds: float
    budget_bytes: int
    allocated_bytes: int
    peak_allocated_bytes: int
    recompute_share: float
    evictions: int
    is_planned: bool


def folder() -> Path:
    """The folder of this user's files. Raises OSError if it cannot be made, or if others could
    write there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = (
        Path(runtime) / "dtr_alloc"
        if runtime and os.path.isdir(runtime)
        else Path(tempfile.gettempdir()) / f"dtr_alloc-jobs-{os.geteuid()}"
    )
    path.mkdir(mode=0o700, exist_ok=True)
    if reason := output_file.not_private(path.lstat()):
        raise PermissionError(f"{path} {reason}")
    return path


class Live:
    """The display of one session."""

    def __init__(self, progress: bool) -> None:
        self._progress = progress
        self._pid = os.getpid()
        self._next = self._next_line = 0.0
        self._path: Path | None = None

    def open(self) -> None:
        """Finds a place for the file."""
        atexit.register(self.close)  # a job need not end its session
        try:
            self._path = folder().absolute() / f"{self._pid}.json"  # the job may change its folder
        except Exception as error:
            self._give_up_file(error)

    def is_due(self) -> bool:
        """Whether it is time for a display."""
        return time.monotonic() >= self._next

    def show(self, values: dict[str, Any]) -> None:
        """Shows figures of the last steps, with the identity of the job."""
        if self._path is not None:
            try:
                output_file.write(self._path, self._shown(values))
            except Exception as error:
                self._give_up_file(error)
        if not values["steps"]:
            return
        now = time.monotonic()
        self._next = now + EVERY_SECONDS
        if self._progress and now >= self._next_line:
            try:
                self._next_line = now + _LINE_SECONDS[sys.stderr.isatty()]
                print(f"dtr_alloc: {line(values)}", file=sys.stderr, flush=True)
            except Exception:  # stderr is gone, and with it what could be told
                self._progress = False

    def _shown(self, values: dict[str, Any]) -> bytes:
        words = [printable(str(word)) for word in sys.argv[:1]]
        shown = {"pid": self._pid, "rank": os.environ.get("RANK"), "job": words, **values}
        return json.dumps(shown).encode()

    def _give_up_file(self, error: Exception) -> None:
        where = f" ({self._path})" if self._path is not None else ""
        self._remove()
        words = f"dtr_alloc: `dtr-alloc top` will not show this job: {error}{where}"
        with suppress(Exception):
            print(words, file=sys.stderr)

    def _remove(self) -> None:
        if self._path is not None and self._pid == os.getpid():
            with suppress(OSError):
                self._path.unlink()
            self._path = None

    def close(self) -> None:
        """Removes the file. It may be called again; a forked child leaves its parent's."""
        atexit.unregister(self.close)
        self._remove()


def line(values: dict[str, Any]) -> str:
    """The figures in words."""
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


def running() -> Iterator[Shown]:
    """The figures of this user's jobs, in the order of their process numbers. Files of ended
    processes are removed; other files are ignored. Raises OSError as folder()."""
    for path in sorted(folder().glob("*.json"), key=lambda path: (len(path.name), path.name)):
        if not _is_alive(path):
            with suppress(OSError):
                path.unlink()
        elif (values := _read(path)) is not None:
            yield values


def _is_alive(path: Path) -> bool:
    import psutil  # not in every job

    try:
        return psutil.Process(int(path.stem)).create_time() <= path.lstat().st_mtime + 1
    except (psutil.Error, ValueError, OSError, OverflowError):
        return False


def _read(path: Path) -> Shown | None:
    import msgspec  # not in every job

    with suppress(OSError, ValueError, RecursionError):
        if path.is_file():
            values = msgspec.json.decode(bounded.read_bytes(path, _MOST_BYTES), type=Shown)
            return values if str(values["pid"]) == path.stem else None
    return None
