"""How a bench says what it measured and where: one JSON document with versions and device."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

MIB = 2**20


def console() -> Console:
    """Standard error, where tables go; wide enough for them when it is not a terminal."""
    shown = Console(stderr=True)
    return shown if shown.is_terminal else Console(stderr=True, width=120)


def pick_device(name: str) -> str:
    """``auto`` is ``cuda`` where there is one, else ``cpu``."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def environment(device: str, seed: int) -> dict[str, Any]:
    """Versions, device, threads and seed: what a reader needs to repeat the measurement."""
    try:
        own = metadata.version("dtr-alloc")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {
        "dtr_alloc": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "seed": seed,
    }


def write_json(document: dict[str, Any], path: str) -> None:
    """Write the document to a file, or to standard output for ``-``."""
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
