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

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from bench import results
from bench.heap import cpu_name
from bench.measure import Profile
from bench.peers.jobs import SUBJECTS
from bench.peers.methods import METHODS
from bench.peers.report import COLUMNS, cells, others, summary
from bench.peers.worker import FIRST_STEPS, worker
from bench.turns import PATIENCE, Turns

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


def compare(
    job: str, parts: tuple[float, ...], rounds: int, scale: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The cells of a job, and its line: ours in the memory of each method, and in parts of it."""
    methods = {
        name: lines for name, each in METHODS.items() if (lines := each.lines_in(SUBJECTS[job]))
    }
    with ExitStack() as stack:
        turns = Turns(stack, job, partial(worker, job, scale=scale), FIRST_STEPS)
        ways = turns.ways
        shape = Profile(ways["plain"]["idle"], ways["plain"]["peak"])
        budgets: dict[str | float, int] = {part: shape.budget(part) for part in parts}
        for name in methods:
            turns.add(name, method=name)
            if "peak" in ways[name]:
                budgets[name] = ways[name]["peak"]
        for memory, budget in budgets.items():
            turns.add(_ours(memory), budget=budget)
        turns.run(rounds)
    peak, cells = ways["plain"]["peak"], list[dict[str, Any]]()
    for name, lines in methods.items():
        row: dict[str, Any] = {"job": job, "method": name, "lines": lines}
        row |= {"plain": ways["plain"], "peer": ways[name]}
        if name in budgets:
            row |= {"ours": ways[_ours(name)], "share": budgets[name] / peak}
            if all(row[way]["outcome"] == "trains" for way in ("peer", "ours")):
                both = zip(turns.times[_ours(name)], turns.times[name], strict=True)
                row["ours_over_peer"] = median(ours[0] / peer[0] for ours, peer in both)
        cells.append(row)
    line = [
        {"job": job, "part": part, "share": budgets[part] / peak, "ours": ways[_ours(part)]}
        for part in parts
    ]
    return cells, line


def _ours(memory: str | float) -> str:
    """The way that trains under dtr_alloc in the memory of a method, or in a part of the job's."""
    return f"ours in {memory}"


def show(document: dict[str, Any], console: Console) -> None:
    table = Table(title="In the memory of each method: steps against plain PyTorch's")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("job", "method") else "right")
    for row in cells(document):
        table.add_row(*row)
    console.print(table)
    for each in others(document):
        console.print(f"not compared: {each}")
    console.print(summary(document))


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
    found: dict[str, list[dict[str, Any]]] = {"cells": [], "lines": []}
    for name in names:
        scale = 1.0 if smoke else SUBJECTS[name].scale
        with console.status(name):
            cells, line = compare(name, parts, rounds, scale)
        found["cells"] += cells
        found["lines"] += line
    document = results.environment("cpu", 0) | {"bench": "peers", "processor": cpu_name()}
    document |= {
        "rounds": rounds,
        "patience": PATIENCE,
        "edits": {name: each.text for name, each in METHODS.items()},
    }
    document |= found
    if path:
        results.write_json(document, path)
    show(document, console)


if __name__ == "__main__":
    main()
