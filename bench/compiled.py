"""What a budget costs jobs that torch.compile compiles.

    python -m bench.compiled [--json PATH] [--smoke]

A GPT whose blocks are graphs, and a ResNet that is one graph, both by inductor. Each trains without
dtr_alloc, with a budget that never binds, and in shares of its activation memory. The ways take
turns, round by round, and each has a job of its own. The first step of a round has no limit. Times
are the least of all others, in one thread; the state at the end is compared bit by bit with that of
plain PyTorch.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

import dtr_alloc
from bench import results
from bench.heap import cpu_name
from bench.measure import Profile
from bench.models import Job, differences
from bench.models.compiled import CompiledResNet, CompiledTransformer

JOBS: dict[str, Callable[..., Job]] = {
    "transformer, by blocks": CompiledTransformer,
    "resnet, whole": CompiledResNet,
}
SHARES = (0.9, 0.7, 0.5, 0.4)
STEPS = 4
TIMES = ("step_seconds", "cpu_seconds")
COUNTS = ("recorded_ops", "evictions", "rematerializations")
"""Of stats(), for each step."""


def measure(name: str, rounds: int, **options: Any) -> list[dict[str, Any]]:
    """A row for each way to train a job."""
    kind = JOBS[name]
    activation_bytes = profile(kind, **options).activation_bytes
    ways: dict[str, float | None] = {"plain": None, "unlimited": None}
    ways |= {f"{share:g}": share for share in SHARES}
    jobs = {}
    rows: dict[str, dict[str, Any]] = {
        way: {"job": name, "way": way, **dict.fromkeys(TIMES, math.inf)} for way in ways
    }
    for begin in range(0, rounds * STEPS, STEPS):
        for way, share in ways.items():
            gc.collect()
            with nullcontext() if way == "plain" else dtr_alloc.session("unlimited", device="cpu"):
                if way not in jobs:
                    jobs[way] = kind(**options)
                torch.manual_seed(begin)  # dropout draws from the generator that all share
                jobs[way].step(begin)
                if share is not None:
                    # What lies between steps is that of all ways.
                    lying = dtr_alloc.stats()["allocated_bytes"]
                    dtr_alloc.set_budget(lying + int(share * activation_bytes))
                before = {} if way == "plain" else dtr_alloc.stats()
                for i in range(begin + 1, begin + STEPS):
                    wall, cpu = time.perf_counter(), time.process_time()
                    jobs[way].step(i)
                    taken = time.perf_counter() - wall, time.process_time() - cpu
                    for key, seconds in zip(TIMES, taken, strict=True):
                        rows[way][key] = min(rows[way][key], seconds)
                after = {} if way == "plain" else dtr_alloc.stats()
            for key in before.keys() & COUNTS:
                rows[way][key] = (after[key] - before[key]) / (STEPS - 1)
    reference = jobs["plain"].state()
    for way, row in rows.items():
        row["ratio"] = row["step_seconds"] / rows["plain"]["step_seconds"]
        row["cpu_ratio"] = row["cpu_seconds"] / rows["plain"]["cpu_seconds"]
        row["differences"] = differences(reference, jobs[way].state())
    return list(rows.values())


def profile(kind: Callable[..., Job], **options: Any) -> Profile:
    """What a job holds without a limit, when all is compiled."""
    idle = 0
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        job = kind(**options)
        job.step(0)
        dtr_alloc.reset_peak_stats()
        for i in (1, 2):
            job.step(i)
            idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
        return Profile(idle, dtr_alloc.stats()["peak_allocated_bytes"])


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="Compiled jobs")
    columns = ("step ms", "ratio", "of the CPU", "operators", "evicted", "computed again", "bits")
    for column in ("job", "activation memory"):
        table.add_column(column)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["job"],
            row["way"],
            f"{row['step_seconds'] * 1e3:.1f}",
            f"{row['ratio']:.3f}x",
            f"{row['cpu_ratio']:.3f}x",
            *(f"{row[key]:.0f}" if key in row else "" for key in COUNTS),
            "differ" if row["differences"] else "same",
        )
    console.print(table)


@click.command(help="What a budget costs jobs that torch.compile compiles.")
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option("--rounds", default=6)
@click.option("--scale", default=8.0, help="Factor on batch sizes.")
@click.option("--seed", default=0)
@results.options("One round of one small job.")
def main(
    jobs: tuple[str, ...], rounds: int, scale: float, seed: int, path: str | None, smoke: bool
) -> None:
    torch.set_num_threads(1)
    names = list(jobs or JOBS)
    if smoke:
        names, rounds, scale = names[:1], 1, 1.0
    console = results.console()
    rows = []
    for name in names:
        with console.status(f"training {name}"):
            rows += measure(name, rounds, scale=scale, seed=seed)
    show(rows, console)
    facts = {"processor": cpu_name(), "rounds": rounds}
    results.write(path, "compiled", seed, scale=scale, **facts, results=rows)


if __name__ == "__main__":
    main()
