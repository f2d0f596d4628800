"""Pickles of plain values only: reading one runs nothing that stands in it."""

from __future__ import annotations

import os
import pickle
from typing import Any

from dtr_alloc.fragment.trace import TraceError


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}; a snapshot is made of numbers, texts, lists and "
            "dictionaries, and nothing else is loaded"
        )

    def persistent_load(self, identifier: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def load(path: str | os.PathLike[str]) -> Any:
    """The value in a pickle: dict, list, tuple, set, int, float, str, bytes, bool and None.

    Raises TraceError for what is no pickle, is damaged, cut off or holds anything else; OSError if
    the file cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            return _Plain(file).load()
        # A damaged pickle may fail in any of these ways.
        except (
            *(pickle.UnpicklingError, EOFError, ValueError, LookupError, AttributeError),
            *(TypeError, OverflowError, MemoryError, RecursionError),
        ) as error:
            raise TraceError(
                f"{os.fspath(path)}, before byte {file.tell()}: no pickle of plain values: "
                f"{error or type(error).__name__}"
            ) from None
