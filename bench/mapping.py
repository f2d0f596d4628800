"""What of its memory a training step maps and faults in again, and what it evicts for that.

    python -m bench.mapping [--job NAME]... [--smoke] [--json PATH]

Jobs train without dtr_alloc, with dtr_alloc and nothing evicted ("unlimited"), and at fractions of
their activation memory in the pool that maps its memory ("mapped") and in one that has no more
addresses than the budget has bytes ("fixed"), each run in a process of its own. Of each step behind
the first WARM ones: page faults without reading (RUSAGE_SELF), chunks that were mapped and
unmapped, allocations that had to take memory from elsewhere (remaps), moves, evictions,
rematerializations, and seconds of processor time, of which those in the kernel. A row has the mean
of the steps.

All runs of a job use one file of what its operators cost, so that the same is evicted in the same
way. (What a move costs is measured, and decides, too: rows differ a little from run to run.)
Without dtr_alloc glibc maps and unmaps large blocks by itself: what a budget costs stands beside
"unlimited". Nothing here is timed by the clock on the wall, so a busy machine does not matter much.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

import dtr_alloc
from bench import results
from bench.heap import cpu_name
from bench.measure import Profile, Thrashing, limited_repeats
from bench.models import JOBS
from bench.models.large import LARGE_JOBS

SCALES = {
    "gpt2": 1.0,
    "resnet50": 1.0,
    "transformer": 16.0,
    "unet": 8.0,
    "densenet": 16.0,
    "lstm": 16.0,
    "treelstm": 16.0,
    "mlp": 16.0,
}
"""The jobs, with factors on their batches that give tensors of up to some MiB."""
FRACTIONS = (0.9, 0.7, 0.5, 0.4, 0.3)
MOST_REPEATS = 20_000
WARM = 3
COUNTED: tuple[str, ...] = ("mapped_chunks", "unmapped_chunks", "remaps", "moves", "moved_bytes")
COUNTED += ("evictions", "rematerializations")


@dataclass(frozen=True)
class Trial:
    """One process: a job in one way.

    Attributes:
        way: "plain", "unlimited", "mapped" or "fixed".
        budget: bytes, or "unlimited".
        costs: the file of what operators cost; it is written if it is not there.
        steps: behind the first WARM ones.
        settings: further ones of the session.
    """

    job: str
    scale: float
    seed: int
    way: str
    budget: int | str
    costs: str
    steps: int
    settings: dict[str, str]

    def run(self) -> dict[str, Any]:
        """In a process of its own; raises RuntimeError with its last words if it fails."""
        command = [sys.executable, "-m", "bench.mapping", "--trial", json.dumps(asdict(self))]
        root = Path(__file__).parents[1]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def train(self) -> dict[str, Any]:
        """The same in this process."""
        session: AbstractContextManager[Any] = nullcontext()
        if self.way != "plain":
            session = dtr_alloc.session(
                budget=self.budget,
                device="cpu",
                costs=self.costs,
                pool="fixed" if self.way == "fixed" else None,
                **self.settings,
            )
        steps: list[dict[str, float]] = []
        try:
            with session, limited_repeats(None if self.way == "plain" else MOST_REPEATS):
                job = (JOBS | LARGE_JOBS)[self.job](scale=self.scale, seed=self.seed)
                idle = 0
                for i in range(WARM + self.steps):
                    before = self._counts()
                    job.step(i)
                    after = self._counts()
                    steps.append({key: after[key] - before[key] for key in after})
                    if self.way != "plain":
                        idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
                steady = steps[WARM:]
                row: dict[str, Any] = {key: fmean(one[key] for one in steady) for key in steady[0]}
                if self.way != "plain":
                    peak = dtr_alloc.stats()["peak_allocated_bytes"]
                    row |= {"idle_bytes": idle, "peak_bytes": peak}
                # Before the session ends, which would bring back what is evicted.
                return row | {"outcome": "trains"}
        except Thrashing:
            return {"outcome": "thrashes"}
        except torch.OutOfMemoryError:
            return {"outcome": "out of memory"}

    def _counts(self) -> dict[str, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found = {
            "faults": usage.ru_minflt,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "kernel_seconds": usage.ru_stime,
        }
        if self.way != "plain":
            stats = dtr_alloc.stats()
            found |= {name: stats[name] for name in COUNTED}
        return found


def measure(
    name: str, fractions: tuple[float, ...], steps: int, scale: float, seed: int, settings: Any
) -> list[dict[str, Any]]:
    """The rows of one job."""
    with tempfile.TemporaryDirectory() as folder:
        costs = str(Path(folder) / "costs.json")

        def run(way: str, budget: int | str) -> dict[str, Any]:
            return Trial(name, scale, seed, way, budget, costs, steps, settings).run()

        rows = [{"job": name, "way": "plain", "fraction": None} | run("plain", "unlimited")]
        run("unlimited", "unlimited")  # which measures what operators cost
        free = run("unlimited", "unlimited")
        rows.append({"job": name, "way": "unlimited", "fraction": None} | free)
        shape = Profile(free["idle_bytes"], free["peak_bytes"])
        for fraction in fractions:
            for way in ("mapped", "fixed"):
                row = {"job": name, "way": way, "fraction": fraction}
                rows.append(row | run(way, shape.budget(fraction)))
        return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="Of a steady step")
    numbers = ("faults", "mapped_chunks", "remaps", "moves", "evictions", "rematerializations")
    for column in ("job", "way", "of memory", *numbers, "CPU s", "in the kernel"):
        table.add_column(column, justify="left" if column in ("job", "way") else "right")
    for row in rows:
        line = [row["job"], row["way"], "" if row["fraction"] is None else str(row["fraction"])]
        if row["outcome"] != "trains":
            table.add_row(*line, row["outcome"])
            continue
        line += [f"{row[key]:,.0f}" if key in row else "-" for key in numbers]
        table.add_row(*line, f"{row['cpu_seconds']:.3f}", f"{row['kernel_seconds']:.3f}")
    console.print(table)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(SCALES)), help="Default: all.")
@click.option("--fraction", "fractions", multiple=True, type=float, help="Of activation memory.")
@click.option("--steps", default=3, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--setting", "given", multiple=True, metavar="NAME=VALUE", help="Of all sessions.")
@click.option("--json", "path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--smoke", is_flag=True, help="One job, small, at one budget, seconds.")
@click.option("--trial", hidden=True)
def main(
    jobs: tuple[str, ...],
    fractions: tuple[float, ...],
    steps: int,
    seed: int,
    given: tuple[str, ...],
    path: str | None,
    smoke: bool,
    trial: str | None,
) -> None:
    torch.set_num_threads(1)
    if trial is not None:
        click.echo(json.dumps(Trial(**json.loads(trial)).train()))
        return
    settings = dict(setting.split("=", 1) for setting in given)
    names = jobs or (("transformer",) if smoke else tuple(SCALES))
    fractions = fractions or ((0.5,) if smoke else FRACTIONS)
    console = results.console()
    rows: list[dict[str, Any]] = []
    for name in names:
        scale = 2.0 if smoke else SCALES[name]
        with console.status(f"training {name}"):
            rows += measure(name, fractions, steps, scale, seed, settings)
    show(rows, console)
    if path:
        document = results.environment("cpu", seed) | {"bench": "mapping", "steps": steps}
        document |= {"processor": cpu_name(), "scales": {name: SCALES[name] for name in names}}
        results.write_json(document | {"settings": settings, "results": rows}, path)


if __name__ == "__main__":
    main()
