"""``dtr-alloc top``: the running jobs of this user."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dtr_alloc import live
from dtr_alloc.bounded import printable
from dtr_alloc.cli.common import InputError
from dtr_alloc.config import UNLIMITED_BYTES, format_size


@click.command("top", short_help="Watch running jobs.")
@click.option("--once", is_flag=True, help="Print the current state once and exit.")
@click.argument("pids", metavar="[PID...]", nargs=-1, type=int)
def command(once: bool, pids: Sequence[int]) -> None:
    """Shows a row for each job of this user that has a budget, or for the processes PID...: the
    last steps of each rank. Ctrl-C ends it.

    \b
    Examples:
      dtr-alloc top
      dtr-alloc top --once 4711
    """
    console = Console(markup=False)
    if once:
        console.print(_table(pids))
        return
    try:
        with Live(_table(pids), console=console, auto_refresh=False) as shown:
            while True:
                time.sleep(live.EVERY_SECONDS)
                shown.update(_table(pids), refresh=True)
    except KeyboardInterrupt:
        pass


def _table(pids: Sequence[int]) -> Table:
    try:
        jobs = [values for values in live.running() if not pids or values["pid"] in pids]
    except OSError as error:
        raise InputError(str(error)) from None
    if missing := set(pids) - {values["pid"] for values in jobs}:
        raise InputError(
            f"process {min(missing)} shows nothing; allowed: a job of yours that has a budget"
        )
    table = Table(box=box.SIMPLE, padding=(0, 0), pad_edge=False)
    table.add_column("pid", no_wrap=True)
    table.add_column("rank", no_wrap=True)
    table.add_column("job", overflow="fold")
    for name in ("step", "s a step", "budget", "peak", "again", "plan"):
        table.add_column(name, justify="right", no_wrap=True)
    for values in jobs:
        table.add_row(*_cells(values))
    return table


def _cells(values: live.Shown) -> tuple[str, ...]:
    budget, has_steps = values["budget_bytes"], values["steps"] > 0
    return (
        str(values["pid"]),
        printable(values["rank"] or ""),
        printable(Path(*values["job"]).name),
        f"{values['steps']:,}" if has_steps else "-",
        f"{values['step_seconds']:.3g}" if has_steps else "-",
        "none" if budget >= UNLIMITED_BYTES else format_size(budget),
        format_size(values["peak_allocated_bytes"]) if has_steps else "-",
        f"{values['recompute_share']:.0%}" if has_steps else "-",
        "yes" if values["is_planned"] else "",
    )
