"""Raises at chosen places of this package's Python code, as Ctrl-C does.

CPython looks for signals and asynchronous exceptions where a function begins, where a loop jumps
back, and when a call has returned. A *place* is one of these.
"""

import ctypes
import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dtr_alloc

PACKAGE = str(Path(dtr_alloc.__file__).parent)

Place = tuple[str, str, int]
"""File, function, and the offset of the instruction before which is raised."""


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def leave() -> None:
    """What sys.exit() does, in a signal's handler."""
    raise SystemExit(3)


def set_async() -> None:
    """What another thread does by the C API: CPython raises where it looks next."""
    ident = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))


WAYS: tuple[Callable[[], None], ...] = (interrupt, leave, set_async)


@functools.cache
def _offsets(code: CodeType) -> frozenset[int]:
    """Of the instructions before which CPython may raise what comes from outside."""
    found = set()
    after_call = False
    for instruction in dis.get_instructions(code):
        if after_call:
            found.add(instruction.offset)
        after_call = instruction.opname in ("RESUME", "CALL", "CALL_FUNCTION_EX")
        if instruction.opname == "JUMP_BACKWARD":
            found.add(instruction.argval)
    return frozenset(found)


class Injector:
    """Follows this thread's calls of the package's functions.

    Args:
        target: the place to raise at; None: nothing is raised.
        occurrence: when the target is met for this time, from 1.
        way: how it is raised.

    Attributes:
        met: how often each place was met.
        raised: whether it has been raised.
    """

    def __init__(
        self, target: Place | None = None, occurrence: int = 1, way: Callable[[], None] = interrupt
    ) -> None:
        self._target = target
        self._left = occurrence
        self._way = way
        self.met: dict[Place, int] = {}
        self.raised = False

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.raised or not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if frame.f_code.co_name == "__del__":
            return None  # Python drops what comes there, and nobody can pass it on
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode" or frame.f_lasti not in _offsets(frame.f_code):
            return self._step
        place = (Path(frame.f_code.co_filename).stem, frame.f_code.co_qualname, frame.f_lasti)
        self.met[place] = self.met.get(place, 0) + 1
        if place == self._target and not self.raised:
            self._left -= 1
            if self._left == 0:
                self.raised = True
                sys.settrace(None)
                self._way()
        return self._step

    @contextmanager
    def following(self) -> Iterator[None]:
        """While it lasts; what it raises ends here."""
        sys.settrace(self._enter)
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            assert self.raised
        finally:
            sys.settrace(None)
