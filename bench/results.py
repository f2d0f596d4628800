"""How a bench says what it measured and where: one JSON document with versions and device."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import torch
from rich.console import Console
from rich.table import Table

import dtr_alloc

MIB = 2**20
_C = TypeVar("_C", bound=Callable[..., Any])


def console() -> Console:
    """Standard error, where tables go; wide enough for them when it is not a terminal."""
    shown = Console(stderr=True)
    return shown if shown.is_terminal else Console(stderr=True, width=120)


def table(title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """A line a row. A column has a format, which a row fills; sizes in bytes are there in MiB, too,
    and "-" stands where a row lacks what the format names. Columns of numbers are to the right."""
    shown = Table(title=title)
    for column, text in columns.items():
        shown.add_column(column, justify="left" if ":" not in text else "right")
    for row in rows:
        mib = {
            f"{key.removesuffix('_bytes')}_mib": value / MIB
            for key, value in row.items()
            if key.endswith("_bytes") and isinstance(value, int | float)
        }
        shown.add_row(*(_filled(text, {**row, **mib}) for text in columns.values()))
    return shown


def _filled(text: str, row: Mapping[str, Any]) -> str:
    try:
        return text.format_map(row)
    except KeyError:
        return "-"


def lines(title: str, columns: Iterable[str], cells: Iterable[Iterable[Any]]) -> Table:
    """A table of texts that are made already."""
    shown = Table(*columns, title=title)
    for line in cells:
        shown.add_row(*map(str, line))
    return shown


def pick_device(name: str) -> str:
    """``auto`` is ``cuda`` where there is one, else ``cpu``."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def commit() -> str:
    """The commit that is measured, and whether files differ from it; where the sources lie without
    their history, the variable BENCH_COMMIT says it."""
    if told := os.environ.get("BENCH_COMMIT"):
        return told
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def environment(device: str, seed: int) -> dict[str, Any]:
    """Versions, device, commit, command: what a reader needs to repeat the measurement."""
    return {
        "dtr_alloc": dtr_alloc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "machine": platform.machine(),
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(["python", "-m", *_module(), *sys.argv[1:]]),
    }


def cpu_name() -> str:
    """As Linux says it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def _module() -> list[str]:
    """The name of the module that runs as ``__main__``, if it has one."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return [] if spec is None else [spec.name.removesuffix(".__main__")]


def options(smoke: str) -> Callable[[_C], _C]:
    """--json and --smoke, with the help of the latter; the function has them as path and smoke."""

    def add(function: _C) -> _C:
        add_json = click.option(
            "--json", "path", metavar="PATH", help="Write results there, - for stdout."
        )
        return add_json(click.option("--smoke", is_flag=True, help=smoke)(function))

    return add


def write(path: str | None, bench: str, seed: int = 0, /, **found: Any) -> None:
    """Writes what a bench found on the CPU, with the environment; None writes nothing."""
    if path:
        write_json(environment("cpu", seed) | {"bench": bench} | found, path)


def write_json(document: dict[str, Any], path: str) -> None:
    """Write the document to a file, or to standard output for ``-``."""
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
