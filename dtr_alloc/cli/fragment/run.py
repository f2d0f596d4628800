"""``dtr-alloc fragment run``: models of allocators on the requests of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dtr_alloc.cli.common import list_option, of_file, print_table
from dtr_alloc.cli.fragment.options import (
    FILE,
    budgets_of,
    budgets_option,
    models_of,
    truncated_option,
    write_json,
)
from dtr_alloc.cli.runs import failed, workers_of, workers_options
from dtr_alloc.config import format_size, parse_size
from dtr_alloc.fragment import formats
from dtr_alloc.fragment.fidelity import compare as compared
from dtr_alloc.fragment.measures import too_few_events
from dtr_alloc.fragment.models import (
    MODELS,
    OPTIONS,
    ModelRun,
    Prepared,
    smallest_budget,
)
from dtr_alloc.simulation.executors import ExecutorError, Failure, RunsFailed

VERSION = 1
"""Of the JSON."""


@click.command("run", short_help="Run other allocators on the same requests.")
@click.argument("source", metavar="TRACE", type=FILE)
@list_option(
    "--model",
    "all",
    "Allocators: names, or all. The top of dtr_alloc/fragment/models.py lists them.",
)
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
@workers_options("1, so that a run is timed alone")
@truncated_option
def command(
    *,
    source: Path,
    models: Sequence[str],
    budgets: Sequence[str],
    options: Sequence[str],
    device: int | None,
    smallest: bool,
    compare: bool,
    json_path: str | None,
    executor: str | None,
    jobs: int | None,
    allow_truncated: bool,
) -> None:
    """Runs models of allocators on the allocations of TRACE (or a file that `import` reads).

    \b
    Example:
      dtr-alloc fragment run job.trace --model pytorch,first-fit --budget 8GiB
    """
    chosen = models_of(models)
    if compare:
        chosen = [name for name in chosen if MODELS[name][0] == MODELS["pytorch"][0]]
        if not chosen:
            raise click.UsageError("--compare is for pytorch and pytorch-expandable")
    limits = budgets_of(budgets)
    settings = _options(options, chosen)
    told = {
        model: {name: settings[name] for name in sorted(_allowed(model) & set(settings))}
        for model in chosen
    }
    workers = workers_of(executor, jobs, 1)
    failures: dict[str, Exception] = {}
    try:
        prepared = Prepared(formats.read(source, allow_truncated=allow_truncated), device)
        with workers.opened(prepared, len(chosen) * len(limits)) as pool:
            least: dict[str, int | None] = dict.fromkeys(chosen)
            if smallest:
                searches = [(model, told[model]) for model in chosen]
                names = [f"{model}, smallest budget" for model in chosen]
                found = _succeeded(names, pool.outcomes(_smallest, searches), failures)
                least = {searches[at][0]: budget for at, budget in found}
            sizes = [
                None if each is None else each.resolve(prepared.peak_live_bytes) for each in limits
            ]
            runs = [(model, size, told[model], compare) for model in least for size in sizes]
            names = [f"{model}, {_limit(size)}" for model, size, *_ in runs]
            rows = [
                {**row, "smallest_budget_bytes": least[runs[at][0]]}
                for at, row in _succeeded(names, pool.outcomes(_row, runs), failures)
            ]
    except (ValueError, OSError) as error:
        raise of_file(source, error) from None
    except ExecutorError as error:
        raise click.ClickException(str(error)) from None
    if few := too_few_events(prepared.trace, prepared.device):
        click.echo(f"dtr_alloc: {few}", err=True)
    console = Console(stderr=json_path == "-", markup=False)
    print_table(console, _compared_table(rows) if compare else _table(rows, smallest))
    if json_path is not None:
        document = {"version": VERSION, "trace": str(source), "runs": rows}
        try:
            write_json(document, json_path)
        except OSError as error:
            raise click.ClickException(str(error)) from None
    if failures:
        raise failed(RunsFailed(failures))


def _succeeded(
    names: Sequence[str], outcomes: Iterable[Any], failures: dict[str, Exception]
) -> Iterator[tuple[int, Any]]:
    """The results, each with its index; failures go to ``failures``. Raises ValueError if a model
    refuses its options: it does so in every run."""
    for at, outcome in enumerate(outcomes):
        if not isinstance(outcome, Failure):
            yield at, outcome
        elif isinstance(outcome.error, ValueError):
            raise outcome.error
        else:
            failures[names[at]] = outcome.error


def _smallest(prepared: Prepared, model: str, told: dict[str, Any]) -> int | None:
    return smallest_budget(prepared, model, **told)


def _row(
    prepared: Prepared, model: str, size: int | None, told: dict[str, Any], compare: bool
) -> dict[str, Any]:
    row = _document(prepared.run(model, size, **told))
    if compare:
        options = {**MODELS[model][1], **told}
        found = compared(prepared.trace, "pytorch", size, device=prepared.device, **options)
        row["compared"] = asdict(found)
    return row


def _allowed(model: str) -> frozenset[str]:
    return OPTIONS.get(MODELS[model][0], frozenset()) - {"segment_addresses"}


def _options(given: Sequence[str], models: Sequence[str]) -> dict[str, Any]:
    """The options of --set. Raises click.UsageError for one that no chosen model has."""
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


def _document(result: ModelRun) -> dict[str, Any]:
    names = (
        *("model", "options", "budget_bytes", "device", "completed", "failed_event"),
        *("failed_bytes", "events", "peak_live_bytes", "peak_used_bytes", "peak_reserved_bytes"),
        *("mean_lost_bytes", "max_lost_bytes", "lost_at_failure_bytes", "ns_per_operation"),
    )
    series = result.series
    return {
        **{name: getattr(result, name) for name in names},
        "smallest_budget_bytes": None,
        "segments_taken": sum(segment.taken for segment in result.segments),
        "segments_given_back": sum(not segment.taken for segment in result.segments),
        "holes_at_worst": len(result.holes),
        "largest_hole_at_worst_bytes": max(result.holes, default=0),
        "free_at_worst_bytes": sum(result.holes),
        "rows_looked_at": len(series.event),
    }


def _size(bytes_: int | float | None) -> str:
    return "" if bytes_ is None else format_size(round(bytes_))


def _limit(budget_bytes: int | None) -> str:
    return "unlimited" if budget_bytes is None else format_size(budget_bytes)


def _table(rows: Sequence[dict[str, Any]], smallest: bool) -> Table:
    table = Table(title="runs")
    heads = ["model", "budget", "peak used", "peak reserved", "lost, mean", "lost, most"]
    heads += ["smallest budget"] if smallest else []
    for head in [*heads, "ns per operation"]:
        table.add_column(head, justify="left" if head == "model" else "right")
    for row in rows:
        failed = f"out of memory at event {row['failed_event']}"
        cells = [
            *(row["model"], _limit(row["budget_bytes"]), _size(row["peak_used_bytes"])),
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
            *(row["model"], _limit(row["budget_bytes"]), str(found["allocations"])),
            str(found["misplaced"] + found["unplaced"]),
            *(str(found["segment_events"]), str(found["segment_errors"])),
            other if found["reserved_errors"] else same,
        )
    return table
