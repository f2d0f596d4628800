"""The best evictions that are found when the whole op log is known: looks for them, and runs them.

python -m bench.studies.best find LOG --budget 0.3,0.5 --out best.schedule.xz
python -m bench.studies.best run LOG --schedule best.schedule.xz
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.studies import schedules
from bench.studies.schedules import Schedule
from dtr_alloc.cli.common import InputError, each_once, list_option, print_table, results_file
from dtr_alloc.cli.runs import compiled
from dtr_alloc.config import format_size
from dtr_alloc.simulation import simulate, tables
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.simulation.simulate import Baseline, Limit, Plan, Setup


@click.group()
def commands() -> None:
    """Looks for the best evictions, with the whole log known, and runs them."""


@commands.command("find")
@click.argument("log", metavar="LOG")
@list_option("--budget", "0.5", "As for simulate.")
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the schedules are written (.gz, .bz2, .xz are compressed).",
)
@click.option(
    "--iterations",
    "steps",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Steps of local search. The same number and seed give the same schedule.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=0,
    metavar="S",
    help="End local search after so long, for each budget (default: no limit).",
)
def find(
    log: str, budgets: Sequence[str], out: Path, steps: int, seed: int, seconds: float
) -> None:
    """Looks for evictions that keep the LOG within each budget at little recomputing.

    All that the log will do is known, so this is no policy: it says how far the policies are
    from what can be done. What it finds is never worse than a preset.
    """
    limits = each_once("--budget", budgets, simulate.parse_limits)
    program = compiled([log])[0]
    try:
        base = simulate.baseline(program)
    except ValueError as error:
        raise InputError(f"{log}: {error}") from None
    table = Table()
    for column in ("budget", "best preset", "", "schedule", "made by"):
        table.add_column(column)
    found = []
    for limit in limits:
        budget_bytes = limit.resolve(base.peak_bytes)
        try:
            preset = schedules.best_preset(program, budget_bytes)
            best = schedules.search(
                program, budget_bytes, steps=steps, seed=seed, seconds=seconds, among=[preset]
            )
        except ValueError as error:
            raise InputError(f"{log}: {error}") from None
        table.add_row(
            format_size(budget_bytes) if limit.ratio is None else str(limit.ratio),
            "" if preset is None else preset.by,
            _slowdown(preset, base),
            _slowdown(best, base),
            "" if best is None else best.by,
        )
        if best is not None:
            found.append(best)
    print_table(Console(stderr=True), table)
    if not found:
        raise click.ClickException(f"{log}: no schedule was found for any of these budgets")
    try:
        schedules.write(out, found)
    except OSError as error:
        raise click.ClickException(f"--out: {error}") from None


def _slowdown(found: Schedule | None, base: Baseline) -> str:
    if found is None:
        return "none"
    return f"{found.cost / base.compute:.4f}x" if base.compute else "nothing to compute"


@commands.command("run")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--schedule", "paths", multiple=True, required=True, metavar="FILE")
@click.option(
    "--json", "json_path", metavar="FILE", help="One JSON object a run and line; - is stdout."
)
def run(logs: Sequence[str], paths: Sequence[str], json_path: str | None) -> None:
    """Runs the schedules of files, each with its log and its own budget, and shows what they
    cost."""
    programs = {schedules.identity(program): program for program in compiled(logs)}
    rows: list[dict[str, Any]] = []
    try:
        for path in paths:
            for each in schedules.read(path):
                program = programs.get(each.sha256)
                if program is None:
                    raise ValueError(f"{path}: a schedule is for {each.log}, which is not given")
                limit = Limit(size_bytes=each.budget_bytes)
                heuristic = replace(PRESETS["lru"], name=each.by)
                setup = Setup(0, each.dealloc, heuristic, None, limit)
                base = simulate.baseline(program)
                done = schedules.run(program, each)
                plan = Plan([limit], [heuristic])
                row = simulate.row(plan, setup, program.path, base, done)
                if base.peak_bytes:
                    row["ratio"] = round(each.budget_bytes / base.peak_bytes, 4)
                rows.append(row)
    except (OSError, ValueError) as error:
        raise InputError(f"--schedule: {error}") from None
    with results_file(json_path) as file:
        if file is not None:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    console = Console(stderr=json_path == "-")
    for heading, table in tables.tables(rows):
        console.print(heading, markup=False, highlight=False, soft_wrap=True)
        print_table(console, table)


if __name__ == "__main__":
    commands()
