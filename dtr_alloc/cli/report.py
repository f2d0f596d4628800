"""``dtr-alloc report``: the statistics of all ranks of a job, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dtr_alloc.bounded import shown
from dtr_alloc.cli.common import InputError, json_object, print_table, results_file
from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.figures import of_budget
from dtr_alloc.records import in_seconds

MOST_BYTES = 1 << 20
_COUNTERS = (
    *("budget_bytes", "peak_allocated_bytes", "recompute_seconds", "recompute_cost_seconds"),
    *("clock_seconds", "search_seconds", "evictions", "out_of_memory_errors"),
    *("recorded_ops", "unrecorded_ops"),
)


@click.command("report", short_help="Show the statistics of all ranks side by side.")
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--json", "json_path", metavar="FILE", help="One JSON object a rank; - is stdout.")
def command(files: Sequence[Path], json_path: str | None) -> None:
    """Shows a row for each rank of a job, from the FILEs that the ranks wrote, and names the rank
    that is nearest its budget and the rank that recomputes most.

    \b
    Example:
      dtr-alloc run --budget 8GiB --stats stats-{rank}.json train.py
      dtr-alloc report stats-*.json
    """
    rows = ranks(files)
    with results_file(json_path) as file:
        if file is not None:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    console = Console(stderr=json_path == "-", markup=False, highlight=False)
    print_table(console, _table(rows))
    for sentence in _sentences(rows):
        console.print(sentence, soft_wrap=True)


def ranks(files: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each file, in the order of the ranks. Raises InputError for a file that no job
    wrote, and for two of one rank."""
    rows: dict[str, dict[str, Any]] = {}
    for path in files:
        row = _row(path)
        if (other := rows.setdefault(row["rank"], row)) is not row:
            raise InputError(f"{path}: it is of rank {row['rank']}, and so is {other['file']}")
    return sorted(rows.values(), key=lambda row: (len(row["rank"]), row["rank"]))


def _row(path: Path) -> dict[str, Any]:
    """The row of a file. A rank without RANK has the name of the file.

    budget_share is None without a budget, and a share of what was computed if nothing was.
    """
    try:
        # The file of a version whose recorder never rested has no operators that it did not record.
        document = {"unrecorded_ops": 0, **in_seconds(json_object(path, MOST_BYTES))}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    job = document.get("job")
    rank = job.get("rank") if isinstance(job, dict) else None
    wrong = [f"rank {shown(rank)}"] if not (rank is None or isinstance(rank, str)) else []
    for name in _COUNTERS:
        value = document.get(name)
        if not (isinstance(value, int | float) and 0 <= value <= UNLIMITED_BYTES):
            wrong.append(f"{name} {shown(value)}" if name in document else f"no {name}")
    if wrong:
        raise InputError(
            f"{path}: it has {wrong[0]}; allowed: a file that --stats or DTR_ALLOC_STATS wrote"
        )
    row = {name: document[name] for name in _COUNTERS}
    clock, recompute = row.pop("clock_seconds"), row.pop("recompute_cost_seconds")
    unrecorded = row.pop("unrecorded_ops")
    operators = row.pop("recorded_ops") + unrecorded
    return {
        "rank": path.stem if rank is None else rank,
        "file": str(path),
        **row,
        "budget_share": of_budget(row, "peak_allocated_bytes"),
        "recompute_share": recompute / clock if clock else None,
        "rest_share": unrecorded / operators if operators else None,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="dtr_alloc: one row a rank")
    names = ("budget", "peak", "of budget", "at rest", "recompute", "of compute", "search")
    table.add_column("rank")
    for name in (*names, "evictions", "OOM"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["rank"],
            format_size(row["budget_bytes"]),
            format_size(row["peak_allocated_bytes"]),
            _percent(row["budget_share"]),
            _percent(row["rest_share"]),
            f"{row['recompute_seconds']:.3f} s",
            _percent(row["recompute_share"]),
            f"{row['search_seconds']:.3f} s",
            f"{row['evictions']:,}",
            f"{row['out_of_memory_errors']:,}",
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _sentences(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    limited = [row for row in rows if row["budget_share"] is not None]
    if limited:
        # Who evicts has been at its budget, so evictions decide between such.
        most = max(limited, key=lambda row: (round(row["budget_share"], 2), row["evictions"]))
        yield (
            f"Rank {most['rank']} is nearest its budget: its peak was "
            f"{_percent(most['budget_share'])} of it."
        )
    most = max(rows, key=lambda row: row["recompute_seconds"])
    if most["recompute_seconds"]:
        yield (
            f"Rank {most['rank']} recomputes most, {most['recompute_seconds']:.3f} s"
            + ("; the others wait for it in each collective." if len(rows) > 1 else ".")
        )
    else:
        yield "Nothing was recomputed."
