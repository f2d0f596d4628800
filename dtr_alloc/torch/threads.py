"""Runs a function on each thread that runs Python, before the thread calls an operator.

Later threads run it first: the functions of ``_thread`` that start threads are replaced. Present
threads run it at their next line (at_next_line_of_all). A debugger's trace function stays; then
those threads are met when they allocate (native/bridge/capture.cpp, meet_thread).
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

_BEGINNERS = tuple(
    (owner, name)
    for owner in (_thread, threading)
    for name in (
        *("start_new_thread", "start_new", "_start_new_thread"),
        *("start_joinable_thread", "_start_joinable_thread"),  # from Python 3.13 on
    )
    if hasattr(owner, name)
)


class EachThread:
    """Runs a function on each thread, from start() on.

    Args:
        enter: runs on each thread, perhaps several times. It must not raise.
        leave: runs at the end of a thread that began after start().
    """

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter = enter
        self._leave = leave
        self._replaced: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        for owner, name in _BEGINNERS:
            begin = getattr(owner, name)
            self._replaced.append((owner, name, begin))
            setattr(owner, name, self._beginning_with_enter(begin))
        if threading.active_count() > 1:
            at_next_line_of_all(self._enter)
        self._enter()

    def stop(self) -> None:
        """Later threads run nothing of ours."""
        while self._replaced:
            owner, name, begin = self._replaced.pop()
            setattr(owner, name, begin)

    def _beginning_with_enter(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def begin_entered(function: Any, *rest: Any, **named: Any) -> Any:
            if callable(function):
                function = self._entered(function)
            return begin(function, *rest, **named)

        return begin_entered

    def _entered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._enter()
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return functools.update_wrapper(run, function)


class _Once:
    """The trace function of a thread for CPython: PyObject_IsTrue of this object. It gives 0 for
    False, and -1 if this raises, as a trace function does."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __bool__(self) -> bool:
        sys.settrace(None)
        self._function()
        return False


def at_next_line_of_all(function: Callable[[], None]) -> bool:
    """Makes the other threads call the function at their next line, or when an error of C code
    arrives in Python. An error of the function is raised there, in its place.

    It is their trace function for one call. False, and nothing is called, if a debugger has one.
    """
    if sys.gettrace() or threading.gettrace():
        return False
    once = ctypes.py_object(_Once(function))
    api = ctypes.pythonapi
    if hasattr(api, "PyEval_SetTraceAllThreads"):  # from Python 3.12 on
        api.PyEval_SetTraceAllThreads(api.PyObject_IsTrue, once)
        return True
    for name in ("PyInterpreterState_Get", "PyInterpreterState_ThreadHead", "PyThreadState_Next"):
        getattr(api, name).restype = ctypes.c_void_p
    state = api.PyInterpreterState_ThreadHead(ctypes.c_void_p(api.PyInterpreterState_Get()))
    own = api.PyThreadState_Get
    own.restype = ctypes.c_void_p
    while state:
        if state != own():
            api._PyEval_SetTrace(ctypes.c_void_p(state), api.PyObject_IsTrue, once)
        state = api.PyThreadState_Next(ctypes.c_void_p(state))
    return True
