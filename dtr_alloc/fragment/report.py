"""The report on traces: rows of numbers as a table and as JSON, and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dtr_alloc.config import format_size
from dtr_alloc.fragment import measures
from dtr_alloc.fragment.measures import Measures, size_unit
from dtr_alloc.fragment.residency import Residencies
from dtr_alloc.fragment.trace import Kind, Trace
from dtr_alloc.fragment.walk import by_device, walk

FORMAT = "dtr_alloc fragment report"
VERSION = 1
"""Of the JSON. It changes when a key goes or changes its meaning; new keys may come."""
JSON_ROWS = 1000
"""The most rows of a series in the JSON."""
SERIES = (
    *("event", "time_ns", "live_bytes", "reserved_bytes"),
    *("free_bytes", "largest_free_bytes", "sum_free_squares"),
)


@dataclass
class Row:
    """A trace as it was recorded, or one replay of it.

    Attributes:
        measures: its numbers.
        series: the heap over time; columns of the names in SERIES.
        holes: sizes of the holes at the worst moment, in bytes.
        blocks: where blocks lay, if that is known.
        request_bytes: what found no place at the worst moment, if it is an out-of-memory error.
    """

    measures: Measures
    series: Any
    holes: Sequence[int]
    blocks: Residencies | None
    request_bytes: int | None


@dataclass
class Report:
    """What is said of one device of one trace.

    Attributes:
        label: the file, and the device if there are several.
        trace: of that device.
        rows: the first is ``as recorded``.
    """

    label: str
    trace: Trace
    rows: list[Row]


def reports(label: str, trace: Trace) -> list[Report]:
    """A report for each device of a valid trace, with what was recorded. Raises TraceError if the
    trace allocates nothing."""
    parts = by_device(trace)
    if not parts:
        measures.of_walk(walk(trace))  # says what is missing
    return [
        Report(label if len(parts) == 1 else f"{label}, device {device}", part, [recorded(part)])
        for device, part in parts.items()
    ]


def recorded(trace: Trace) -> Row:
    """What happened in the job itself. trace: valid, of one device. Raises TraceError if it
    allocates nothing."""
    done = walk(trace)
    found = measures.of_walk(done)
    event = measures.worst_event(done)
    failed = trace.kind[event] == Kind.OUT_OF_MEMORY
    request = trace.size_bytes[event] if failed else None
    return Row(found, done.series, done.holes_at(event), done.blocks, request)


def table(report: Report) -> Table:
    """The numbers of a report, one row each. Columns that would be empty are left out."""
    found = [row.measures for row in report.rows]
    unit, unit_name = size_unit(max(row.peak_reserved_bytes for row in found))

    def sizes(name: str) -> list[str]:
        return [_number(getattr(row, name), unit, 1) for row in found]

    def ratios(name: str) -> list[str]:
        return [_number(getattr(row, name), 1, 3) for row in found]

    columns = {
        "budget": sizes("budget_bytes"),
        "peak live": sizes("peak_live_bytes"),
        "peak reserved": sizes("peak_reserved_bytes"),
        "live / reserved": ratios("utilization"),
        "lost, mean": sizes("mean_lost_bytes"),
        "lost, most": sizes("max_lost_bytes"),
        "lost at evictions": sizes("mean_lost_at_evictions_bytes"),
        "largest / free": ratios("worst_largest_share"),
        "Σ hole² / free²": ratios("worst_evenness"),
        "smallest budget": sizes("smallest_budget_bytes"),
        "ns / op": [_number(row.ns_per_operation, 1, 0) for row in found],
    }
    columns = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    shown = Table(title=f"{report.label} (sizes in {unit_name})", title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right")
    for row, *cells in zip(found, *columns.values(), strict=True):
        shown.add_row(row.name, *cells, style=None if row.completed else "dim")
    failed = [row.name for row in found if not row.completed]
    if failed:
        shown.caption = f"out of memory: {', '.join(failed)}"
    return shown


def _number(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def document(found: Iterable[Report]) -> dict[str, Any]:
    """The report as JSON has it; docs/fragment.md says what is in it."""
    from dtr_alloc.report import package_version

    return {
        "format": FORMAT,
        "version": VERSION,
        "dtr_alloc": package_version("dtr-alloc"),
        "traces": [
            {
                "trace": report.label,
                "source": report.trace.meta.get("source"),
                "rows": [_row(row) for row in report.rows],
            }
            for report in found
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **asdict(row.measures),
        "worst_largest_share": row.measures.worst_largest_share,
        "worst_request_bytes": row.request_bytes,
        "worst_holes_bytes": list(row.holes),
        "series": _thinned(row.series),
    }


def _thinned(series: Any) -> dict[str, list[float]]:
    """At most JSON_ROWS rows of a series, evenly, with the peaks of live and reserved bytes."""
    rows = range(len(series.event))
    kept = set(rows[:: max(1, -(-len(rows) // (JSON_ROWS - 2)))])
    for column in (series.live_bytes, series.reserved_bytes):
        kept.add(max(rows, key=column.__getitem__))
    return {name: [getattr(series, name)[row] for row in sorted(kept)] for name in SERIES}


def write_pictures(report: Report, folder: Path, stem: str, *, by_event: bool) -> list[Path]:
    """Draws STEM-map.png, STEM-operators.png (if the trace names operators), STEM-live.png,
    STEM-holes.png, and STEM-models.png if there are replays. Returns the paths.

    Raises OSError where the disk does.
    """
    from dtr_alloc.fragment import pictures

    trace, rows = report.trace, report.rows
    first = rows[0]
    found = first.measures
    figures: dict[str, Any] = {}
    if first.blocks is not None:
        title = f"{report.label}: {finding(first)}"
        figures["map"] = pictures.map_picture(trace, first.blocks, title, by_event=by_event)
        if len(set(first.blocks.name)) > 1:
            figures["operators"] = pictures.map_picture(
                trace, first.blocks, title, color="operator", by_event=by_event
            )
    figures["live"] = pictures.live_picture(trace, first.series, found)
    figures["holes"] = pictures.holes_picture(
        [(row.measures.name, row.holes) for row in rows], first.request_bytes
    )
    if len(rows) > 1:
        figures["models"] = pictures.models_picture([row.measures for row in rows], report.label)
    paths = []
    for name, figure in figures.items():
        path = folder / f"{stem}-{name}.png"
        pictures.save(figure, path)
        paths.append(path)
    return paths


def finding(row: Row) -> str:
    """One line on where memory went."""
    found, holes = row.measures, row.holes
    if row.request_bytes is not None:
        return (
            f"{format_size(row.request_bytes)} asked for, {format_size(sum(holes))} free in "
            f"{_count(len(holes), 'hole')} of at most {format_size(max(holes, default=0))}"
        )
    lost = found.mean_lost_at_evictions_bytes
    if lost is not None and found.budget_bytes:
        part = 100 * lost / found.budget_bytes
        return (
            f"{_count(found.counts['evictions'], 'eviction')} in "
            f"{format_size(found.budget_bytes)}; when room was asked for, "
            f"{format_size(round(lost))} ({part:.1f} %) were free and of no use, on average"
        )
    return (
        f"{format_size(found.peak_reserved_bytes)} reserved for "
        f"{format_size(found.peak_live_bytes)} live at the peaks; then "
        f"{format_size(found.worst_free_bytes)} free in {_count(len(holes), 'hole')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
