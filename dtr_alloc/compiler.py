"""The C++ compiler of this machine, which the bridge to PyTorch is compiled with."""

from __future__ import annotations

import os
import shutil

NAMES = ("c++", "g++", "clang++")


def find() -> str | None:
    """Its path: that of CXX, else of the first of NAMES that is there; None if there is none."""
    named = os.environ.get("CXX")
    names = (named,) if named else NAMES
    return next((path for name in names if (path := shutil.which(name))), None)


def looked_for() -> str:
    """The names that find() tried, for a message."""
    named = os.environ.get("CXX")
    return repr(named) if named else " or ".join(NAMES)
