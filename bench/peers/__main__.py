"""Our policy beside what a user would edit into his model to save memory.

    python -m bench.peers [--job NAME]... [--smoke] [--json PATH]

A cell is a job and a method of METHODS. The edited model says how much memory it needs; then the
unmodified one trains under dtr_alloc, with its default settings, in exactly that memory, and in
SHARES of its activation memory for the line in the picture. Plain PyTorch, the edited models and
ours take turns, a step each, in processes of their own; a round's ratios are to its plain step, and
a cell has their medians.

- Memory is the peak of the bytes that tensors hold, counted by dtr_alloc's pool in the first steps;
  plain and peers then go on with malloc, which keeps what it has. For ours it is the budget.
- Times are of the processor, on one thread; the wall clock's stand beside them.
- All ways train the same steps, and what they end with is compared bit by bit with plain PyTorch.
- Ours is ended if a step takes more than PATIENCE times as long as a plain one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch

from bench import results
from bench.interleaved import (
    PATIENCE,
    WARM_STEPS,
    Ended,
    Interleaved,
    Process,
    Way,
    added,
    profile,
    shape_of,
)
from bench.models import Job
from bench.peers.jobs import SUBJECTS
from bench.peers.methods import METHODS, build
from bench.peers.report import COLUMNS, cells, others, summary

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
PRELOAD = ["bench.peers.methods", "torch._dynamo"]
LEARN_STEPS = 34
"""Before the rounds: enough to learn a step, and to see what came of it."""


def compare(
    job: str, parts: tuple[float, ...], rounds: int, scale: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The cells of a job, and its line: ours in the memory of each method, and in parts of it."""
    methods = {
        name: lines for name, each in METHODS.items() if (lines := each.lines_in(SUBJECTS[job]))
    }
    make = {name: partial(build, job, name, scale) for name in ("", *methods)}
    held = {"": _held(make[""])}
    shape = shape_of(held[""])
    budgets: dict[str | float, int] = {part: shape.budget(part) for part in parts}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def start(of: tuple[str, Way]) -> Process:
            return Process(make[of[0]], PRELOAD, of[1])

        ways = Interleaved(stack, job, start, ("", Way()), step_seconds=held[""]["seconds"])
        for name in methods:
            try:
                held[name] = _held(make[name])
            except Ended as end:
                ways.ways[name] = {"outcome": str(end)}
                continue
            budgets[name] = held[name]["peak"]
            ways.add(name, (name, Way()))
        for number, (memory, budget) in enumerate(budgets.items()):
            # With a file of costs a job waits for what is learned: nothing runs beside its steps.
            costs = Path(folder) / f"costs{number}.json"
            ways.add(_ours(memory), ("", Way({"budget": budget, "costs": costs})))
        ways.run(rounds, untold=LEARN_STEPS)
    for name, found in ways.ways.items():
        counters = found.pop("counters", [])
        if counters and counters[0]:
            found["added"] = added(counters, rounds)
        elif found["outcome"] == "trains":
            found |= {key: held["" if name == "plain" else name][key] for key in ("peak", "idle")}
    peak, rows, of = shape.peak_bytes, list[dict[str, Any]](), ways.ways
    for name, lines in methods.items():
        row: dict[str, Any] = {"job": job, "method": name, "lines": lines}
        row |= {"plain": of["plain"], "peer": of[name]}
        if name in budgets:
            row |= {"ours": of[_ours(name)], "share": budgets[name] / peak}
            if all(row[way]["outcome"] == "trains" for way in ("peer", "ours")):
                both = zip(ways.times[_ours(name)], ways.times[name], strict=True)
                row["ours_over_peer"] = median(ours[0] / peer[0] for ours, peer in both)
        rows.append(row)
    line = [
        {"job": job, "part": part, "share": budgets[part] / peak, "ours": of[_ours(part)]}
        for part in parts
    ]
    return rows, line


def _held(make: Callable[[], Job]) -> dict[str, Any]:
    """What a job holds in its first steps, of which no operators are recorded."""
    with tempfile.TemporaryDirectory() as folder:
        return profile(make, PRELOAD, WARM_STEPS, {"trace": Path(folder) / "trace"})


def _ours(memory: str | float) -> str:
    """The way that trains under dtr_alloc in the memory of a method, or in a part of the job's."""
    return f"ours in {memory}"


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(SUBJECTS)))
@click.option("--rounds", default=7, show_default=True)
@results.options("One tiny job, one round, seconds.")
def main(jobs: tuple[str, ...], rounds: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    names = jobs or (("gpt",) if smoke else tuple(SUBJECTS))
    parts = (0.5,) if smoke else SHARES
    rounds = 1 if smoke else rounds
    console = results.console()
    found: dict[str, Any] = {"cells": [], "lines": []}
    for name in names:
        scale = 1.0 if smoke else SUBJECTS[name].scale
        with console.status(name):
            rows, line = compare(name, parts, rounds, scale)
        found["cells"] += rows
        found["lines"] += line
    title = "In the memory of each method: steps against plain PyTorch's"
    console.print(results.lines(title, COLUMNS, cells(found)))
    for each in others(found):
        console.print(f"not compared: {each}")
    console.print(summary(found))
    edits = {name: each.text for name, each in METHODS.items()}
    results.write(path, "peers", rounds=rounds, patience=PATIENCE, edits=edits, **found)


if __name__ == "__main__":
    main()
