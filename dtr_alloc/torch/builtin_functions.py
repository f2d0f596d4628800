"""Redirects calls of functions of C to other functions, for all callers.

References to a function of C may be anywhere: in its module, in importing modules, in a dictionary.
So the function is not replaced but changed. Its ``__self__`` becomes the other function, and its
code becomes CPython's PyObject_Call, which calls that.

Upstream: CPython, Include/cpython/methodobject.h, PyCFunctionObject; Objects/methodobject.c,
cfunction_call(). The interpreter reads a function's flags in each call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from dtr_alloc.torch.bridge import Bridge

_VARARGS, _KEYWORDS, _METHOD = 0x1, 0x2, 0x200
_address = ctypes.c_void_p


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", _address),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Function(ctypes.Structure):
    """PyCFunctionObject."""

    _fields_ = (
        ("head", _address * 2),
        ("definition", ctypes.POINTER(_Definition)),
        ("self", _address),
        ("module", _address),
        ("weak_references", _address),
        ("vectorcall", _address),
    )


_new = ctypes.pythonapi.PyCMethod_New
_new.argtypes = [ctypes.POINTER(_Definition), _address, _address, _address]
_new.restype = ctypes.py_object
_take = ctypes.pythonapi.Py_IncRef
_let_go = ctypes.pythonapi.Py_DecRef
_take.argtypes = _let_go.argtypes = [ctypes.py_object]
_call = ctypes.cast(ctypes.pythonapi.PyObject_Call, _address).value


def can_be_redirected(function: Any) -> bool:
    """Whether it is a function of C, of the known layout, that is not redirected."""
    if type(function) is not BuiltinFunctionType:
        return False
    if BuiltinFunctionType.__basicsize__ != ctypes.sizeof(_Function):
        return False
    definition = _of(function).definition.contents
    return definition.code != _call and not definition.flags & _METHOD


class Redirection:
    """Redirects a function of C between start() and undo().

    Args:
        function: for which can_be_redirected() holds.
        to: takes a copy of the function, and returns a function of Python.
    """

    def __init__(
        self, bridge: Bridge, function: Any, to: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        it = _of(function)
        here = it.definition.contents
        self._bridge = bridge
        self._function = function
        self._called = to(_new(ctypes.byref(here), it.self, it.module, None))
        definition = _Definition(here.name, _call, _VARARGS | _KEYWORDS, here.doc)
        vars(self._called)["definition"] = definition  # which lives as long as the function
        self._other = (_address * 3)(ctypes.addressof(definition), id(self._called), None)

    def start(self) -> None:
        """Once."""
        _take(self._called)
        self._bridge.exchange(self._function, self._other)

    def undo(self) -> None:
        """May be called again, and before start()."""
        if _of(self._function).self == id(self._called):
            self._bridge.exchange(self._function, self._other)
            _let_go(self._called)


def _of(function: Any) -> _Function:
    return _Function.from_address(id(function))
