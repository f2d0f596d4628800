"""The report on traces: numbers as a table and as JSON, and pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dtr_alloc.config import format_size
from dtr_alloc.fragment import measures
from dtr_alloc.fragment.measures import Measures, size_unit
from dtr_alloc.fragment.residency import Residencies, Segment, placed
from dtr_alloc.fragment.walk import by_device, walk
from dtr_alloc.report import console_html
from dtr_alloc.traces.trace import Kind, Trace, TraceError

if TYPE_CHECKING:
    from dtr_alloc.fragment.models import Prepared

FORMAT = "dtr_alloc fragment report"
VERSION = 1
"""Of the JSON. It changes if a key is removed or changes its meaning; new keys may come."""
MOST_IN_USE = 8
"""The most names that are listed for memory in use."""
JSON_ROWS = 1000
"""The most rows of a series in the JSON."""
_TITLES = {
    "map": "The heap, by sizes",
    "operators": "The heap, by operators",
    "live": "Live and reserved",
    "holes": "Holes at the worst moment",
}
SERIES = (
    *("event", "time_ns", "live_bytes", "reserved_bytes"),
    *("free_bytes", "largest_free_bytes", "sum_free_squares"),
)


@dataclass
class Row:
    """A trace as it was recorded, or one run of a model over it.

    Attributes:
        measures: its numbers.
        series: the heap over time; columns of the names in SERIES.
        holes: sizes of the holes at the worst moment, in bytes.
        blocks: None if unknown.
        request_bytes: of the failed request, if the worst moment is an out-of-memory error.
        in_use: the largest users of memory then, if the trace names operators: bytes and names.
        segments: None: as in the trace.
        options: of the model.
    """

    measures: Measures
    series: Any
    holes: Sequence[int]
    blocks: Residencies | None
    request_bytes: int | None
    segments: Sequence[Segment] | None = None
    in_use: Sequence[tuple[int, str]] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """The report on one device of one trace.

    Attributes:
        label: the file, and the device if there are several.
        trace: of that device.
        rows: the first is ``as recorded``.
    """

    label: str
    trace: Trace
    rows: list[Row]

    @property
    def too_few_events(self) -> str | None:
        """As measures.too_few_events()."""
        return measures.too_few_events(self.trace, self.trace.device[0])


def reports(label: str, trace: Trace) -> list[Report]:
    """A report for each device of a valid trace that holds memory, with the recorded row. Raises
    TraceError if the trace allocates nothing."""
    parts = by_device(trace)
    found = [
        Report(label if len(parts) == 1 else f"{label}, device {device}", part, [recorded(part)])
        for device, part in parts.items()
    ]
    if not any(report.rows[0].measures.peak_live_bytes for report in found):
        raise TraceError(measures.NOTHING)
    return found


def recorded(trace: Trace) -> Row:
    """The row of the job itself. trace: valid, of one device. Raises TraceError if that holds no
    memory."""
    done = walk(trace)
    found = measures.of_walk(done)
    event = measures.worst_event(done)
    failed = trace.kind[event] == Kind.OUT_OF_MEMORY
    request = trace.size_bytes[event] if failed else None
    in_use = _in_use(trace, done.blocks, event) if failed else []
    return Row(found, done.series, done.holes_at(event), done.blocks, request, in_use=in_use)


def _in_use(trace: Trace, blocks: Residencies, event: int) -> list[tuple[int, str]]:
    """The bytes in use at an event by the name of the requester, the largest first."""
    bytes_of: Counter[int] = Counter()
    for start, end, size, name in zip(
        blocks.start, blocks.end, blocks.size_bytes, blocks.name, strict=True
    ):
        if start < event < end:
            bytes_of[name] += size
    if not any(bytes_of):
        return []
    return [(size, trace.names[name]) for name, size in bytes_of.most_common(MOST_IN_USE)]


def of_model(
    prepared: Prepared,
    model: str,
    budget_bytes: int | None,
    *,
    smallest: bool,
    blocks: bool,
    **options: Any,
) -> Row:
    """The row of a model of an allocator for a trace of one device.

    Args:
        prepared: the trace.
        model: a key of dtr_alloc.fragment.models.MODELS.
        budget_bytes: None: no limit.
        smallest: whether to look for the smallest budget, which takes about ten runs more.
        blocks: whether to keep the addresses of blocks.
        options: of the model.

    Raises ValueError for an unknown model or a wrong option.
    """
    from dtr_alloc.fragment.models import smallest_budget

    done = prepared.run(model, budget_bytes, placements=blocks, **options)
    if smallest:
        done = replace(done, smallest_budget_bytes=smallest_budget(prepared, model, **options))
    found = measures.of_run(done)
    if budget_bytes is not None:
        found = replace(found, name=f"{model} in {format_size(budget_bytes)}")
    return Row(
        found,
        done.series,
        sorted(done.holes),
        None
        if done.placements is None
        else placed(prepared.trace, done.placements, done.failed_event),
        None if done.completed else done.failed_bytes,
        done.segments,
        options=options,
    )


def table(report: Report) -> Table:
    """The numbers of a report, one row each. Empty columns are left out."""
    found = [row.measures for row in report.rows]
    unit, unit_name = size_unit(max(row.peak_reserved_bytes for row in found))

    def sizes(name: str) -> list[str]:
        return [_number(getattr(row, name), unit, 1) for row in found]

    def ratios(name: str) -> list[str]:
        return [_number(getattr(row, name), 1, 3) for row in found]

    columns = {
        "budget": sizes("budget_bytes"),
        "peak\nlive": sizes("peak_live_bytes"),
        "peak\nreserved": sizes("peak_reserved_bytes"),
        "live /\nreserved": ratios("utilization"),
        "lost,\nmean": sizes("mean_lost_bytes"),
        "lost at\nevictions": sizes("mean_lost_at_evictions_bytes"),
        "largest\n/ free": ratios("worst_largest_share"),
        "Σ hole²\n/ free²": ratios("worst_evenness"),
        "smallest\nbudget": sizes("smallest_budget_bytes"),
        "ns / op": [_number(row.ns_per_operation, 1, 0) for row in found],
    }
    columns = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    shown = Table(title=f"{report.label} (sizes in {unit_name})", title_justify="left")
    shown.box, shown.padding, shown.caption_justify = SIMPLE_HEAD, (0, 1, 0, 0), "left"
    shown.add_column("", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right", vertical="bottom")
    for row, *cells in zip(found, *columns.values(), strict=True):
        shown.add_row(row.name, *cells, style=None if row.completed else "dim")
    failed = [row.name for row in found if not row.completed]
    notes = [f"out of memory: {', '.join(failed)}"] if failed else []
    if in_use := report.rows[0].in_use:
        notes.append("in use then, the largest:")
        notes += [f"{format_size(size):>12}  {name or 'unknown'}" for size, name in in_use]
    shown.caption = "\n".join([*notes, *filter(None, [report.too_few_events])]) or None
    return shown


def _number(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def document(found: Iterable[Report]) -> dict[str, Any]:
    """The report as JSON; docs/guides/fragmentation-study.md describes it."""
    from dtr_alloc.report import package_version

    return {
        "format": FORMAT,
        "version": VERSION,
        "dtr_alloc": package_version("dtr-alloc"),
        "traces": [
            {
                "trace": report.label,
                "source": report.trace.meta.get("source"),
                "too_few_events": report.too_few_events,
                "rows": [_row(row) for row in report.rows],
            }
            for report in found
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **asdict(row.measures),
        "options": row.options,
        "worst_largest_share": row.measures.worst_largest_share,
        "worst_request_bytes": row.request_bytes,
        "worst_holes_bytes": list(row.holes),
        "worst_in_use": [{"size_bytes": size, "name": name} for size, name in row.in_use],
        "series": _thinned(row.series),
    }


def _thinned(series: Any) -> dict[str, list[float]]:
    """At most JSON_ROWS rows of a series, evenly, with the peaks of live and reserved bytes."""
    rows = range(len(series.event))
    kept = set(rows[:: max(1, -(-len(rows) // (JSON_ROWS - 2)))])
    for column in (series.live_bytes, series.reserved_bytes) if rows else ():
        kept.add(column.index(max(column)))
    return {name: [getattr(series, name)[row] for row in sorted(kept)] for name in SERIES}


def figures(report: Report, *, maps: bool) -> dict[str, Any]:
    """The pictures, by name: map, operators (if the trace names some), live, holes; with maps also
    map-MODEL of each model that has addresses."""
    from dtr_alloc.fragment import charts, pictures

    trace, rows = report.trace, report.rows
    figures: dict[str, Any] = {}
    for row in rows if maps else rows[:1]:
        name = row.measures.name
        suffix = "" if row is rows[0] else "-" + re.sub(r"[^\w.-]+", "-", name)
        if row.blocks is not None:
            title = f"{report.label}, {name}: {finding(row)}"
            figures[f"map{suffix}"] = pictures.map_picture(
                trace, row.blocks, title, segments=row.segments
            )
    figures["live"] = charts.live_picture(trace, [(row.series, row.measures) for row in rows])
    blocks = rows[0].blocks
    if blocks is not None and len(set(blocks.name)) > 1:
        title = f"{report.label}: {finding(rows[0])}"
        figures["operators"] = pictures.map_picture(trace, blocks, title, color="operator")
    figures["holes"] = charts.holes_picture(
        [
            (row.measures.name, row.holes, row.request_bytes)
            for row in rows
            if row.holes or row is rows[0]
        ]
    )
    return figures


def write_pictures(report: Report, folder: Path, stem: str, *, maps: bool) -> list[Path]:
    """Draws STEM-NAME.png of each of the figures. Returns the paths. Raises OSError as the disk
    does."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures(report, maps=maps).items():
        paths.append(folder / f"{stem}-{name}.png")
        figure.savefig(paths[-1], dpi=110)
    return paths


def page(found: Sequence[Report], *, maps: bool) -> str:
    """The tables and pictures of all reports on a self-contained page."""
    from dtr_alloc import html

    body = ""
    for report in found:
        body += console_html([table(report)], width=120)
        with html.style():
            drawn = figures(report, maps=maps)
        body += html.pictures(
            html.svg(_TITLES.get(name, name), html.narrowed, figure)
            for name, figure in drawn.items()
        )
    label = ", ".join(report.label for report in found)
    words = " ".join(f"{report.label}: {finding(report.rows[0])}." for report in found)
    return html.document(f"Where the memory of {label} went", words, body)


def finding(row: Row) -> str:
    """A sentence on the use of memory."""
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
