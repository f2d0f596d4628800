"""Pickles of plain values only: reading one runs nothing that stands in it.

Python's own unpickler can be kept from running code, and from nothing else: a few bytes make it
fill gigabytes for a memo's index, or spend years on the hash of a tuple whose parts are shared. So
this reads the few opcodes that plain values need. Upstream: CPython's pickletools.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import unpack_from
from typing import Any

from dtr_alloc import bounded
from dtr_alloc.traces.trace import TraceError

MOST_BYTES = 1 << 29
MOST_VALUES = 1 << 26
"""The largest file, and the most opcodes in it."""

_MOST_DIGITS = 64
"""Of a number, in bytes. Numbers of snapshots have eight."""


class _Refused(ValueError):
    """What stands at a place is no plain value."""


def load(path: str | os.PathLike[str]) -> Any:
    """The value in a pickle of protocol 2 or later: dict, list, tuple, int, float, str, bytes, bool
    and None. Keys of dictionaries are texts, or numbers of at most 60 bits.

    Lists and dictionaries may share parts and contain themselves, as the pickle says; whoever walks
    through them must not expect a tree (bounded.shown, bounded.is_plain).

    Takes at most 2 microseconds and 100 bytes for each opcode, of which there are no more than the
    file has bytes and MOST_VALUES, beside five times the file, which has MOST_BYTES at most.

    Raises TraceError for what is no pickle, is damaged, cut off, larger or holds anything else;
    OSError if the file cannot be opened.
    """
    try:
        reader = _Reader(bounded.read_bytes(path, MOST_BYTES))
    except bounded.TooMuch as error:
        raise TraceError(f"{os.fspath(path)}: {error}") from None
    try:
        return reader.run()
    except IndexError:
        reason = "it is cut off, or takes what is not there"
    # A text that is none; a key that is none; values put into what holds none.
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error)
    except MemoryError:
        reason = bounded.OUT_OF_MEMORY
    raise TraceError(
        f"{os.fspath(path)}, before byte {reader.at}: no pickle of plain values: {reason}"
    )


class _Reader:
    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.at = 0

    def run(self) -> Any:
        data = self.data
        stack: list[Any] = []
        marks: list[int] = []  # how high the stack was
        memo: list[Any] = []
        begin = self.at
        for _ in range(MOST_VALUES):
            self.at = at = begin + 1
            op = data[begin]
            # In the order of how often they occur. An index error: the file ends.
            if op == 0x68:  # BINGET
                stack.append(memo[data[at]])
                begin = at + 1
            elif op == 0x94:  # MEMOIZE
                memo.append(stack[-1])
                begin = at
            elif op in _FIXED:
                width, value_of = _FIXED[op]
                begin = at + width
                if begin > len(data):
                    raise IndexError
                stack.append(value_of(data, at))
            elif op in _SIZED:
                width, value_of_part = _SIZED[op]
                first = at + width
                begin = first + int.from_bytes(data[at:first], "little")
                if begin > len(data):
                    raise IndexError
                stack.append(value_of_part(data[first:begin]))
            elif op == 0x6A:  # LONG_BINGET
                begin = at + 4
                stack.append(memo[int.from_bytes(data[at:begin], "little")])
            elif op == 0x28:  # MARK
                marks.append(len(stack))
                begin = at
            elif op == 0x75 or op == 0x73:  # SETITEMS, SETITEM
                low = marks.pop() if op == 0x75 else len(stack) - 2
                items = stack[low:]
                if low < 1 or len(items) % 2 or type(stack[low - 1]) is not dict:
                    raise _Refused("items of no dictionary")
                keys = items[::2]
                if not all(type(key) is str or _is_key(key) for key in keys):
                    raise _Refused("a key of a dictionary is neither a text nor a number")
                stack[low - 1].update(zip(keys, items[1::2], strict=True))
                del stack[low:]
                begin = at
            elif op == 0x65 or op == 0x61:  # APPENDS, APPEND
                low = marks.pop() if op == 0x65 else len(stack) - 1
                if low < 1 or type(stack[low - 1]) is not list:
                    raise _Refused("items of no list")
                stack[low - 1] += stack[low:]
                del stack[low:]
                begin = at
            elif op in _TUPLES or op == 0x74:  # TUPLE1 to TUPLE3, TUPLE
                low = marks.pop() if op == 0x74 else len(stack) - _TUPLES[op]
                if low < 0:
                    raise IndexError
                stack[low:] = [tuple(stack[low:])]
                begin = at
            elif op in _PUTS:  # BINPUT, LONG_BINPUT
                begin = at + _PUTS[op]
                index = int.from_bytes(data[at:begin], "little")
                if index > len(memo):
                    raise _Refused(
                        f"number {index} of the memo; allowed: up to {len(memo)}, how many it has"
                    )
                memo[index : index + 1] = [stack[-1]]
            elif op == 0x95:  # FRAME
                begin = at + 8
            elif op == 0x80:  # PROTO
                begin = at + 1
                if not 2 <= data[at] <= 5:
                    raise _Refused(f"protocol {data[at]}; allowed: 2 to 5")
            elif op == 0x2E:  # STOP
                if len(stack) != 1 or marks:
                    raise _Refused("it does not end with one value")
                return stack[0]
            else:
                raise _Refused(self.asked(op, stack))
        raise _Refused(f"it has more than {MOST_VALUES} opcodes, the most that are read")

    def asked(self, op: int, stack: list[Any]) -> str:
        """What an opcode asks for that is not given."""
        if op == 0x93 and len(stack) > 1:  # STACK_GLOBAL
            name = ".".join(part if isinstance(part, str) else "?" for part in stack[-2:])
        elif op == 0x63:  # GLOBAL: two lines
            name = self.data[self.at :][:200].decode(errors="replace").replace("\n", ".", 1)
            name = name.partition("\n")[0]
        else:
            return f"opcode {op:#x}, which no number, text, list or dictionary needs"
        return (
            f"it asks for {name:.200}; a snapshot is made of numbers, texts, lists and "
            "dictionaries, and nothing else is loaded"
        )


def _whole(part: bytearray) -> int:
    if len(part) > _MOST_DIGITS:
        raise _Refused(f"a number of {len(part)} bytes; allowed: {_MOST_DIGITS}")
    return int.from_bytes(part, "little", signed=True)


def _text(part: bytearray) -> str:
    return part.decode("utf-8", "replace")


def _is_key(key: Any) -> bool:
    # Larger numbers may all have one hash.
    return type(key) is int and key.bit_length() <= 60


_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUTS = {0x71: 1, 0x72: 4}
_FIXED: dict[int, tuple[int, Callable[[bytearray, int], Any]]] = {
    0x4B: (1, lambda data, at: data[at]),  # BININT1
    0x4D: (2, lambda data, at: data[at] | data[at + 1] << 8),  # BININT2
    0x4A: (4, lambda data, at: unpack_from("<i", data, at)[0]),  # BININT
    0x7D: (0, lambda data, at: {}),  # EMPTY_DICT
    0x5D: (0, lambda data, at: []),  # EMPTY_LIST
    0x29: (0, lambda data, at: ()),  # EMPTY_TUPLE
    0x4E: (0, lambda data, at: None),  # NONE
    0x88: (0, lambda data, at: True),  # NEWTRUE
    0x89: (0, lambda data, at: False),  # NEWFALSE
    0x47: (8, lambda data, at: unpack_from(">d", data, at)[0]),  # BINFLOAT
}
"""The bytes behind an opcode, and the value that it pushes."""

_SIZED: dict[int, tuple[int, Callable[[bytearray], Any]]] = {
    0x8C: (1, _text),  # SHORT_BINUNICODE
    0x58: (4, _text),  # BINUNICODE
    0x8D: (8, _text),  # BINUNICODE8
    0x8A: (1, _whole),  # LONG1
    0x8B: (4, _whole),  # LONG4
    0x43: (1, bytes),  # SHORT_BINBYTES
    0x42: (4, bytes),  # BINBYTES
    0x8E: (8, bytes),  # BINBYTES8
}
"""The bytes of the length, and what the bytes behind it are."""
