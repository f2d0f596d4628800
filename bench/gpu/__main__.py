"""Runs the parts in the order of their worth, within a time limit, and writes JSON as they go.

    python -m bench.gpu --out FOLDER [--seconds N] [--part NAME]... [--dry-run]

Exit status 0: every part ran to its end, and none found an error; 1: some did not; 2: there is no
device. A missed goal is no failure: it is what was measured, and stands in the table.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from bench import results
from bench.gpu.part import Row, met

TOTAL_SECONDS = 540.0
"""Of all parts: with building, less than ten minutes."""
TOLD = 6000
"""Characters of a failed part's standard error that its JSON keeps."""


@dataclass(frozen=True)
class Part:
    """One module of this package.

    Attributes:
        name: of the module.
        seconds: the most that it may take.
    """

    name: str
    seconds: float


# Parts of one line run at the same time: none of them measures time.
STAGES: tuple[tuple[Part, ...], ...] = (
    (Part("same_bits", 110), Part("tests", 110)),
    (Part("step_time", 250),),
    (Part("peak", 70),),
    (Part("bandwidth", 20),),
    (Part("largest_batch", 110), Part("waits", 60)),
)
PARTS = tuple(part for stage in STAGES for part in stage)


@dataclass
class Found:
    """What is known of a part: "not started", "running", "done", "failed" or "out of time"."""

    limit_seconds: float
    status: str = "not started"
    seconds: float = 0.0
    error: str | None = None
    rows: list[Row] = field(default_factory=list)


class Run:
    """All parts of one command, and the files that say what they found."""

    def __init__(self, out: Path, device: str, dry_run: bool, seconds: float) -> None:
        self._out, self._device, self._dry_run = out, device, dry_run
        self._ends = time.monotonic() + seconds
        command = [sys.executable, "-m", "bench.gpu.device", device]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        self._facts = json.loads(told.stdout) | {
            "command": shlex.join(["python", "-m", "bench.gpu", *sys.argv[1:]]),
            "dry_run": dry_run,
        }
        self.found: dict[Part, Found] = {}

    def run(self, part: Part) -> None:
        """Runs a part to its end or its limit, writing what it says as it says it."""
        limit = self._ends - time.monotonic()
        if not self._dry_run:  # whose seconds mean nothing
            limit = min(limit, part.seconds)
        found = self.found[part] = Found(limit)
        if limit < 5:
            found.error = "no time was left"
            self._write(part)
            return
        found.status = "running"
        start = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = self._started(part, errors)
            timer = threading.Timer(limit, lambda: _end(process))
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                found.rows.append(json.loads(line))
                found.seconds = time.monotonic() - start
                self._write(part)
            status = process.wait()
            timer.cancel()
            _end(process)  # what it started and left behind
            found.seconds = time.monotonic() - start
            errors.seek(0)
            said = errors.read()
        if status == 0:
            found.status = "done"
        else:
            found.status = "out of time" if found.seconds >= limit else "failed"
            found.error = said[-TOLD:]
            sys.stderr.write(f"---- {part.name}: {found.status}\n{found.error}\n")
        self._write(part)

    def _started(self, part: Part, errors: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"bench.gpu.{part.name}", "--device", self._device]
        command += ["--tiny"] if self._dry_run else []
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )

    def _write(self, part: Part) -> None:
        """The document of the part."""
        document = {"bench": f"gpu/{part.name}", **self._facts}
        document |= {"parts": {part.name: vars(self.found[part])}}
        results.write_json(document, str(self._out / f"gpu_{part.name}.json"))


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a part and all that it started: they are a process group of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


SHOWN = (
    *("test", "job", "way", "budget_fraction", "fraction", "size_mib", "outcome", "ratio"),
    *("first_ratio", "step_seconds", "host_seconds", "above_bytes", "largest_batch", "waits"),
    *("added_waits", "gigabytes_per_second", "error", "skipped"),
)


def told(row: Row) -> str:
    """What a table has room for."""
    shown = {name: row[name] for name in SHOWN if row.get(name) is not None}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {str(value)[:150]}"
        for name, value in shown.items()
    )


def show(run: Run, console: Console) -> None:
    """All rows but those of tests that passed or were skipped, and the state of every part."""
    table = Table(title="make gpu")
    for column in ("part", "found", "goal"):
        table.add_column(column, overflow="fold")
    words = {True: "met", False: "missed", None: ""}
    for part, found in run.found.items():
        state = f"{found.status}, {found.seconds:.0f} s of {found.limit_seconds:.0f}"
        outcomes = Counter(row["outcome"] for row in found.rows if "test" in row)
        state += "".join(f", {count} {outcome}" for outcome, count in outcomes.items())
        table.add_row(part.name, state, "", style="bold")
        for row in found.rows:
            if "test" not in row or "error" in row:
                table.add_row("", told(row), words[met(row)])
    console.print(table)


@click.command(help="What only a GPU can show, measured part by part.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for JSON.")
@click.option("--seconds", default=TOTAL_SECONDS, help="For all parts together.")
@click.option("--part", "names", multiple=True, type=click.Choice([part.name for part in PARTS]))
@click.option("--dry-run", is_flag=True, help="The same code on the CPU, in tiny sizes.")
def main(out: Path, seconds: float, names: tuple[str, ...], dry_run: bool) -> None:
    if not dry_run and not torch.cuda.is_available():
        click.echo(
            f"bench.gpu: PyTorch {torch.__version__} finds no CUDA device here, so nothing was "
            "measured; --dry-run (make gpu DRY_RUN=1) walks through the same code on the CPU",
            err=True,
        )
        raise SystemExit(2)
    out.mkdir(parents=True, exist_ok=True)
    run = Run(out, "cpu" if dry_run else "cuda", dry_run, seconds)
    for stage in STAGES:
        chosen = [part for part in stage if not names or part.name in names]
        with ThreadPoolExecutor(max(1, len(chosen))) as pool:
            list(pool.map(run.run, chosen))
    show(run, Console(width=150, stderr=True))
    if any(found.status != "done" for found in run.found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
