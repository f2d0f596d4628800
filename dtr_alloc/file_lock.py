"""A file that one process writes: others that would write the same find it taken."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class InUse(RuntimeError):
    """Another process writes this file: one that this job started, or that started it."""


def mark_in_use(path: Path, what: str, variable: str) -> IO[bytes]:
    """An open file that keeps other processes from writing the same one until it is closed, which
    it also is when nobody has it any more.

    Args:
        path: the file, which is made if it is not there.
        what: what this process has not then, for the message.
        variable: the variable that names the file.

    Raises InUse if another process holds it, and OSError if it cannot be opened.
    """
    mark = path.open("ab")
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mark.close()
        raise InUse(
            f"{path} is being written by another process, so this one (pid {os.getpid()}) has no "
            f"{what}; with {{pid}} or {{rank}} in {variable} each has its own"
        ) from None
    except OSError:
        pass  # a file system without locks
    return mark
