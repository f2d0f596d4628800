"""Threads: a function runs on each thread that runs Python, before the thread calls an operator.

Threads that begin later run it first: the functions of ``_thread`` that begin them are replaced,
which all others use. Threads that run already are made to run it at their next line
(at_next_line_of_all). A debugger's trace function stays: then those threads are met when they
allocate (native/bridge/capture.cpp, meet_thread).
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
    """Has a function run on each thread, from start() on.

    Args:
        enter: runs on each thread, and may run there again. It must not raise.
        leave: runs where a thread ends that began after start().
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
        """Threads that begin from now on run nothing of ours."""
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
    """What CPython calls as the trace function of a thread: PyObject_IsTrue of this object. That
    gives 0 for False, and -1 where this raises, as a trace function does."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __bool__(self) -> bool:
        sys.settrace(None)
        self._function()
        return False


def at_next_line_of_all(function: Callable[[], None]) -> bool:
    """Has the other threads call it at their next line, or where what C code raises arrives in
    Python. What the function raises is raised there, in place of that.

    It is the trace function that CPython calls there, and goes away at once. False, and nothing is
    called, where a debugger has one.
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
