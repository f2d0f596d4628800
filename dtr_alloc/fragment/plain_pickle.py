"""Reads pickles of plain values, without running code from the file.

``pickle.Unpickler`` has a hook against running code (``find_class``), but no bounds: a few bytes
make it fill gigabytes for a memo's index, and a tuple with shared parts as a key keeps it hashing
for years. The same class in Python, ``pickle._Unpickler``, has a table of opcodes. Here the table
has only the opcodes of plain values, each within bounds.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar, NoReturn

from dtr_alloc import bounded
from dtr_alloc.traces.trace import TraceError

MOST_BYTES = 1 << 29  # of a file, unpacked
MOST_VALUES = 1 << 26  # opcodes


def load(path: str | os.PathLike[str]) -> Any:
    """The value in a pickle of protocol 4 or later (since Python 3.8 the default), plain or
    ``.gz``: dict, list, tuple, int, float, str, bytes, bool and None. Keys of dictionaries are
    texts, or numbers of at most 60 bits.

    Lists and dictionaries may share parts and contain themselves, so callers must not treat the
    value as a tree (bounded.shown).

    Takes at most 2 microseconds and 130 bytes for each opcode, of which there are no more than the
    file has bytes and MOST_VALUES, beside five times the file, which has MOST_BYTES at most.

    Raises TraceError for a file that is no pickle, damaged, cut off, too large or holds anything
    else; OSError if it cannot be opened.
    """
    with bounded.errors_as(TraceError, path), bounded.opened(path) as file:
        data = BytesIO(bounded.rest(file, MOST_BYTES))
    try:
        if data.read(2) < pickle.PROTO + b"\x04":
            raise _Refused("its protocol is before 4")
        return _Unpickler(data).load()
    except (IndexError, EOFError, struct.error, pickle.UnpicklingError) as error:
        reason = f"it is cut off, or takes what is not there: {error}"
    # A text or number that is none; values put into what holds none.
    except (ValueError, TypeError, AttributeError) as error:
        reason = str(error)
    except MemoryError:
        reason = bounded.OUT_OF_MEMORY
    raise TraceError(
        f"{os.fspath(path)}, before byte {data.tell()}: no pickle of plain values: {reason}"
    )


class _Refused(ValueError):
    """The file holds something other than plain values."""


class _Unpickler(pickle._Unpickler):
    """Reads the opcodes in ``dispatch`` from memory."""

    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: BytesIO) -> None:
        super().__init__(data)
        self.read, self.readline = data.read, data.readline
        self.memo: dict[int, Any] = {}
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append

    def load(self) -> Any:
        read, dispatch = self.read, self.dispatch
        for _ in range(MOST_VALUES):
            op = read(1)
            if op == pickle.STOP:
                if len(self.stack) != 1 or self.metastack:
                    raise _Refused("it does not end with one value")
                return self.stack[0]
            if not op:
                raise EOFError
            if op[0] not in dispatch:
                raise _Refused(
                    f"opcode {op[0]:#x}, which no number, text, list or dictionary needs"
                )
            dispatch[op[0]](self)
        raise _Refused(f"it has more than {MOST_VALUES} opcodes, the most that are read")

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(
            f"it asks for {module:.100}.{name:.100}; a snapshot is made of numbers, texts, lists "
            "and dictionaries, and nothing else is loaded"
        )

    def load_frame(self) -> None:
        self.read(8)  # all is in memory already

    def load_long4(self) -> None:
        size = int.from_bytes(self.read(4), "little")
        raise _Refused(f"a number of {size} bytes; allowed: 255")

    def load_setitem(self) -> None:
        items = self.stack[-2:]
        del self.stack[-2:]
        self.update(items)

    def load_setitems(self) -> None:
        self.update(self.pop_mark())

    def update(self, items: list[Any]) -> None:
        """Puts keys and values into the dictionary on the stack."""
        if not self.stack or type(self.stack[-1]) is not dict or len(items) % 2:
            raise _Refused("items of no dictionary")
        keys = items[::2]
        for key in keys:
            # Larger numbers may all have one hash, and the hash of a tuple may take years.
            if type(key) is not str and (type(key) is not int or key.bit_length() > 60):
                raise _Refused("a key of a dictionary is neither a text nor a number")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    dispatch: ClassVar[Any] = {
        op[0]: pickle._Unpickler.dispatch[op[0]]
        for op in (
            *(pickle.PROTO, pickle.MARK, pickle.GLOBAL, pickle.STACK_GLOBAL),
            *(pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
            *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
            *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
            *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
            *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
            *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
            *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
        )
    } | {
        pickle.FRAME[0]: load_frame,
        pickle.LONG4[0]: load_long4,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }
