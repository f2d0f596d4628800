"""Files of others: readers bound the memory, the time and the shown text.

Every reader states in its docstring the most time and memory that a file can cost, and refuses what
would cost more, naming the file and the place. Messages show a value of a file by ``shown``: lists
of a pickle may share their parts, so a few hundred bytes may print as more text than there is
memory.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from typing import IO, Any

OUT_OF_MEMORY = "there is not enough memory to read it"
_CHUNK_BYTES = 1 << 20
_TEXT = 80
_ITEMS = 8
_BITS = 256


class TooMuch(ValueError):
    """More than is read: the message has the limit. The reader adds the file's name."""


class Damaged(ValueError):
    """A compressed file cannot be unpacked. The reader adds the file's name."""


@contextmanager
def errors_as(kind: type[Exception], path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises an error that names the file for what is too much, damaged, or fills the memory."""
    try:
        yield
    except (TooMuch, Damaged) as error:
        raise kind(f"{os.fspath(path)}: {error}") from None
    except MemoryError:
        raise kind(f"{os.fspath(path)}: {OUT_OF_MEMORY}") from None


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file as bytes, unpacked if it begins as gzip's do.

    Raises Damaged if it cannot be unpacked, and OSError.
    """
    with open(path, "rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if is_packed else open(path, "rb") as file:
        try:
            yield file  # type: ignore[misc]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise Damaged(f"it cannot be unpacked: {error}") from None


def read_bytes(path: str | os.PathLike[str], most_bytes: int) -> bytearray:
    """A file's content, with at most as much memory as it has bytes and a quarter.

    Raises TooMuch beyond ``most_bytes``, for endless devices too, and OSError.
    """
    with open(path, "rb") as file:
        return rest(file, most_bytes)


def rest(file: BufferedIOBase | IO[bytes], most_bytes: int) -> bytearray:
    """The rest of an open file, counted as decompressed; memory and errors as in read_bytes()."""
    data = bytearray()
    while chunk := file.read(_CHUNK_BYTES):
        data += chunk
        if len(data) > most_bytes:
            raise TooMuch(f"it has more than {most_bytes} bytes, the most that are read")
    return data


def lines(file: IO[bytes], most_line: int, most_bytes: int) -> Iterator[bytes]:
    """The lines of an open file. Holds one at a time.

    Raises TooMuch for a line of more than ``most_line`` bytes, and beyond ``most_bytes``, counted
    as decompressed.
    """
    left, read = most_bytes, file.readline
    while line := read(most_line + 1):
        size = len(line)
        left -= size
        if size > most_line:
            raise TooMuch(f"a line has more than {most_line} bytes, the most that are read")
        if left < 0:
            raise TooMuch(f"there are more than {most_bytes} bytes, the most that are read")
        yield line


def shown(value: Any, depth: int = 2, text: int = _TEXT) -> str:
    """As repr(), in a few lines, for any value from a file: the beginning of a text, the items of a
    small list or dictionary, as far as ``depth``."""
    if isinstance(value, str | bytes | bytearray):
        return repr(value[:text]) + ("..." if len(value) > text else "")
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | dict) and len(value) <= _ITEMS and depth:
        if isinstance(value, list):
            return f"[{', '.join(shown(part, depth - 1) for part in value)}]"
        parts = (f"{shown(k, 0)}: {shown(part, depth - 1)}" for k, part in value.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, list | dict | tuple | set | frozenset):
        return f"a {type(value).__name__}"
    return f"{value!r:.{_TEXT}}"  # of a program: no file holds it


def printable(text: str) -> str:
    r"""A text of others for a terminal, a picture or a file: unprintable characters (control
    characters, halves of surrogate pairs) are escapes, such as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
