"""What part of a training step the engine spends on deciding, at half the activation memory.

    python -m bench.bookkeeping [--json PATH] [--job NAME]... [--smoke]

Each job trains under each preset that scores (not ``random``), in a budget that leaves half of its
activation memory. Two shares of the step's time, both from the engine's own counters:

- search: choosing what to evict;
- bookkeeping: all time inside the engine (the beginning and end of every operator, plans and
  commits of rematerializations, room, deaths of storages with what the pool does to take their
  memory back), the search included; without waiting for locks. Recomputing itself is the job's
  work, and so are the page faults of fresh memory, which the operator takes; Python's recorder is
  bench.overhead's.

Steps run on one thread; the first is not counted. Both clocks are wall clocks, and where the
machine has other work, a thread may lose its core for milliseconds inside the engine as anywhere
else: so a row has the median over the steps, which one such pause does not move, and beside it, as
bookkeeping_share_mean, the share of all steps together. A preset that repeats more than
MOST_REPEATS operators is given up and said to thrash.
"""

from __future__ import annotations

import gc
from statistics import median
from time import perf_counter
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

import dtr_alloc
from bench import results
from bench.heap import cpu_name
from bench.measure import Thrashing, forget_broken_backward, limited_repeats, profile
from bench.models import JOBS
from dtr_alloc.lab.presets import PRESETS
from dtr_alloc.torch.api import time_bookkeeping

MOST_REPEATS = 10_000
SCORING = [name for name, preset in PRESETS.items() if preset.select == "score"]
COUNTED = ("search_seconds", "bookkeeping_seconds", "searches", "rematerializations")
GOAL = 0.01


def measure(name: str, heuristic: str, budget: int, steps: int, **options: Any) -> dict[str, Any]:
    """One row: a job under a preset."""
    row: dict[str, Any] = {"job": name, "heuristic": heuristic, "outcome": "trains"}
    gc.collect()
    with dtr_alloc.session(budget=budget, device="cpu", heuristic=heuristic):
        time_bookkeeping(True)
        job = JOBS[name](**options)
        try:
            with limited_repeats(MOST_REPEATS):
                job.step(0)
                taken = []
                for i in range(1, steps + 1):
                    before, start = dtr_alloc.stats(), perf_counter()
                    job.step(i)
                    seconds, after = perf_counter() - start, dtr_alloc.stats()
                    added = {key: after[key] - before[key] for key in COUNTED}
                    taken.append(added | {"seconds": seconds})
        except (Thrashing, torch.OutOfMemoryError) as error:
            job.drop_gradients()
            forget_broken_backward()
            thrashes = isinstance(error, Thrashing)
            return row | {"outcome": "thrashes" if thrashes else "out of memory"}
    total = {key: sum(step[key] for step in taken) for key in taken[0]}

    def share(key: str) -> float:
        return median(step[key] / step["seconds"] for step in taken)

    return row | {
        "step_seconds": median(step["seconds"] for step in taken),
        "searches_per_step": total["searches"] / steps,
        "rematerializations_per_step": total["rematerializations"] / steps,
        "search_share": share("search_seconds"),
        "bookkeeping_share": share("bookkeeping_seconds"),
        "bookkeeping_share_mean": total["bookkeeping_seconds"] / total["seconds"],
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="Shares of a training step at half the activation memory")
    table.add_column("job")
    table.add_column("heuristic")
    for column in ("step ms", "searches", "remats", "search", "bookkeeping"):
        table.add_column(column, justify="right")
    for row in rows:
        if row["outcome"] != "trains":
            table.add_row(row["job"], row["heuristic"], row["outcome"])
            continue
        table.add_row(
            row["job"],
            row["heuristic"],
            f"{row['step_seconds'] * 1e3:.1f}",
            f"{row['searches_per_step']:.0f}",
            f"{row['rematerializations_per_step']:.0f}",
            f"{row['search_share']:.2%}",
            f"{row['bookkeeping_share']:.2%}",
        )
    console.print(table)


@click.command(help="What part of a training step the engine spends on deciding.")
@click.option("--job", "jobs", multiple=True, type=click.Choice(sorted(JOBS)), help="Default: all.")
@click.option("--steps", default=4)
@click.option("--scale", default=4.0, help="Factor on batch sizes.")
@click.option("--seed", default=0)
@click.option("--json", "path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--smoke", is_flag=True, help="One small job, two presets, seconds.")
def main(
    jobs: tuple[str, ...], steps: int, scale: float, seed: int, path: str | None, smoke: bool
) -> None:
    torch.set_num_threads(1)
    names = list(jobs or JOBS)
    presets = SCORING
    if smoke:
        names, presets, steps, scale = ["mlp"], ["dtr-eqclass", "lru"], 2, 1.0
    console = results.console()
    rows = []
    for name in names:
        shape, _ = profile(name, 2, scale=scale, seed=seed)
        for heuristic in presets:
            with console.status(f"training {name} under {heuristic}"):
                budget = shape.budget(0.5)
                rows.append(measure(name, heuristic, budget, steps, scale=scale, seed=seed))
    show(rows, console)
    trained = [row for row in rows if row["outcome"] == "trains"]
    within = {
        key: sum(row[key] < GOAL for row in trained)
        for key in ("search_share", "bookkeeping_share")
    }
    for key, count in within.items():
        console.print(f"{key} below {GOAL:.0%} in {count} of {len(trained)}")
    if path:
        document = results.environment("cpu", seed) | {"bench": "bookkeeping", "steps": steps}
        document |= {"processor": cpu_name(), "scale": scale, "goal": GOAL}
        results.write_json(document | {"rows_below_goal": within, "results": rows}, path)


if __name__ == "__main__":
    main()
