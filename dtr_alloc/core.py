"""The compiled core, and the conversion of its status codes to exceptions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from dtr_alloc._core import ffi, lib

ABI_VERSION = 1
"""The version of the C interface that this package was written for."""

if lib.dtr_abi_version() != ABI_VERSION:
    raise ImportError(
        f"the compiled core has interface version {lib.dtr_abi_version()}, this package needs "
        f"{ABI_VERSION}: build and install dtr_alloc again"
    )


class DriverError(RuntimeError):
    """The driver (mmap, libcuda) refused a call."""


class StateError(RuntimeError):
    """An object is not in a state that allows the call."""


def message() -> str:
    """The message of the last failed call on this thread."""
    return bytes(ffi.string(lib.dtr_last_error())).decode(errors="replace")


def error_of(status: int, message: str) -> Exception:
    """The exception of a status code.

    DTR_OUT_OF_MEMORY becomes torch.OutOfMemoryError (MemoryError in a process without torch),
    DTR_INVALID ValueError, DTR_DRIVER DriverError, DTR_STATE StateError.
    """
    if status == lib.DTR_OUT_OF_MEMORY:
        # Not imported here: that would run the entry points of every plug-in of torch.
        torch = sys.modules.get("torch")
        return (MemoryError if torch is None else torch.OutOfMemoryError)(message)
    kinds: dict[int, type[Exception]] = {
        lib.DTR_INVALID: ValueError,
        lib.DTR_DRIVER: DriverError,
        lib.DTR_STATE: StateError,
    }
    return kinds.get(status, RuntimeError)(message)


def check(status: int) -> None:
    """Raises the exception of a status code (error_of); does nothing for DTR_OK."""
    if status != lib.DTR_OK:
        raise error_of(status, message())


def listed(kind: str, ask: Callable[[Any, int], int]) -> Iterator[Any]:
    """The structs of a list in the core, each to be read before the next.

    Args:
        kind: the name of the struct.
        ask: fills an array of some capacity, and returns the length of the list.
    """
    found, capacity = ffi.NULL, 0
    while (count := ask(found, capacity)) > capacity:
        found, capacity = ffi.new(f"{kind}[]", count), count
    for i in range(count):
        yield found[i]


def record(struct: Any, names: tuple[str, ...]) -> dict[str, int]:
    """The named fields of a C struct of counters."""
    return {name: int(getattr(struct, name)) for name in names}


def field_names(ctype: str) -> tuple[str, ...]:
    """The fields of a C struct, in order."""
    return tuple(name for name, _ in ffi.typeof(ctype).fields)
