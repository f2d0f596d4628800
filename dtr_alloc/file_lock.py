"""A file that one process writes: others that would write the same find it taken."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class FileTaken(RuntimeError):
    """Another process writes this file: one that this job started, or that started it."""


def lock_file(path: Path, what: str, variable: str) -> IO[bytes]:
    """An open file that keeps other processes from writing the same one until it is closed.

    Args:
        path: the file, which is made if it is not there.
        what: the name of the file's content, for the message.
        variable: the variable that names the file.

    Raises FileTaken if another process holds it, and OSError if it cannot be opened.
    """
    mark = path.open("ab")
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mark.close()
        raise FileTaken(
            f"{path} is being written by another process, so this one (pid {os.getpid()}) has no "
            f"{what}; with {{pid}} or {{rank}} in {variable} each has its own"
        ) from None
    except OSError:
        pass  # a file system without locks
    return mark
