"""Where the time of a training step goes, by model and budget.

    python -m bench.breakdown [--json PATH] [--job NAME]... [--smoke]

Each job trains under budgets that leave fractions of its activation memory. Three runs take turns,
budget by budget and round by round, each with a job of its own whose first step does not count:

- plain: without dtr_alloc. All ratios are to the mean step of these;
- bare: under the budget, with nobody watching;
- watched: under the budget, with every nanosecond of a step given to a part (bench/timeline.py).

Times are of the processor: those of other processes do not count. The clocks that share a step out
among its parts are of the wall, because such a clock takes a tenth of the time to read; what the
thread waits for its processor falls on all parts alike, and is taken off all alike. ``waited`` says
how much of a step it was. A mean is that of the half of the steps in which it was the least. Means
of the same steps add up: the parts' to ``watched_ratio``, which is without what watching itself
took (``watching_ratio``). ``watched_over_bare`` checks that watching did not change what it looked
at.

The rows with ``fraction`` null are without a limit, where nothing is ever evicted. ``noop_mode``
is a run under a dispatch mode that does nothing: what PyTorch charges for any mode, and a part of
"rest", because it passes before the recorder is called.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from time import perf_counter, thread_time
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

import dtr_alloc
from bench import results
from bench.heap import cpu_name
from bench.measure import Thrashing, forget_broken_backward, limited_repeats, profile
from bench.models import JOBS, Job
from bench.overhead import Nothing
from bench.timeline import PARTS, Timeline, watched_session
from dtr_alloc.config import Config

MODELS = ("mlp", "transformer", "lstm", "treelstm", "unet", "resnet", "densenet")
FRACTIONS = (None, 0.9, 0.7, 0.5, 0.4, 0.3)
MOST_REPEATS = 10_000
"""Of one run: with more a budget is said to thrash."""
COUNTED = ("evictions", "rematerializations")

Step = dict[str, float]
"""What a step was: seconds of the processor in "total" and, where it was watched, in each of PARTS
and "watching"; "waited", the part of its wall time without a processor; what it added to each of
COUNTED."""


def calm(steps: list[Step]) -> Step:
    """The mean of the half of the steps that waited least for a processor."""
    kept = sorted(steps, key=lambda step: step["waited"])[: (len(steps) + 1) // 2]
    return {key: fmean(step[key] for step in kept) for key in kept[0]}


def run(name: str, steps: int, session: AbstractContextManager[Any], **options: Any) -> list[Step]:
    """Trains a new job in the session for some steps after a first one that does not count.

    Raises torch.OutOfMemoryError and Thrashing.
    """
    gc.collect()
    with session as timeline, limited_repeats(MOST_REPEATS):
        job = JOBS[name](**options)
        try:
            job.step(0)
            return [one_step(job, i, timeline) for i in range(1, steps + 1)]
        except BaseException:
            job.drop_gradients()
            forget_broken_backward()
            raise


def one_step(job: Job, i: int, timeline: object) -> Step:
    """Trains one step, watched if there is a Timeline."""
    before = dtr_alloc.stats()
    parts: Step = {}
    start, on_processor = perf_counter(), thread_time()
    if isinstance(timeline, Timeline):
        timeline.begin()
        job.step(i)
        parts = timeline.end()
    else:
        job.step(i)
    total = thread_time() - on_processor
    running = total / (perf_counter() - start)
    after = dtr_alloc.stats()
    added = {key: float(after[key] - before[key]) for key in COUNTED}
    parts = {part: seconds * running for part, seconds in parts.items()}
    if parts:
        total = sum(parts[part] for part in PARTS)
    return {"total": total, "waited": 1 - running, **added, **parts}


Sessions = dict[str, Callable[[], AbstractContextManager[Any]]]


def under(budget: int | str) -> Sessions:
    """The sessions that are compared under a budget."""
    return {
        "bare": lambda: dtr_alloc.session(budget=budget, device="cpu"),
        "watched": lambda: watched_session(budget, device="cpu"),
    }


def measure(
    name: str, fractions: tuple[float | None, ...], rounds: int, steps: int, **options: Any
) -> tuple[list[dict[str, Any]], float]:
    """A row for each budget, and what a dispatch mode that does nothing makes of a step."""
    shape, _ = profile(name, 2, **options)
    budgets = {
        fraction: "unlimited" if fraction is None else shape.budget(fraction)
        for fraction in fractions
    }
    outcomes = dict.fromkeys(fractions, "trains")
    taken: dict[tuple[float | None, str], list[Step]] = defaultdict(list)
    plain, noop = [], []
    for _ in range(rounds):
        noop += run(name, steps, Nothing(), **options)
        for fraction, budget in budgets.items():
            if outcomes[fraction] != "trains":
                continue
            plain += run(name, steps, nullcontext(), **options)
            try:
                for way, session in under(budget).items():
                    taken[fraction, way] += run(name, steps, session(), **options)
            except Thrashing:
                outcomes[fraction] = "thrashes"
            except torch.OutOfMemoryError:
                outcomes[fraction] = "out of memory"
    base = calm(plain)
    rows = []
    for fraction, budget in budgets.items():
        row = {"job": name, "fraction": fraction, "budget_bytes": budget}
        row |= {"outcome": outcomes[fraction]}
        if outcomes[fraction] == "trains":
            row |= compare(base, calm(taken[fraction, "bare"]), calm(taken[fraction, "watched"]))
        rows.append(row)
    return rows, calm(noop)["total"] / base["total"]


def compare(plain: Step, bare: Step, watched: Step) -> dict[str, Any]:
    """The figures of a row."""
    ratios = {part: watched[part] / plain["total"] for part in ("total", "watching", *PARTS)}
    return {
        "plain_seconds": plain["total"],
        "bare_ratio": bare["total"] / plain["total"],
        "watched_ratio": ratios["total"],
        "watching_ratio": ratios["watching"],
        "watched_over_bare": watched["total"] / bare["total"],
        "waited": max(plain["waited"], bare["waited"], watched["waited"]),
        **{f"{key}_per_step": watched[key] for key in COUNTED},
        "parts": {part: ratios[part] for part in PARTS},
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="Where a step's time goes, in steps without dtr_alloc")
    table.add_column("job", no_wrap=True)
    for column in ("budget", "plain ms", "waited", "bare", "watched", *PARTS):
        table.add_column(column, justify="right")
    for row in rows:
        budget = "unlimited" if row["fraction"] is None else f"{row['fraction']:.0%}"
        if row["outcome"] != "trains":
            table.add_row(row["job"], budget, row["outcome"])
            continue
        numbers = (row["bare_ratio"], row["watched_ratio"], *row["parts"].values())
        cells = [f"{row['plain_seconds'] * 1e3:.1f}", f"{row['waited']:.0%}"]
        cells += [f"{number:.3f}" for number in numbers]
        table.add_row(row["job"], budget, *cells)
    console.print(table)


@click.command(help="Where the time of a training step goes, by model and budget.")
@click.option("--job", "jobs", multiple=True, type=click.Choice(sorted(JOBS)))
@click.option("--rounds", default=3, help="How often the runs take turns.")
@click.option("--steps", default=4, help="Measured steps of a run.")
@click.option("--scale", default=4.0, help="Factor on batch sizes.")
@click.option("--seed", default=0)
@click.option("--json", "path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--smoke", is_flag=True, help="One small job, two budgets, seconds.")
def main(
    jobs: tuple[str, ...],
    rounds: int,
    steps: int,
    scale: float,
    seed: int,
    path: str | None,
    smoke: bool,
) -> None:
    torch.set_num_threads(1)
    names: tuple[str, ...] = jobs or MODELS
    fractions: tuple[float | None, ...] = FRACTIONS
    if smoke:
        names, fractions, rounds, steps, scale = ("mlp",), (None, 0.5), 1, 2, 1.0
    options: dict[str, Any] = {"scale": scale, "seed": seed}
    console = results.console()
    rows, noop = [], []
    for name in names:
        with console.status(f"watching {name}"):
            found, ratio = measure(name, fractions, rounds, steps, **options)
        rows += found
        noop.append({"job": name, "ratio": ratio})
    show(rows, console)
    if path:
        document = results.environment("cpu", seed) | {"bench": "breakdown", "parts": PARTS}
        document |= {"processor": cpu_name(), "rounds": rounds, "steps": steps, "scale": scale}
        document |= {"heuristic": str(Config.heuristic), "noop_mode": noop, "results": rows}
        results.write_json(document, path)


if __name__ == "__main__":
    main()
