"""The laboratory (native/lab): simrd's semantics, and the search for schedules. It is a separate
library, which a checkout builds and no wheel has."""

from __future__ import annotations

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


def check(status: int) -> None:
    """Raises the exception of a status code of the laboratory."""
    ffi, lib = library()
    if status:
        raise error_of(status, ffi.string(lib.dtr_lab_error()).decode(errors="replace"))
