"""The files that a job writes: statistics, costs, logs and traces.

Each is a new file that takes its path. So a link at the path is replaced and not followed, and the
old file stays whole for processes that have it open, or by its other names. Devices, pipes with a
reader, and the target of /dev/stdout are written to as they are.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path

ALLOWED = "a file, a device such as /dev/null, or a pipe that somebody reads"


class WrongKind(OSError):
    """The path cannot be written to. ``reason`` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; allowed: {ALLOWED}")
        self.reason = reason


class FileTaken(RuntimeError):
    """Another process writes this file: a child or the parent of this one."""


class OutputFile:
    """A file that takes its path once it is in place, and until then is beside it.

    A context manager. A file that is closed before it is in place is deleted.

    Args:
        path: the folders above it exist.
        grows: whether it is in place from the beginning, so that a killed job leaves the written
            part.

    Raises WrongKind, or another OSError if it cannot be made.
    """

    def __init__(self, path: Path, grows: bool = False) -> None:
        self.path = path
        self._whole = 0  # bytes; what an interrupted append() left is beyond
        self._beside: Path | None = None
        found = _open_if_no_file(path)
        self._is_file = found is None
        if found is not None:
            self._file = found
            return
        beside = path.with_name(f".dtr_alloc-{os.getpid()}-{os.urandom(4).hex()}.tmp")
        self._beside = beside
        try:
            self._file = FileIO(beside, "x")
            _lock(self._file)  # before anybody finds it at the path; see lock_file
            if grows:
                self.put_in_place()
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def append(self, data: bytes) -> None:
        """Appends all of it or, if it raises, nothing; a part of it may have gone to a pipe or
        device."""
        done = 0
        try:
            while done < len(data):
                rest = memoryview(data)[done:]
                if self._is_file:
                    done += os.pwrite(self._file.fileno(), rest, self._whole + done)
                else:
                    done += self._file.write(rest) or 0
        except OSError:
            self._cut()
            raise
        self._whole += len(data)

    def _cut(self) -> None:
        if self._is_file:
            os.ftruncate(self._file.fileno(), self._whole)

    def put_in_place(self) -> None:
        """Replaces the file at the path."""
        if self._beside is not None:
            self._beside.replace(self.path)
            self._beside = None

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """May be called again."""
        if self.closed:
            return
        self._cut()
        self._file.close()
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)

    def abandon(self) -> None:
        """In a forked child: the file is the parent's, and this object writes to it no more."""
        self._is_file = False
        self._beside = None
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._file.fileno(), inheritable=False)
        os.close(nothing)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_if_no_file(path: Path) -> FileIO | None:
    """Opens what is written to as it is; None if a new file takes the path."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return None
    # Only the system makes links there. They lead to what the process has open.
    folder = os.path.realpath(path.parent)
    follows = stat.S_ISLNK(kind) and (folder == "/dev" or folder.startswith("/proc/"))
    if not follows:
        if stat.S_ISREG(kind) or stat.S_ISLNK(kind):
            return None
        if not (stat.S_ISCHR(kind) or stat.S_ISFIFO(kind) or stat.S_ISDIR(kind)):
            raise WrongKind(path, "it is neither of these")
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
    if not follows:
        flags |= os.O_NOFOLLOW
    try:
        file = FileIO(path, "w", opener=lambda name, _: os.open(name, flags))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise WrongKind(path, "nobody reads this pipe") from None
        raise
    os.set_blocking(file.fileno(), True)
    return file


def _lock(file: FileIO) -> bool:
    """Whether nobody else has it locked; True on file systems without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def lock_file(path: Path, what: str, variable: str) -> FileIO:
    """Keeps other processes from writing to the same path until the returned file is closed.

    The lock is on the file at the path, which is made if there is none. The OutputFile that
    replaces it has a lock as well, for later processes.

    Args:
        path: the folders above it exist.
        what: the content, for the message.
        variable: that names the path.

    Raises FileTaken if another process holds it, WrongKind, and other OSErrors.
    """
    while True:
        mark = _open_if_no_file(path)
        is_file = mark is None
        if mark is None:
            try:
                mark = FileIO(
                    path,
                    "a",
                    opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666),
                )
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                path.unlink(missing_ok=True)
                continue
        if stat.S_ISCHR(os.fstat(mark.fileno()).st_mode):
            return mark  # many processes may write to /dev/null
        if not _lock(mark):
            mark.close()
            raise FileTaken(
                f"{path} is being written by another process, so this one (pid {os.getpid()}) has "
                f"no {what}; with {{pid}} or {{rank}} in {variable} each has its own"
            )
        with suppress(FileNotFoundError):
            if not is_file or os.path.samestat(os.fstat(mark.fileno()), path.lstat()):
                return mark
        mark.close()  # another file has taken the path meanwhile


def not_private(found: os.stat_result) -> str | None:
    """Who else than this user can write to a file or folder; None: nobody."""
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written to by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def write(path: Path, data: bytes) -> None:
    """Writes a whole file: a failure leaves the old one. Raises OSError."""
    with OutputFile(path) as file:
        file.append(data)
        file.put_in_place()
