"""Raises at chosen places of this package's Python code, as Ctrl-C does.

CPython looks for signals and asynchronous exceptions where a function begins, where a loop jumps
back, and when a call has returned. A *place* is one of these.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dtr_alloc

PACKAGE = str(Path(dtr_alloc.__file__).parent)

Place = tuple[str, str, int]
"""File, function, and the offset of the instruction before which is raised."""


_CHECKING = ("RESUME", "CALL", "CALL_FUNCTION_EX")


@functools.cache
def _offsets(code: CodeType) -> frozenset[int]:
    """Of the instructions before which CPython may raise what comes from outside."""
    found = set()
    after_call = False
    for instruction in dis.get_instructions(code):
        if after_call:
            found.add(instruction.offset)
        after_call = instruction.opname in _CHECKING
        if instruction.opname == "JUMP_BACKWARD":
            found.add(instruction.argval)
    return frozenset(found)


class Injector:
    """Follows this thread's calls of the package's functions.

    Args:
        files: the modules that are followed, such as ``"recorder"``; none: all.
        target: the place to raise at; None: nothing is raised.
        occurrence: when the target is met for this time, from 1.
        error: what is raised.

    Attributes:
        met: how often each place was met.
        raised: whether it has been raised.
    """

    def __init__(
        self,
        files: Iterable[str] = (),
        target: Place | None = None,
        occurrence: int = 1,
        error: Callable[[], BaseException] = KeyboardInterrupt,
    ) -> None:
        self._files = {f"{PACKAGE}/{name}.py" for name in files}
        self._target = target
        self._left = occurrence
        self._error = error
        self.met: dict[Place, int] = {}
        self.raised = False

    def _follows(self, code: CodeType) -> bool:
        name = code.co_filename
        return name in self._files if self._files else name.startswith(PACKAGE)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.raised or not self._follows(frame.f_code):
            return None
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
                raise self._error()
        return self._step

    @contextmanager
    def following(self) -> Iterator[None]:
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
