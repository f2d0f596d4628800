"""Where the time of a training step goes, by model and budget.

    python -m bench.breakdown [--json PATH] [--job NAME]... [--smoke]

Each job trains under budgets that leave fractions of its activation memory. Three runs take turns,
round by round, each with a job of its own whose first step does not count:

- plain: without dtr_alloc. All ratios are to the mean step of these;
- bare: under the budget, with nobody watching;
- watched: under the budget, with every nanosecond of a step given to a part (bench/timeline.py).

A mean is that of the middle half of the steps, in the order of their whole time: a pause of the
machine moves it as little as a median, and the parts' means add up to the whole's.
``watched_ratio`` is without what watching itself took, as far as that is known
(``watching_ratio``), and ``watched_over_bare`` checks that it did not change what it looked at.

The rows with ``fraction`` null are without a limit, where nothing is ever evicted. ``noop_mode``
is a run under a dispatch mode that does nothing: what PyTorch charges for any mode, and a part of
"rest", because it passes before the recorder is called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
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
from bench.overhead import Nothing
from bench.timeline import PARTS, Timeline, watched_session
from dtr_alloc.config import Config

MODELS = ("mlp", "transformer", "lstm", "treelstm", "unet", "resnet", "densenet")
FRACTIONS = (None, 0.9, 0.7, 0.5, 0.4, 0.3)
MOST_REPEATS = 10_000
"""Of one run: with more a budget is said to thrash."""
COUNTED = ("evictions", "rematerializations")

Step = dict[str, float]
"""The seconds of a step: "total", and each of PARTS and "watching" where it was watched."""


def middle(steps: list[Step]) -> Step:
    """The mean of the middle half of the steps, at least one."""
    ordered = sorted(steps, key=lambda step: step["total"])
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return {key: fmean(step[key] for step in kept) for key in kept[0]}


def run(name: str, steps: int, session: AbstractContextManager[Any], **options: Any) -> list[Step]:
    """Trains a new job in the session for some steps after a first one that does not count.

    Raises torch.OutOfMemoryError and Thrashing.
    """
    taken = []
    gc.collect()
    with session as timeline, limited_repeats(MOST_REPEATS):
        job = JOBS[name](**options)
        try:
            job.step(0)
            for i in range(1, steps + 1):
                if isinstance(timeline, Timeline):
                    timeline.begin()
                    job.step(i)
                    parts = timeline.end()
                    total = sum(parts.values()) - parts["watching"]
                    taken.append({"total": total, **parts})
                else:
                    start = perf_counter()
                    job.step(i)
                    taken.append({"total": perf_counter() - start})
        except BaseException:
            job.drop_gradients()
            forget_broken_backward()
            raise
    return taken


def take_turns(
    name: str,
    sessions: dict[str, Callable[[], AbstractContextManager[Any]]],
    rounds: int,
    steps: int,
    **options: Any,
) -> dict[str, Step]:
    """The mean step in each of the sessions."""
    taken: dict[str, list[Step]] = {way: [] for way in sessions}
    for _ in range(rounds):
        for way, session in sessions.items():
            taken[way] += run(name, steps, session(), **options)
    return {way: middle(of) for way, of in taken.items()}


def measure(
    name: str, fraction: float | None, budget: int | str, rounds: int, steps: int, **options: Any
) -> dict[str, Any]:
    """One row: a job under a budget."""
    row: dict[str, Any] = {"job": name, "fraction": fraction, "budget_bytes": budget}
    sessions: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain": nullcontext,
        "bare": lambda: dtr_alloc.session(budget=budget, device="cpu"),
        "watched": lambda: watched_session(budget, device="cpu"),
    }
    before = dtr_alloc.stats()
    try:
        means = take_turns(name, sessions, rounds, steps, **options)
    except Thrashing:
        return row | {"outcome": "thrashes"}
    except torch.OutOfMemoryError:
        return row | {"outcome": "out of memory"}
    after = dtr_alloc.stats()
    plain = means["plain"]["total"]
    ratios = {part: seconds / plain for part, seconds in means["watched"].items()}
    sessions_steps = 2 * rounds * (steps + 1)
    return row | {
        "outcome": "trains",
        "plain_seconds": plain,
        "bare_ratio": means["bare"]["total"] / plain,
        "watched_ratio": ratios["total"],
        "watching_ratio": ratios["watching"],
        "watched_over_bare": means["watched"]["total"] / means["bare"]["total"],
        **{f"{key}_per_step": (after[key] - before[key]) / sessions_steps for key in COUNTED},
        "parts": {part: ratios[part] for part in PARTS},
    }


def measure_noop(name: str, rounds: int, steps: int, **options: Any) -> dict[str, Any]:
    """What a dispatch mode that does nothing makes of a step."""
    means = take_turns(name, {"plain": nullcontext, "noop": Nothing}, rounds, steps, **options)
    return {"job": name, "ratio": means["noop"]["total"] / means["plain"]["total"]}


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="Where a step's time goes, in steps without dtr_alloc")
    table.add_column("job")
    for column in ("budget", "plain ms", "bare", "watched", *PARTS):
        table.add_column(column, justify="right")
    for row in rows:
        budget = "unlimited" if row["fraction"] is None else f"{row['fraction']:.0%}"
        if row["outcome"] != "trains":
            table.add_row(row["job"], budget, row["outcome"])
            continue
        numbers = (row["bare_ratio"], row["watched_ratio"], *row["parts"].values())
        cells = [f"{row['plain_seconds'] * 1e3:.1f}", *(f"{number:.3f}" for number in numbers)]
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
            shape, _ = profile(name, 2, **options)
            noop.append(measure_noop(name, rounds, steps, **options))
            for fraction in fractions:
                budget = "unlimited" if fraction is None else shape.budget(fraction)
                rows.append(measure(name, fraction, budget, rounds, steps, **options))
    show(rows, console)
    if path:
        document = results.environment("cpu", seed) | {"bench": "breakdown", "parts": PARTS}
        document |= {"processor": cpu_name(), "rounds": rounds, "steps": steps, "scale": scale}
        document |= {"heuristic": str(Config.heuristic), "noop_mode": noop, "results": rows}
        results.write_json(document, path)


if __name__ == "__main__":
    main()
