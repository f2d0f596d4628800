"""The C++ compiler of this machine, which the bridge to PyTorch is compiled with."""

from __future__ import annotations

import os
import shutil

NAMES = ("c++", "g++", "clang++")


def find() -> str | None:
    """Its path: DTR_ALLOC_CXX, else CXX, else the first of NAMES; None if there is none."""
    named = _named()
    names = (named,) if named else NAMES
    return next((path for name in names if (path := shutil.which(name))), None)


def looked_for() -> str:
    """The names that find() tried, for a message."""
    return repr(_named()) if _named() else " or ".join(NAMES)


def _named() -> str | None:
    return os.environ.get("DTR_ALLOC_CXX") or os.environ.get("CXX")
