"""Jobs of public packages and repositories under budgets, beside the published heuristics.

    python -m bench.foreign [--checkout NAME=PATH]... [--job NAME]... [--share X]...
        [--method NAME]... [--spinning N] [--json PATH] [--list] [--smoke]

The packages are those of requirements.txt beside this file; `--list` names them, and the
repositories of which a checkout is needed. A job whose package or checkout is missing is a row with
the reason.

- A budget is what a job keeps between two steps and a share of its activations, which are what a
  step adds to that. With checkpointing, the default trains in its memory, too.
- The ways to train a job in a budget and plain PyTorch take turns, a step each, in processes of
  their own on one thread, with a malloc that keeps its memory.
- Ratios are of the time of the processor to plain PyTorch's: of the first FIRST steps together, and
  the median of the last LAST, both of the process and of the thread that trains.
- Losses, parameters, gradients, states of optimizers and generators are compared bit by bit at the
  end.
- `--spinning` keeps processors busy with so many other processes meanwhile.
- A way is ended if a step takes more than PATIENCE times as long as a plain one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from rich.table import Table

from bench import results
from bench.foreign.build import build
from bench.foreign.job import CHECKOUTS, JOBS
from bench.foreign.report import COLUMNS, lines, summary
from bench.interleaved import PATIENCE, Ended, Interleaved, Process, Way, profile, shape_of

SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
FIRST, LAST = 5, 10
STEPS = 40
PRELOAD = ["bench.foreign.build"]
CHECKPOINT = "checkpoint"
WAYS: dict[str, dict[str, Any] | None] = {
    "default": {},
    "dtr-full": {"heuristic": "dtr-full"},
    "dtr-eqclass": {"heuristic": "dtr-eqclass"},
    CHECKPOINT: None,
}
"""The settings of each; None: the model is edited instead."""
TOLD = ("evictions", "rematerializations", "plan_misses", "search_seconds")
"""Of stats(), at the end."""


def measure(
    name: str,
    checkouts: dict[str, Path],
    shares: tuple[float, ...],
    methods: tuple[str, ...],
    steps: int,
) -> Iterator[dict[str, Any]]:
    """The rows of a job: one that says what it is, and its cells."""
    about = {"job": name, "source": JOBS[name].source, "chain": JOBS[name].chain}
    make, edited = partial(build, name, checkouts), partial(build, name, checkouts, True)
    try:
        found = profile(make, PRELOAD)
    except Ended as end:  # The code is not ours, and another version may raise any error.
        yield about | {"skipped": str(end).removeprefix("Missing: ")}
        return
    shape = shape_of(found)
    yield about | found | {"activations": shape.activation_bytes}
    unedited = [way for way in methods if way != CHECKPOINT]
    budgets: dict[float | str, tuple[int, list[str]]] = {
        share: (shape.budget(share), unedited) for share in shares
    }
    if CHECKPOINT in methods and JOBS[name].blocks is not None:
        budgets[CHECKPOINT] = profile(edited, PRELOAD)["peak"], ["default", CHECKPOINT]
    for share, (budget, ways) in budgets.items():
        with ExitStack() as stack:

            def start(way: str, budget: int = budget) -> Process:
                settings = WAYS.get(way)
                trained = Way() if settings is None else Way(settings | {"budget": budget})
                return Process(edited if way == CHECKPOINT else make, PRELOAD, trained)

            turns = Interleaved(stack, name, start, "plain", step_seconds=found["seconds"])
            for way in ways:
                turns.add(way, way)
            turns.run(steps)
        plain = turns.times["plain"]
        for way, result in turns.ways.items():
            times, counters = turns.times[way], result.pop("counters", [])
            row = {"job": name, "share": share, "budget": budget, "method": way, **result}
            row["trained_steps"] = len(times)
            if counters and counters[0]:
                row |= _told(counters)
            if way != "plain":
                row.pop("step_seconds", None)
                if len(times) >= FIRST:
                    row["first"] = _sum(times, 0) / _sum(plain, 0)
                    row["first_thread"] = _sum(times, 2) / _sum(plain, 2)
                if len(times) == steps:
                    pairs = list(zip(times, plain, strict=True))[FIRST:][-LAST:]
                    for part, clock in (("late", 0), ("late_thread", 2)):
                        row[part] = median(way[clock] / plain[clock] for way, plain in pairs)
            yield {"planned_since": None, "planned_steps": 0} | row


def _told(counters: list[dict[str, Any]]) -> dict[str, Any]:
    """What the counters say of a run, and of its plans."""
    end = counters[-1]
    planned = pairwise([0, *(each["planned"] for each in counters)])
    served = [i for i, (before, now) in enumerate(planned) if now > before]
    found = {key: end[key] for key in TOLD}
    found["repeated"] = end["recompute_cost_seconds"] / end["total_cost_seconds"]
    return found | {"planned_since": served[0] if served else None, "planned_steps": len(served)}


def _sum(times: list[tuple[float, ...]], clock: int) -> float:
    return sum(step[clock] for step in times[:FIRST])


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """So many processes run meanwhile that do nothing else."""
    spin = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def parse_checkouts(_: Any, __: Any, values: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or name not in CHECKOUTS:
            known = ", ".join(f"{each}=PATH" for each in CHECKOUTS)
            raise click.BadParameter(f"{value!r} is none of {known}")
        if not Path(path).is_dir():
            raise click.BadParameter(f"{path} is not a folder")
        found[name] = Path(path).absolute()
    return found


def listing() -> Table:
    shown = Table("job", "from", "chain", "blocks", "what it is")
    for name, each in JOBS.items():
        chain, blocks = ("yes" if it else "" for it in (each.chain, each.blocks))
        source = CHECKOUTS.get(each.source, each.source)
        shown.add_row(name, source, chain, blocks, (each.make.__doc__ or "").strip())
    return shown


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option(
    "--checkout",
    "checkouts",
    multiple=True,
    metavar="NAME=PATH",
    callback=parse_checkouts,
    help=f"A repository: {', '.join(CHECKOUTS)}.",
)
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option(
    "--share",
    "shares",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True),
    default=SHARES,
    show_default=True,
    help="Of the activations.",
)
@click.option(
    "--method", "methods", multiple=True, type=click.Choice(list(WAYS)), help="Default: all."
)
@click.option("--steps", default=STEPS, show_default=True, type=click.IntRange(FIRST + 1))
@click.option(
    "--spinning",
    "spinners",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Beside so many busy processes.",
)
@click.option("--json", "path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--list", "only_list", is_flag=True, help="Say all jobs, and end.")
@click.option("--smoke", is_flag=True, help="A job of PyTorch alone, one budget, few steps.")
def main(
    checkouts: dict[str, Path],
    jobs: tuple[str, ...],
    shares: tuple[float, ...],
    methods: tuple[str, ...],
    steps: int,
    spinners: int,
    path: str | None,
    only_list: bool,
    smoke: bool,
) -> None:
    console = results.console()
    if only_list:
        console.print(listing())
        return
    torch.set_num_threads(1)
    jobs, methods = jobs or tuple(JOBS), methods or tuple(WAYS)
    if smoke:
        jobs, shares, steps = ("attending_gru",), (0.5,), FIRST + 1
    document = results.environment("cpu", 0) | {"bench": "foreign"}
    document |= {"steps": steps, "first": FIRST, "last": LAST, "patience": PATIENCE}
    document |= {"spinning": spinners, "jobs": [], "cells": []}
    for name in jobs:
        with console.status(name), spinning(spinners):
            for row in measure(name, checkouts, shares, methods, steps):
                document["cells" if "method" in row else "jobs"].append(row)
                if path and path != "-":
                    # After each row: a run takes hours.
                    results.write_json(document, path)
                if "skipped" in row:
                    console.print(f"{name}: {row['skipped']}")
    title = "Steps against plain PyTorch's, at shares of the activations"
    console.print(results.lines(title, COLUMNS, lines(document)))
    console.print(summary(document))
    if path == "-":
        results.write_json(document, path)


if __name__ == "__main__":
    main()
