"""The file of a trace: versioned, compressed, written as a stream. docs/reference/trace-format.md
is its manual.

Whole blocks are written, so a killed job loses only its last moments. A damaged, incomplete or
other file is a TraceError, which names the file, the offset and the fault.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtr_alloc import bounded
from dtr_alloc.output_file import OutputFile
from dtr_alloc.traces.trace import COLUMNS, MOST_EVENTS, MOST_NAME_BYTES, Trace, TraceError

MAGIC = b"\x89DTRtrc\n"
VERSION = 1
BLOCK_EVENTS = 1 << 16
"""The most events of a block that this module writes."""

_HEAD = struct.Struct("<8sHHI")  # magic, version, 0, 0
_BLOCK = struct.Struct("<4sIIII")  # type, compressed bytes, bytes, count, CRC-32 of all but itself
_META, _NAMES, _EVENTS, _END = b"META", b"NAME", b"EVNT", b"DONE"
_MOST_BYTES = 1 << 28
"""The largest block that is read: a damaged length could otherwise fill the memory."""
_MOST_FILE_BYTES = 1 << 31
_MOST_NAMES = 1 << 20
_LEVEL = 1


class TraceWriter:
    """Writes a trace as a stream. A context manager; close() ends the file.

    Args:
        path: the file (dtr_alloc/output_file.py).
        meta: known at the beginning; plain JSON.
        grows: whether it is in place from the beginning.

    Raises OSError as the disk does; the file then ends with its last whole block.
    """

    def __init__(
        self, path: str | os.PathLike[str], meta: dict[str, Any], grows: bool = True
    ) -> None:
        self.path = os.fspath(path)
        self.events = 0
        self._numbers: dict[str, int] = {"": 0}
        self._new_names: list[str] = []
        head = _HEAD.pack(MAGIC, VERSION, 0, 0) + _packed(_META, _to_json(meta), 1)
        self._file = OutputFile(Path(self.path), grows)
        self._file.append(head)

    def name(self, text: str) -> int:
        """The number of a name in this file."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._numbers)
            self._new_names.append(text)
        return number

    def write(self, columns: Sequence[array[int]]) -> None:
        """Appends events: columns of equal length, in the order and types of COLUMNS. Their names
        are numbers from name()."""
        count = len(columns[0])
        for begin in range(0, count, BLOCK_EVENTS):
            end = min(begin + BLOCK_EVENTS, count)
            data = b"".join(
                [
                    _shuffled(part[begin:end], column.width)
                    for part, column in zip(columns, COLUMNS, strict=True)
                ]
            )
            self._file.append(self._names_block() + _packed(_EVENTS, data, end - begin))
            self._new_names.clear()
            self.events += end - begin

    def _names_block(self) -> bytes:
        names = self._new_names
        return _packed(_NAMES, _to_json(names), len(names)) if names else b""

    def close(self, end: dict[str, Any] | None = None) -> None:
        """Ends the file; end is added to its meta. More calls do nothing."""
        if self._file.closed:
            return
        try:
            self._file.append(
                self._names_block() + _packed(_END, _to_json(end or {}), self.events & 0xFFFFFFFF)
            )
            self._file.put_in_place()
        finally:
            self._file.close()

    def leave(self) -> None:
        """Closes the file without its end."""
        self._file.close()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self._file.abandon()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a whole trace: a failure leaves the old file. Raises OSError as the disk does."""
    with TraceWriter(path, trace.meta, grows=False) as writer:
        numbers = [writer.name(text) for text in trace.names]
        columns = trace.columns()
        if numbers != list(range(len(numbers))):  # a name that is there twice
            columns[-1] = array("I", [numbers[name] for name in trace.name])
        writer.write(columns)


def read(path: str | os.PathLike[str], *, allow_truncated: bool = False) -> Trace:
    """Reads a trace. Only the rules of the file are checked; see Trace.validate().

    Args:
        path: the file.
        allow_truncated: whether the incomplete file of a killed job is read up to its last whole
            block; its meta says ``"truncated": true`` then.

    Takes memory for the file (2 GiB at most), 39 bytes for each event (MOST_EVENTS), and 2 GiB for
    names and meta; larger blocks are refused before they are unpacked.

    Raises TraceError for a damaged, incomplete, too large or other file, or another version, and
    OSError if it cannot be opened.
    """
    with bounded.errors_as(TraceError, path):
        reader = _Reader(path, allow_truncated)
    try:
        return reader.run()
    except MemoryError:
        raise reader.error(bounded.OUT_OF_MEMORY) from None


class _Reader:
    def __init__(self, path: str | os.PathLike[str], allow_truncated: bool) -> None:
        self.path = os.fspath(path)
        self.data = memoryview(bounded.read_bytes(path, _MOST_FILE_BYTES))
        self.allow_truncated = allow_truncated
        self.at = 0
        self.name_bytes = 0

    def error(self, reason: str) -> TraceError:
        return TraceError(f"{self.path}, at byte {self.at}: {reason}")

    def run(self) -> Trace:
        self.read_head()
        trace = Trace()
        has_meta = False
        while True:
            if self.at == len(self.data) or self.is_cut_off():
                if not self.allow_truncated:
                    raise self.error(
                        f"the file is cut off, after {len(trace)} events; a job that was killed "
                        "leaves such a file, and what is there can be read if that is allowed"
                    )
                if not has_meta:
                    raise self.error("the file is cut off before anything that can be read")
                trace.meta["truncated"] = True
                return trace
            kind, payload, count = self.read_block()
            if not has_meta and kind != _META:
                raise self.error(f"the first block is {kind!r}, not META")
            if kind == _META:
                if has_meta:
                    raise self.error("a second META block")
                trace.meta = self.from_json(payload, dict)
                has_meta = True
            elif kind == _NAMES:
                self.read_names(trace, payload, count)
            elif kind == _EVENTS:
                self.read_events(trace, payload, count)
            else:
                self.read_end(trace, payload, count)
                return trace
            self.at += _BLOCK.size + self.length

    def read_head(self) -> None:
        head = bytes(self.data[: _HEAD.size])
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            what = "is empty" if not head else f"begins with {head[:8]!r}"
            if head and MAGIC.startswith(head[: len(MAGIC)]):
                what = "is cut off in its first bytes"
            raise self.error(f"the file {what}: it is no trace of dtr_alloc")
        _, version, *zeros = _HEAD.unpack(head)
        if version != VERSION or any(zeros):
            raise self.error(
                f"the file is of version {version}; this dtr_alloc reads version {VERSION}"
            )
        self.at = _HEAD.size

    def is_cut_off(self) -> bool:
        left = len(self.data) - self.at
        if left < _BLOCK.size:
            return True
        kind, length, size, *_ = _BLOCK.unpack_from(self.data, self.at)
        if kind not in (_META, _NAMES, _EVENTS, _END):
            raise self.error(f"damaged: {kind!r} is no type of block")
        if length > _MOST_BYTES or size > _MOST_BYTES:
            raise self.error(f"damaged: a block of {max(length, size)} bytes")
        return bool(left < _BLOCK.size + length)

    def read_block(self) -> tuple[bytes, bytes, int]:
        kind, self.length, size, count, crc = _BLOCK.unpack_from(self.data, self.at)
        begin = self.at + _BLOCK.size
        packed = self.data[begin : begin + self.length]
        if kind != _EVENTS and size > MOST_NAME_BYTES:
            raise self.error(f"a {kind.decode()} block of {size} bytes; allowed: {MOST_NAME_BYTES}")
        if zlib.crc32(packed, zlib.crc32(self.data[self.at : begin - 4])) != crc:
            raise self.error(f"damaged: the checksum of a {kind.decode()} block is wrong")
        unpacker = zlib.decompressobj()
        try:
            payload = unpacker.decompress(packed, size + 1)
        except zlib.error as error:
            raise self.error(f"damaged: {error}") from None
        if len(payload) != size or not unpacker.eof:
            raise self.error(f"damaged: a {kind.decode()} block does not have its {size} bytes")
        return kind, payload, count

    def from_json(self, payload: bytes, kind: type) -> Any:
        try:
            found = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise self.error(f"damaged: {error}") from None
        if not isinstance(found, kind):
            raise self.error(f"damaged: a {type(found).__name__} where a {kind.__name__} belongs")
        return found

    def read_names(self, trace: Trace, payload: bytes, count: int) -> None:
        self.name_bytes += len(payload)
        if count > _MOST_NAMES - len(trace.names) or self.name_bytes > MOST_NAME_BYTES:
            raise self.error(
                f"too many names; allowed: {_MOST_NAMES}, of {MOST_NAME_BYTES} bytes together"
            )
        found = self.from_json(payload, list)
        if len(found) != count or not all(isinstance(name, str) for name in found):
            raise self.error(f"damaged: a block of {count} names that are none")
        # No lone surrogates: nothing could print or draw them.
        trace.names.extend(name.encode(errors="replace").decode() for name in found)

    def read_events(self, trace: Trace, payload: bytes, count: int) -> None:
        if len(payload) != count * sum(column.width for column in COLUMNS):
            raise self.error(f"damaged: {count} events in {len(payload)} bytes")
        if len(trace) + count > MOST_EVENTS:
            raise self.error(f"more than {MOST_EVENTS} events, the most that are read")
        begin = 0
        for part, column in zip(trace.columns(), COLUMNS, strict=True):
            end = begin + count * column.width
            part.frombytes(_unshuffled(payload[begin:end], column.width, count))
            begin = end
        names = trace.name[len(trace) - count :]
        if count and max(names) >= len(trace.names):
            raise self.error(f"damaged: name {max(names)} of {len(trace.names)}")

    def read_end(self, trace: Trace, payload: bytes, count: int) -> None:
        if count != len(trace) & 0xFFFFFFFF:
            raise self.error(f"damaged: {len(trace)} events, and the end counts {count}")
        self.at += _BLOCK.size + self.length
        if self.at != len(self.data):
            raise self.error(f"{len(self.data) - self.at} bytes follow the end of the trace")
        trace.meta.update(self.from_json(payload, dict))


def _packed(kind: bytes, payload: bytes, count: int) -> bytes:
    packed = zlib.compress(payload, _LEVEL)
    head = _BLOCK.pack(kind, len(packed), len(payload), count, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(packed, zlib.crc32(head))) + packed


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _shuffled(numbers: array[int], width: int) -> bytes:
    """The lowest bytes of all numbers, then the next, ...: similar bytes are neighbors. (Machines
    are little-endian.)"""
    data = numbers.tobytes()
    return data if width == 1 else b"".join([data[byte::width] for byte in range(width)])


def _unshuffled(planes: bytes, width: int, count: int) -> bytes:
    if width == 1:
        return planes
    data = bytearray(len(planes))
    for byte in range(width):
        data[byte::width] = planes[byte * count : (byte + 1) * count]
    return bytes(data)
