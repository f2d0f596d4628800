"""The laboratory (native/lab): simrd's semantics, and the search for schedules. It is a separate
library, which a checkout builds and no wheel has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dtr_alloc.core import error_of


def library() -> tuple[Any, Any]:
    """The ffi and lib of native/lab/dtr_lab.h; the ffi includes the core's types. Raises ValueError
    if the library is not built."""
    try:
        from dtr_alloc._lab import ffi, lib
    except ModuleNotFoundError:
        raise ValueError(
            "simrd's semantics are in no wheel, only in a checkout of the repository (pip install "
            "-e .); allowed here: semantics 'runtime'"
        ) from None
    return ffi, lib


@contextmanager
def given(kind: str, call: Callable[[Any], int]) -> Iterator[Any]:
    """The array that a call returns by its last argument, freed afterwards. Raises the exception of
    the call's status."""
    ffi, lib = library()
    out = ffi.new(f"{kind} **")
    if status := call(out):
        raise error_of(status, ffi.string(lib.dtr_lab_error()).decode(errors="replace"))
    try:
        yield out[0]
    finally:
        lib.dtr_lab_free(out[0])
