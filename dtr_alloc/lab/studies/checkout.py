"""Measurements that live in a checkout's ``bench`` package, started as commands.

They are not functions of the laboratory for two reasons. They train the jobs of ``bench/models``,
which no wheel has, with PyTorch, which the laboratory does not import. And they measure a whole
process, its memory and its time, which a study's own imports and threads would change.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from dtr_alloc.lab.studies.study import Document, Unavailable


def root() -> Path:
    """The checkout whose ``bench`` can be imported here. Raises Unavailable if there is none, or
    no PyTorch for it."""
    for module in ("bench.models", "torch"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise Unavailable(
                f"it needs {module}, which cannot be imported: run it in the root of a checkout of "
                "dtr_alloc, as `python -m dtr_alloc.cli reproduce ...`, where PyTorch is installed"
            )
        if module == "bench.models":
            assert found.origin is not None
            checkout = Path(found.origin).parents[2]
    return checkout


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts ``python -m module`` in the checkout, with this process's own dtr_alloc."""
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    # A budget that this process was given is not meant for what it measures.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DTR_ALLOC_")}
    return subprocess.Popen(command, cwd=root(), env=kept, stdout=pipe, stderr=pipe, text=True)


def bench(module: str, *arguments: str) -> Document:
    """The document that a bench prints. Raises RuntimeError with its last words if it fails."""
    process = start(module, *arguments, "--json", "-")
    printed, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{module} ended with {process.returncode}:\n{errors[-2000:]}")
    document: Document = json.loads(printed)
    return document
