"""Instructions of op logs, one a line, and the files of them; see dtr_alloc/oplog."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dtr_alloc import bounded
from dtr_alloc.output_file import OutputFile

MOST = 2**62
"""The largest size or time of a line."""

MOST_SHOWN = 200
"""Characters of a line that a message repeats."""

MOST_LINE_BYTES = 1 << 24
MOST_LOG_BYTES = 1 << 31
"""As text, however small the file is that it is compressed in."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
Names: TypeAlias = tuple[str, ...]


class LogError(ValueError):
    """A log is wrong. The message names the file, the line (None: the whole file) and the fault."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


class _Line(Struct, frozen=True, gc=False, rename="upper", tag_field="INSTRUCTION"):
    """A line of a log. The fields are the keys, in lower case. (gc: they form no cycles.)"""


class Annotate(_Line, frozen=True, tag="ANNOTATE"):
    annotation: str
    trace: Names | None = None  # of WORKSPACE
    name: str | None = None  # from here on: of EFFECT_LINE, the first two of PLACE_LINE, too
    args: Names | None = None
    result: Names | None = None
    time: Number | None = None


class Constant(_Line, frozen=True, tag="CONSTANT"):
    name: str


class Memory(_Line, frozen=True, tag="MEMORY"):
    name: str
    memory: Number


class Alias(_Line, frozen=True, tag="ALIAS"):
    name: str
    alias: Annotated[int, Meta(ge=-1, le=MOST)]


class Call(_Line, frozen=True, tag="CALL"):
    name: str
    args: Names
    result: Annotated[Names, Meta(min_length=1)]
    time: Number


class Mutate(_Line, frozen=True, tag="MUTATE"):
    name: str
    args: Names
    mutate: Annotated[tuple[Number, ...], Meta(min_length=1)]
    time: Number
    unread: tuple[Number, ...] = ()  # some of `mutate`


class Copy(_Line, frozen=True, tag="COPY"):
    dst: str
    src: str


class CopyFrom(_Line, frozen=True, tag="COPY_FROM"):
    dst: str
    src: str


class Release(_Line, frozen=True, tag="RELEASE"):
    name: str


Instruction: TypeAlias = (
    Annotate | Constant | Memory | Alias | Call | Mutate | Copy | CopyFrom | Release
)

START = Annotate("START")
RECORDED = Annotate("RECORDED")
"""Before START, in logs of dtr_alloc."""
WORKSPACE = "WORKSPACE"
EFFECT_LINE = "EFFECT"
PLACE_LINE = "PLACE"


def effect(name: str, args: Names, result: Names, time: int) -> Annotate:
    """An operator that is never repeated."""
    return Annotate(EFFECT_LINE, None, name, args, result, time)


def place(module: str, line: str) -> Annotate:
    """The call site of the operators that follow; "" if it is not known."""
    return Annotate(PLACE_LINE, None, module, (line,))


# Not strict: a number may be written as a string.
_decode = msgspec.json.Decoder(Instruction, strict=False).decode
_encode = msgspec.json.Encoder().encode


# ---- files ----

_BAD_LINE = (msgspec.MsgspecError, ValueError, RecursionError)
_CHUNK_BYTES = 1 << 20
_OPENED: dict[str, Callable[[str], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    # Logs repeat themselves: the smallest preset does nearly as well in a tenth of the time.
    ".xz": partial(lzma.compress, preset=1),
}
"""By suffix, the functions of the standard library."""


def _zstd_for(path: str) -> Any:
    """A module that reads and writes .zst files."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):  # the first: Python 3.14
        with suppress(ImportError):
            return import_module(name)
    reason = "for .zst install backports.zstd or zstandard; .gz, .bz2, .xz need nothing"
    raise LogError(path, None, reason)


def open_file(path: str) -> Any:
    """The unbuffered bytes of a file, unpacked by its suffix."""
    suffix = os.path.splitext(path)[1]
    if suffix in _OPENED:
        return _OPENED[suffix](path)
    if suffix == ".zst":
        zstd = _zstd_for(path)
        if hasattr(zstd, "ZstdFile"):
            return zstd.open(path)
        # The open() of zstandard ends behind the first frame.
        file = open(path, "rb")  # noqa: SIM115
        return zstd.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return open(path, "rb", buffering=0)


def packer(path: str) -> Callable[[bytes], bytes]:
    """The compression of a path's suffix. Its results, one behind another, are a valid file."""
    suffix = os.path.splitext(path)[1]
    if suffix == ".zst":
        compress: Callable[[bytes], bytes] = _zstd_for(path).compress
        return compress
    return _PACKED.get(suffix, bytes)


class Reader:
    """The instructions of a log after START, each checked by itself. Iterate once.

    Attributes:
        path: of the file; ``-`` is stdin.
        line: the number of the last line, from 1.
        recorded: whether RECORDED was read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.line = 0
        self.recorded = False

    def error(self, reason: str) -> LogError:
        return LogError(self.path, self.line, reason)

    def __iter__(self) -> Iterator[Instruction]:
        if self.path == "-":
            yield from self._instructions(sys.stdin.buffer)
            return
        with open_file(self.path) as file:
            yield from self._instructions(io.BufferedReader(file, _CHUNK_BYTES))

    def _instructions(self, file: IO[bytes]) -> Iterator[Instruction]:
        lines = self._lines(file)
        for line in lines:
            self.recorded |= _is(RECORDED, line)
            if _is(START, line):
                break
        else:
            reason = "no line is ANNOTATE START" if self.line else "the file is empty"
            raise LogError(self.path, None, reason)
        empty = True
        for line in lines:
            try:
                instruction = _decode(line)
            except _BAD_LINE as error:
                if not line.strip():
                    continue
                instruction = self._respelled(line, error)
            empty = False
            yield instruction
        if empty:
            raise LogError(self.path, None, "nothing follows ANNOTATE START")

    def _lines(self, file: IO[bytes]) -> Iterator[bytes]:
        try:
            for line in bounded.lines(file, MOST_LINE_BYTES, MOST_LOG_BYTES):
                self.line += 1
                yield line
        except bounded.TooMuch as error:
            raise self.error(f"after this line {error}") from None
        except MemoryError:
            raise self.error(bounded.OUT_OF_MEMORY) from None
        except Exception as error:  # each way of compressing has its own kinds
            reason = f"the file is damaged or cut off after this line ({error})"
            raise self.error(reason) from None

    def _respelled(self, line: bytes, failure: Exception) -> Instruction:
        """Of the spelling COPYFROM."""
        with suppress(*_BAD_LINE):
            return _decode(line.replace(b'"COPYFROM"', b'"COPY_FROM"', 1))
        raise self.error(f"{failure!s:.{MOST_SHOWN}}") from None


def _is(wanted: Annotate, line: bytes) -> bool:
    # What stands before START may be anything, so it is not decoded.
    if wanted.annotation.encode() not in line:
        return False
    try:
        return bool(_decode(line) == wanted)
    except _BAD_LINE:
        return False


def read(path: str | os.PathLike[str]) -> Iterator[Instruction]:
    """The instructions after START, one at a time.

    Takes memory for one line (MOST_LINE_BYTES), and at most some ten microseconds for each 50 bytes
    of text (MOST_LOG_BYTES).

    Raises OSError if the file cannot be opened, and LogError for a line that is no instruction, for
    an empty, damaged, incomplete or too large file, and if nothing follows START.
    """
    return iter(Reader(path))


def to_line(instruction: Instruction) -> bytes:
    """An instruction as a line of a log, newline included; numbers as in simrd's logs."""
    parts: dict[str, Any] = {"INSTRUCTION": instruction.__struct_config__.tag}
    match instruction:
        case Call(name, args, result, time):
            parts |= {"NAME": name, "ARGS": args, "RESULT": result, "TIME": str(time)}
        case Mutate(name, args, mutate, time, unread):
            parts |= {"NAME": name, "ARGS": args, "MUTATE": mutate, "TIME": str(time)}
            if unread:
                parts["UNREAD"] = unread
        case Memory(name, memory):
            parts |= {"NAME": name, "MEMORY": str(memory)}
        case Alias(name, alias):
            parts |= {"NAME": name, "ALIAS": str(alias)}
        case Constant(name) | Release(name):
            parts["NAME"] = name
        case Copy(dst, src) | CopyFrom(dst, src):
            parts |= {"DST": dst, "SRC": src}
        case Annotate(annotation, trace, name, args, result, time):
            given = {"TRACE": trace, "NAME": name, "ARGS": args, "RESULT": result}
            given["TIME"] = None if time is None else str(time)
            parts["ANNOTATION"] = annotation
            parts |= {key: value for key, value in given.items() if value is not None}
    return _encode(parts) + b"\n"


class Writer:
    """Writes a log: START, then the given instructions, compressed by the suffix; ``recorded``:
    with RECORDED before it.

    The file can always be read to its end, also after an interrupt in the middle of a call: it
    grows by whole groups of lines, each compressed as a file. A context manager. Raises OSError as
    the disk does.
    """

    def __init__(self, path: str | os.PathLike[str], recorded: bool = False) -> None:
        self.path = os.fspath(path)
        self._pack = packer(self.path)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._file = OutputFile(Path(self.path), grows=True)
        self.write(*([RECORDED] if recorded else []), START)

    def write(self, *group: Instruction) -> None:
        """Adds lines that belong together, such as CALL and the MEMORY of its results."""
        lines = b"".join(map(to_line, group))
        self._waiting.append(lines)
        self._waiting_bytes += len(lines)
        if self._waiting_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting lines; if it raises, as many as fit on the disk."""
        groups, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        if not groups:
            return
        try:
            self._file.append(self._pack(b"".join(groups)))
        except OSError:
            for group in groups:
                self._file.append(self._pack(group))

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self._waiting.clear()
        self._file.abandon()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
