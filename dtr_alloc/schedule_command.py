"""What ``dtr-alloc schedule`` and ``dtr-alloc simulate --schedule`` do once click has read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dtr_alloc import schedule, simulate, simulate_report
from dtr_alloc.command_error import InputError
from dtr_alloc.config import format_size
from dtr_alloc.schedule import Schedule
from dtr_alloc.simulate import Baseline, Limit, Plan, Rule, Setup
from dtr_alloc.simulate_command import compiled, each_once, results_file


def find(
    *, log: str, budgets: Sequence[str], out: Path, steps: int, seed: int, seconds: float
) -> None:
    """Looks for a schedule per budget and writes those that were found. Raises
    click.UsageError for options that are wrong, InputError for a log that is, and
    click.ClickException if nothing was found."""
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
            preset = schedule.best_preset(program, budget_bytes)
            best = schedule.search(
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
    Console(stderr=True, width=120).print(table)
    if not found:
        raise click.ClickException(f"{log}: no schedule was found for any of these budgets")
    try:
        schedule.write(out, found)
    except OSError as error:
        raise click.ClickException(f"--out: {error}") from None


def _slowdown(found: Schedule | None, base: Baseline) -> str:
    if found is None:
        return "none"
    return f"{found.cost / base.compute:.4f}x" if base.compute else "nothing to compute"


def replay(*, logs: Sequence[str], paths: Sequence[str], json_path: str | None) -> None:
    """Replays the schedules of files, each with its log, and shows what they cost. Raises
    InputError for what cannot be read or carried out."""
    programs = {schedule.identity(program): program for program in compiled(logs)}
    rows: list[dict[str, Any]] = []
    try:
        for path in paths:
            for each in schedule.read(path):
                program = programs.get(each.sha256)
                if program is None:
                    raise ValueError(f"{path}: a schedule is for {each.log}, which is not given")
                limit = Limit(size_bytes=each.budget_bytes)
                rule = Rule(each.by, simulate.parse_heuristic("lru", "simrd").heuristic)
                setup = Setup(0, each.dealloc, rule, None, limit)
                base = simulate.baseline(program)
                done = schedule.run(program, each)
                plan = Plan([limit], [rule])
                row = simulate.row(plan, setup, program.path, base, done)
                if base.peak_bytes:
                    row["ratio"] = round(each.budget_bytes / base.peak_bytes, 4)
                rows.append(row)
    except OSError as error:
        raise InputError(f"--schedule: {error}") from None
    except ValueError as error:
        raise InputError(f"--schedule: {error}") from None
    with results_file(json_path) as file:
        if file is not None:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    console = Console(stderr=json_path == "-", width=120)
    for heading, table in simulate_report.tables(rows):
        console.print(heading, markup=False, highlight=False, soft_wrap=True)
        console.print(table)
