"""The folders of compiled bridges, and the conditions for loading from them.

A bridge runs code as the user, so its writers must be trusted:

- A folder, or a file in it, is used only if it belongs to the user and nobody else can write to it.
  Both are opened first and then examined by their descriptors, so exchanging them in a folder above
  gains nothing.
- A bridge ends in the SHA-256 of its content, which is checked before the bridge is loaded: a
  truncated library would end the process (SIGBUS), perhaps during `import torch`.
- The package's own folder of bridges may have any owner: its writers can also exchange the code
  beside it.
- A bridge is compiled in a folder of its own, synced and renamed. The compiling process holds a
  lock, and removes leftovers of killed builds.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dtr_alloc.output_file import not_private
from dtr_alloc.torch_versions import BridgeError

_MARK = b"\ndtr_alloc sha256 "
_LOCK = ".dtr_alloc-lock"
_BUILDING = ".dtr_alloc-building-"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def candidates() -> list[Path]:
    """The folders that may have a bridge, or get it: DTR_ALLOC_CACHE, or else the user's cache
    folder, and as its substitute one in the folder for temporary files."""
    named = os.environ.get("DTR_ALLOC_CACHE")
    if named:
        return [Path(named).expanduser()]
    fallback = Path(tempfile.gettempdir()) / f"dtr_alloc-{os.geteuid()}"
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # a user without a name or a home
        return [fallback]
    return [home / "dtr_alloc", fallback]


class Cache:
    """One folder, open until close().

    Args:
        create: whether the folder is made if necessary, and must be writable.
        packaged: whether it is part of this package.

    Raises BridgeError if the folder cannot be used.
    """

    def __init__(self, path: Path, create: bool, packaged: bool = False) -> None:
        self.path = path.absolute()
        self._packaged = packaged
        try:
            if create:
                _make(self.path)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise BridgeError(f"{self.path} cannot keep the bridge to PyTorch: {error}") from None
        reason = None if packaged else not_private(os.fstat(self._descriptor))
        if reason is None and create and not os.access(self.address("."), os.W_OK | os.X_OK):
            reason = "cannot be written to"
        if reason is not None:
            self.close()
            raise BridgeError(
                f"{self.path} cannot keep the bridge to PyTorch: it {reason}; allowed: a folder "
                f"that belongs to user {os.geteuid()} and that nobody else can write to "
                "(chmod go-w, or name another in DTR_ALLOC_CACHE)"
            )

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, name: str) -> str:
        """The path of a bridge for dlopen while the cache is open, safe from exchanges in folders
        above."""
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def fault(self, name: str) -> str | None:
        """The reason why the bridge cannot be loaded; None if it can. "" if there is none."""
        try:
            content = _read(name, self._descriptor, self._packaged)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if isinstance(content, str):
            return content
        end = len(content) - len(_MARK) - hashlib.sha256().digest_size
        if end < 0 or content[end:] != _trailer(content[:end]):
            return "is damaged: its checksum does not fit"
        return None

    def build(
        self, name: str, compile_in: Callable[[int], None], check: Callable[[str], object]
    ) -> None:
        """Compiles the bridge if it does not exist.

        Args:
            compile_in: writes a file of that name to the folder with this descriptor. Raises
                BridgeError.
            check: takes the file's path for dlopen. Raises BridgeError if it is not a bridge.
        """
        try:
            with self._lock() as alone:
                for leftover in os.listdir(self._descriptor) if alone else ():
                    if leftover.startswith(_BUILDING):
                        shutil.rmtree(leftover, ignore_errors=True, dir_fd=self._descriptor)
                if self.fault(name) is not None:
                    self._build(name, compile_in, check)
        except OSError as error:
            raise BridgeError(f"{self.path} cannot keep the bridge to PyTorch: {error}") from None

    def _build(
        self, name: str, compile_in: Callable[[int], None], check: Callable[[str], object]
    ) -> None:
        building = f"{_BUILDING}{secrets.token_hex(8)}"
        os.mkdir(building, 0o700, dir_fd=self._descriptor)
        try:
            folder = os.open(
                building, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._descriptor
            )
            try:
                compile_in(folder)
                _seal(name, folder)
                # By a path that was never loaded from: dlopen goes by the path first.
                check(self.address(f"{building}/{name}"))
                os.replace(name, name, src_dir_fd=folder, dst_dir_fd=self._descriptor)
                os.fsync(self._descriptor)
            finally:
                os.close(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True, dir_fd=self._descriptor)

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Yields whether nobody else builds; False only where the file system has no locks."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        lock = os.open(_LOCK, flags, 0o600, dir_fd=self._descriptor)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(
                    "dtr_alloc: waiting for another process, which compiles a bridge to PyTorch in "
                    f"{self.path}",
                    file=sys.stderr,
                )
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                yield False
                return
            yield True
        finally:
            os.close(lock)


def _make(path: Path) -> None:
    """Makes a folder and those above it, with nobody else's access."""
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def _read(name: str, folder: int, packaged: bool = False) -> bytes | str:
    """A file's content, or its fault."""
    # A pipe in its place is not waited for.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return "is no file"
        if not packaged and (reason := not_private(found)) is not None:
            return reason
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _trailer(content: bytes) -> bytes:
    return _MARK + hashlib.sha256(content).digest()


def _seal(name: str, folder: int) -> None:
    """Adds the checksum to a compiled library. Raises BridgeError if it is none."""
    try:
        content = _read(name, folder)
    except FileNotFoundError:
        raise BridgeError("it wrote nothing") from None
    if isinstance(content, str):
        raise BridgeError(f"what it wrote {content}")
    if not _is_library(content):
        raise BridgeError(f"what it wrote, {len(content)} bytes, is no shared library")
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    with open(os.open(name, flags, dir_fd=folder), "ab") as file:
        file.write(_trailer(content))
        file.flush()
        os.fsync(file.fileno())


def _is_library(content: bytes) -> bool:
    """Whether it is a complete ELF shared object of 64 bits, little-endian."""
    try:
        kind = struct.unpack_from("<H", content, 16)[0]
        (headers,) = struct.unpack_from("<Q", content, 32)
        size, count = struct.unpack_from("<HH", content, 54)
        ends = []
        for at in range(headers, headers + size * count, max(size, 1)):
            _type, _flags, offset, _v, _p, in_file = struct.unpack_from("<IIQQQQ", content, at)
            ends.append(offset + in_file)
    except struct.error:
        return False
    shared_object = 3
    is_shared = content[:6] == b"\x7fELF\x02\x01" and kind == shared_object
    return is_shared and bool(ends) and max(ends) <= len(content)
