"""``dtr-alloc fragment run``: another allocator under the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dtr_alloc.cli.common import InputError
from dtr_alloc.cli.fragment.options import (
    FILE,
    budgets_of,
    budgets_option,
    models_of,
    models_option,
    write_json,
)
from dtr_alloc.config import format_size, parse_size
from dtr_alloc.lab.fragment import formats
from dtr_alloc.lab.fragment.fidelity import compare as compared
from dtr_alloc.lab.fragment.models import (
    MODELS,
    OPTIONS,
    ModelRun,
    Prepared,
    smallest_budget,
)

VERSION = 1
"""Of the JSON."""


@click.command("run", short_help="What another allocator would have made of the same requests.")
@click.argument("source", metavar="TRACE", type=FILE)
@models_option("Allocators: names, or all. The top of dtr_alloc/lab/fragment/models.py lists them.")
@budgets_option
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the models that have it: max_split_bytes=32MiB, ties_by_address=1, ...",
)
@click.option("--device", type=click.IntRange(min=0), help="Which, if the trace has several.")
@click.option("--smallest", is_flag=True, help="Look for the smallest budget of each model.")
@click.option(
    "--compare",
    is_flag=True,
    help="Compare the models of PyTorch's allocator, event by event, with what the trace recorded.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers; - is stdout.")
@click.option(
    "--allow-truncated", is_flag=True, help="Take what a killed job left of its trace as it is."
)
def command(**options: Any) -> None:
    """Runs models of allocators over the allocations of TRACE (or what `import` reads)."""
    _run(**options)


def _run(
    *,
    source: Path,
    models: Sequence[str],
    budgets: Sequence[str],
    options: Sequence[str],
    device: int | None,
    smallest: bool,
    compare: bool,
    json_path: str | None,
    allow_truncated: bool,
) -> None:
    """Prints a table, and writes JSON where it is asked for. Raises click.UsageError and
    InputError before it writes anything."""
    chosen = models_of(models)
    if compare:
        chosen = [name for name in chosen if MODELS[name][0] == MODELS["pytorch"][0]]
        if not chosen:
            raise click.UsageError("--compare is for pytorch and pytorch-expandable")
    limits = budgets_of(budgets)
    settings = _options(options, chosen)
    try:
        trace = formats.read(source, allow_truncated=allow_truncated)
        prepared = Prepared(trace, device)
        rows = []
        for model in chosen:
            told = {name: settings[name] for name in sorted(_allowed(model) & set(settings))}
            least = smallest_budget(prepared, model, **told) if smallest else None
            for limit in limits:
                size = None if limit is None else limit.resolve(prepared.peak_live_bytes)
                row = _document(prepared.run(model, size, **told), least)
                if compare:
                    told_all = {**_presets(model), **told}
                    row["compared"] = asdict(
                        compared(trace, "pytorch", size, device=device, **told_all)
                    )
                rows.append(row)
    except (ValueError, OSError) as error:
        text = str(error)
        raise InputError(text if str(source) in text else f"{source}: {text}") from None
    console = Console(stderr=json_path == "-", markup=False)
    console.print(_compared_table(rows) if compare else _table(rows, smallest))
    if json_path is not None:
        document = {"version": VERSION, "trace": str(source), "runs": rows}
        try:
            write_json(document, json_path)
        except OSError as error:
            raise click.ClickException(str(error)) from None


def _presets(model: str) -> dict[str, Any]:
    return dict(MODELS[model][1])


def _allowed(model: str) -> frozenset[str]:
    return OPTIONS.get(MODELS[model][0], frozenset()) - {"segment_addresses"}


def _options(given: Sequence[str], models: Sequence[str]) -> dict[str, Any]:
    """What --set says. Raises click.UsageError for what no chosen model has."""
    allowed = sorted(frozenset().union(*map(_allowed, models)))
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in allowed:
            raise click.UsageError(
                f"--set is {text!r}; allowed: NAME=VALUE, names {', '.join(allowed) or 'none'}"
            )
        try:
            if name == "placement":
                found[name] = value
            elif name == "collect_threshold":
                found[name] = float(value)
            else:
                found[name] = parse_size(value) if name.endswith("_bytes") else int(value)
        except ValueError as error:
            raise click.UsageError(f"--set {name}: {error}") from None
    return found


def _document(result: ModelRun, smallest: int | None) -> dict[str, Any]:
    names = (
        *("model", "options", "budget_bytes", "device", "completed", "failed_event"),
        *("failed_bytes", "events", "peak_live_bytes", "peak_used_bytes", "peak_reserved_bytes"),
        *("mean_lost_bytes", "max_lost_bytes", "lost_at_failure_bytes", "ns_per_operation"),
    )
    series = result.series
    return {
        **{name: getattr(result, name) for name in names},
        "smallest_budget_bytes": smallest,
        "segments_taken": sum(segment.taken for segment in result.segments),
        "segments_given_back": sum(not segment.taken for segment in result.segments),
        "holes_at_worst": len(result.holes),
        "largest_hole_at_worst_bytes": max(result.holes, default=0),
        "free_at_worst_bytes": sum(result.holes),
        "rows_looked_at": len(series.event),
    }


def _size(bytes_: int | float | None) -> str:
    return "" if bytes_ is None else format_size(round(bytes_))


def _limit(row: dict[str, Any]) -> str:
    return "unlimited" if row["budget_bytes"] is None else format_size(row["budget_bytes"])


def _table(rows: Sequence[dict[str, Any]], smallest: bool) -> Table:
    table = Table(title="runs")
    heads = ["model", "budget", "peak used", "peak reserved", "lost, mean", "lost, most"]
    heads += ["smallest budget"] if smallest else []
    for head in [*heads, "ns per operation"]:
        table.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        failed = f"out of memory at event {row['failed_event']}"
        cells = [
            *(row["model"], _limit(row), _size(row["peak_used_bytes"])),
            _size(row["peak_reserved_bytes"]) if row["completed"] else failed,
            *(_size(row["mean_lost_bytes"]), _size(row["max_lost_bytes"])),
            *([_size(row["smallest_budget_bytes"])] if smallest else []),
            f"{row['ns_per_operation']:.0f}",
        ]
        table.add_row(*cells)
    return table


def _compared_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="the model against what was recorded")
    for head in ("model", "budget", "allocations", "misplaced", "segment events", "other ones"):
        table.add_column(head, justify="left" if head == "model" else "right")
    table.add_column("reserved bytes", justify="right")
    for row in rows:
        found = row["compared"]
        same = "the same after every event"
        other = (
            f"{found['mean_reserved_error']:.2%} off on average, "
            f"{found['peak_reserved_error']:+.2%} at the peak"
        )
        table.add_row(
            *(row["model"], _limit(row), str(found["allocations"])),
            str(found["misplaced"] + found["unplaced"]),
            *(str(found["segment_events"]), str(found["segment_errors"])),
            other if found["reserved_errors"] else same,
        )
    return table
