"""The files that a job leaves: statistics, costs, logs and traces.

Each is a new file that takes its path. So a link at the path is replaced and not followed, and what
was there before stays whole for those who have it open, or know it by another name. What is no file
is written to as it is: a device, a pipe that somebody reads, what /dev/stdout stands for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

ALLOWED = "a file, a device such as /dev/null, or a pipe that somebody reads"


class WrongKind(OSError):
    """At a path is nothing that can be written to. ``reason`` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; allowed: {ALLOWED}")
        self.reason = reason


class FileTaken(RuntimeError):
    """Another process writes this file: one that this job started, or that started it."""


class OutputFile:
    """A file that takes its path once it is in place, and until then stands beside it.

    A context manager. What is closed without having been in place is gone.

    Args:
        path: the folders above it are there.
        grows: whether it is in place from the beginning, so that a job that is killed leaves what
            it has written.

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
        """Appends all of it or, if it raises, nothing; of a pipe or device some may be through."""
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
        """From now on it is what is at the path."""
        if self._beside is not None:
            self._beside.replace(self.path)
            self._beside = None

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """More calls do nothing."""
        if self.closed:
            return
        self._cut()
        self._file.close()
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)

    def abandon(self) -> None:
        """In a forked child: the file is the parent's, whatever is still done with this object."""
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
    """What is written to as it is; None where a new file takes the path."""
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
    """Whether nobody else has it locked. Nobody has where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def lock_file(path: Path, what: str, variable: str) -> FileIO:
    """Keeps other processes from writing to the same path until what it returns is closed.

    The lock is on the file that is at the path now, which is made if there is none. The OutputFile
    that takes its place has one as well, so whoever comes later finds that.

    Args:
        path: the folders above it are there.
        what: the name of the content, for the message.
        variable: the variable that names the path.

    Raises FileTaken if another process holds it, WrongKind, and other OSErrors.
    """
    while True:
        mark = _open_if_no_file(path)
        is_file = mark is None
        if mark is None:
            try:
                mark = FileIO(path, "a", opener=_open_no_link)
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


def _open_no_link(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def not_private(found: os.stat_result) -> str | None:
    """Who but this user can write to a file or folder; None: nobody."""
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written to by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A path to write to, which is renamed to the other one once it is complete: a failure leaves
    what was there. What is there and is no file, such as /dev/null, is written to instead of
    replaced. Raises OSError."""
    part = Path(f"{path}.{os.getpid()}.part")
    try:
        yield part
        if path.exists() and not path.is_file():
            path.write_bytes(part.read_bytes())
        else:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
