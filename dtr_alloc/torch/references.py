"""The references of a job that hold evicted tensors: variables, containers, graphs of autograd, and
exceptions, which hold the variables of their frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from inspect import CO_OPTIMIZED, isroutine
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

from torch import Tensor

from dtr_alloc.core import ffi, lib, listed
from dtr_alloc.torch.session import Session

_MOST = 100_000
"""The most objects that are examined for one reference."""
_SHOWN = 4
_PLAIN = (str, bytes, int, float, bool)
_PASSED = ("torch.", "dtr_alloc.")


class Reference(NamedTuple):
    """A holder of evicted tensors.

    Attributes:
        name: such as ``sys.last_value`` or ``outputs in train()``.
        tensors: the number of evicted storages that it holds.
        size_bytes: of these.
    """

    name: str
    tensors: int
    size_bytes: int


def references(runtime: Session, apart_from: Any) -> list[Reference]:
    """The references that hold most. Shared tensors count for the first one.

    Args:
        runtime: of the session.
        apart_from: an object whose tensors do not count.
    """
    evicted = {
        int(ffi.cast("intptr_t", of.handle)): of.size_bytes
        for of in listed("dtr_evicted", partial(lib.dtr_engine_get_evicted, runtime.engine))
    }
    seen = {id(apart_from)}
    found = []
    for name, value in _roots():
        held = evicted.keys() & _held(runtime, value, seen)
        if held:
            found.append(Reference(name, len(held), sum(evicted[handle] for handle in held)))
    return sorted(found, key=lambda of: -of.size_bytes)[:_SHOWN]


def _roots() -> Iterator[tuple[str, Any]]:
    """Names and values, the most easily forgotten first."""
    for name in ("last_value", "last_exc"):
        yield f"sys.{name}", sys.__dict__.get(name)
    for name, value in list(sys.modules["__main__"].__dict__.items()):
        yield f"{name} in __main__", value
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(_PASSED):
            for name, value in _variables(frame).items():
                yield f"{name} in {frame.f_code.co_name}()", value
        frame = frame.f_back


def _variables(frame: FrameType) -> dict[str, Any]:
    """A frame's local variables. Before Python 3.13 a function's frame keeps the returned
    dictionary, and with it the values of that moment: so that is emptied."""
    variables = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        frame.f_locals.clear()
    return variables


def _held(runtime: Session, root: Any, seen: set[int]) -> set[int]:
    """The addresses of the reachable storages."""
    held = set()
    pending = [root]
    kept: list[Any] = []  # else another object may get the address of one
    while pending and len(kept) < _MOST:
        value = pending.pop()
        if id(value) in seen or value is None or type(value) in _PLAIN:
            continue
        seen.add(id(value))
        kept.append(value)
        if issubclass(type(value), Tensor):
            held.add(int(ffi.cast("intptr_t", runtime.handle(value))))
            pending.append(value.grad_fn)
        else:
            pending.extend(_behind(value))
    return held


def _behind(value: Any) -> Iterator[Any]:
    kind = type(value)  # of a proxy, __class__ may be what it stands for, and make that
    if issubclass(kind, BaseException):
        yield from (value.__cause__, value.__context__, value.__traceback__)
    elif kind is TracebackType:
        yield value.tb_next
        yield from _variables(value.tb_frame).values()
    elif issubclass(kind, dict):
        yield from list(dict.values(value))
    elif issubclass(kind, list | tuple | set | frozenset):
        yield from list(value)
    elif hasattr(kind, "next_functions"):  # a node of autograd
        yield from (node for node, _ in value.next_functions)
        for name in dir(value):
            if name.startswith("_raw_saved_"):
                with suppress(RuntimeError):  # freed by a backward pass
                    saved = getattr(value, name)
                    for one in saved if isinstance(saved, list | tuple) else [saved]:
                        yield getattr(one, "data", None)  # past the hooks, which may compute
    elif not issubclass(kind, ModuleType | type) and not isroutine(value):
        with suppress(AttributeError):
            yield from list(object.__getattribute__(value, "__dict__").values())
