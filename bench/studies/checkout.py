"""Measurements of ``bench`` that a study starts as commands: they measure a whole process, its
memory and its time, which the study's own imports and threads would change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.studies.study import Document

ROOT = Path(__file__).resolve().parents[2]


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts ``python -m module`` in the checkout, with this process's own dtr_alloc."""
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    # A budget that this process was given is not meant for what it measures.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DTR_ALLOC_")}
    return subprocess.Popen(command, cwd=ROOT, env=kept, stdout=pipe, stderr=pipe, text=True)


def bench(module: str, *arguments: str) -> Document:
    """The document that a bench prints. Raises RuntimeError with its last words if it fails."""
    process = start(module, *arguments, "--json", "-")
    printed, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{module} ended with {process.returncode}:\n{errors[-2000:]}")
    document: Document = json.loads(printed)
    return document
