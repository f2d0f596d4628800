"""Call sites in the job: the running module, and the line that called it or took an address."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules import module as modules

from dtr_alloc.bounded import printable
from dtr_alloc.torch.bridge import Bridge
from dtr_alloc.torch.live_objects import live_objects

_LIBRARIES = {"dtr_alloc", "numpy", "torch", "triton"}
"""Packages that are not the job's code."""
_MOST_LOOKS = 16
"""The most searches of all objects of the process for modules."""


class CallSite(NamedTuple):
    """An unknown part is ``""``.

    Attributes:
        module: its path from the outermost one, such as ``h.3.attn``; the outermost one's is the
            name of its class.
        line: of the job, such as ``model.py:81``.
    """

    module: str = ""
    line: str = ""


class CallSites:
    """The call sites of a session, by the numbers that the engine keeps (dtr_place, dtr_pin). 0:
    none.

    Args:
        bridge: passes the numbers to the engine.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._numbers = {CallSite(): 0}
        self._paths: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._looks = 0
        self._of_thread = _OfThread()
        self._hooks: list[Any] = []

    def number_of_line(self) -> int:
        """The call site of the present line."""
        return self._number(CallSite(line=_line()))

    def _number(self, call_site: CallSite) -> int:
        return self._numbers.setdefault(call_site, len(self._numbers))

    def by_number(self) -> list[CallSite]:
        """All call sites so far."""
        return list(self._numbers)

    def follow_modules(self) -> None:
        """Passes the module of each operator to the engine, until stop(). This takes ten
        microseconds a module, mostly in PyTorch, which calls modules with hooks by a slower
        path."""
        self._looks = 0
        self._bridge.follow_call_sites(True)
        self._hooks.append(modules.register_module_forward_pre_hook(self._enter))
        self._hooks.append(modules.register_module_forward_hook(self._leave, always_call=True))

    def stop(self) -> None:
        """May be called again."""
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()
        self._bridge.follow_call_sites(False)

    def _enter(self, module: torch.nn.Module, _: object) -> None:
        if torch.compiler.is_compiling():
            return
        path = self._paths.get(module)
        if path is None:
            path = self._new_path(module)
        number = self._number(CallSite(path, _line()))
        self._of_thread.entered.append(number)
        self._bridge.set_call_site(number)

    def _leave(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        entered = self._of_thread.entered
        if entered:  # else it began before
            entered.pop()
        self._bridge.set_call_site(entered[-1] if entered else 0)

    def _new_path(self, module: torch.nn.Module) -> str:
        """Finds the paths of all present modules. In a job that makes modules in each step, later
        ones are named by their classes."""
        self._looks += 1
        if self._looks <= _MOST_LOOKS:
            every = live_objects(torch.nn.Module)
            found = [each for each in every if "_modules" in vars(each)]  # else it is half made
            inside = {id(child) for each in found for child in each.children()}
            for outermost in (each for each in found if id(each) not in inside):
                for name, each in outermost.named_modules():
                    path = name.replace("_orig_mod.", "")  # what torch.compile() puts around
                    self._paths[each] = printable(path) or type(each).__name__
        return self._paths.setdefault(module, type(module).__name__)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.entered: list[int] = []


_files: dict[int, tuple[str, CodeType]] = {}
"""By the id of a code: the name of its file, "" if it is not the job's. (Hashing a code would hash
all its constants.)"""


def _line() -> str:
    """The innermost line of the job."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        met = _files.get(id(code))
        if met is None:
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            is_of_the_job = package not in _LIBRARIES and not code.co_filename.startswith("<")
            name = os.path.basename(code.co_filename) if is_of_the_job else ""
            met = printable(name), code
            _files[id(code)] = met
        if met[0]:
            return f"{met[0]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
