"""The pictures of ``dtr-alloc fragment report``. matplotlib is imported when one is drawn.

Each title says what was found; the axes have units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtr_alloc.config import format_size
from dtr_alloc.fragment.measures import Measures, size_unit
from dtr_alloc.fragment.residency import Residencies
from dtr_alloc.fragment.trace import Kind, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIVE, LOST, RESERVED = "#0072b2", "#e69f00", "#000000"
FAILED = "#d55e00"
MOST_POINTS = 2000
"""A line of more gets the largest and the smallest of each part instead."""


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Writes a figure; the suffix says as what. Raises OSError where the disk does."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=dpi)


@dataclass(frozen=True)
class Clock:
    """The time axis: of a trace's times, or of its events where no time passes.

    Attributes:
        scale: of the axis' unit, in nanoseconds or events.
        label: of the axis.
        by_event: which.
    """

    scale: float
    label: str
    by_event: bool

    @staticmethod
    def of(trace: Trace, by_event: bool = False) -> Clock:
        """by_event: even if times are there."""
        longest = trace.time_ns[-1] if len(trace) else 0
        if by_event or not longest:
            return Clock(1.0, "event", True)
        for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
            if longest >= 3 * scale:
                return Clock(scale, f"time, {unit}", False)
        return Clock(1.0, "time, ns", False)

    def at(self, trace: Trace, event: int) -> float:
        """Where an event is on the axis."""
        return event if self.by_event else trace.time_ns[event] / self.scale


def map_picture(
    trace: Trace,
    blocks: Residencies,
    title: str,
    *,
    segments: Any = None,
    color: str = "size",
    by_event: bool = False,
) -> Figure:
    """The map of a heap (dtr_alloc.fragment.heap_map), and under it what was evicted, computed
    again and moved, if anything was."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from dtr_alloc.fragment import heap_map

    clock = Clock.of(trace, by_event)
    drawn = heap_map.heap_map(
        trace, blocks, segments=segments, color=color, by_event=clock.by_event
    )
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    has_strip = bool(drawn.marks)
    axes, strip = (
        figure.subplots(2, 1, sharex=True, height_ratios=(6, 1))
        if has_strip
        else (figure.subplots(), None)
    )
    unit, name = size_unit(drawn.axis.length_bytes)
    left, right = (time / clock.scale for time in drawn.times)
    top = drawn.axis.length_bytes / unit
    axes.imshow(
        drawn.image,
        extent=(left, right, 0, top),
        origin="lower",
        aspect="auto",
        interpolation="antialiased",
    )
    for offset in drawn.axis.offsets[1:]:
        axes.axhline(offset / unit, color="0.3", lw=0.6)
    what = "unused addresses cut out at the lines" if len(drawn.axis.offsets) > 1 else "address"
    axes.set_ylabel(f"{what if what == 'address' else f'address ({what})'}, {name}")
    axes.set_title(title, loc="left")
    _events(axes, trace, clock)
    handles: list[Any] = [Patch(fc=shade, label=label) for label, shade in drawn.classes]
    handles.append(Patch(fc=heap_map.FREE, label="free, reserved"))
    handles += [Line2D([], [], color=mark, lw=3, label=label) for label, mark in drawn.marks]
    what = "size of a block" if color == "size" else "operator"
    figure.legend(handles=handles, loc="outside right upper", title=what, fontsize=8.5)
    if strip is not None:
        _strip(strip, trace, blocks, clock, np.linspace(left, right, 201), drawn.marks)
    (axes if strip is None else strip).set_xlabel(clock.label)
    return figure


def _events(axes: Axes, trace: Trace, clock: Clock) -> None:
    """Out-of-memory errors, and where training steps begin."""
    kinds = trace.kind
    steps = [event for event, kind in enumerate(kinds) if kind == Kind.STEP]
    if len(steps) <= 40:
        for event in steps:
            axes.axvline(clock.at(trace, event), color="0.25", lw=0.7, ls=":")
    failed = [event for event, kind in enumerate(kinds) if kind == Kind.OUT_OF_MEMORY]
    for event in failed[:200]:
        axes.axvline(clock.at(trace, event), color=FAILED, lw=1.6)
    if failed:
        first = clock.at(trace, failed[0])
        low, high = axes.get_xlim()
        on_left = first > (low + high) / 2
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        axes.annotate(
            f"out of memory: {format_size(trace.size_bytes[failed[0]])} asked for{more}",
            (first, 0.97),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6 if on_left else 6, 0),
            textcoords="offset points",
            ha="right" if on_left else "left",
            va="top",
            fontsize=9,
            bbox={"fc": "w", "ec": FAILED, "pad": 2},
        )


def _strip(
    axes: Axes,
    trace: Trace,
    blocks: Residencies,
    clock: Clock,
    edges: Any,
    marks: Sequence[tuple[str, str]],
) -> None:
    """Bytes evicted, computed again and moved, over time."""
    import numpy as np

    from dtr_alloc.fragment import residency

    begin = np.asarray(blocks.start), np.asarray(blocks.began)
    end = np.asarray(blocks.end), np.asarray(blocks.ended)
    of = {
        "evicted": (end, residency.EVICTED),
        "computed again": (begin, residency.REMATERIALIZED),
        "moved": (begin, residency.MOVED_IN),
    }
    sizes = np.asarray(blocks.size_bytes, dtype=np.float64)
    heights, colors = [], []
    for label, color in reversed(marks):
        (events, how), wanted = of[label]
        chosen = how == wanted
        times = events[chosen].astype(np.float64)
        if not clock.by_event:
            times = np.asarray(trace.time_ns, dtype=np.float64)[events[chosen]] / clock.scale
        heights.append(np.histogram(times, edges, weights=sizes[chosen])[0])
        colors.append(color)
    unit, name = size_unit(max(column.max() for column in heights))
    bottom = np.zeros(len(edges) - 1)
    for height, color in zip(heights, colors, strict=True):
        axes.bar(edges[:-1], height / unit, np.diff(edges), bottom, color=color, align="edge")
        bottom += height / unit
    axes.set_ylabel(f"per bar, {name}", fontsize=8)
    axes.margins(x=0)


def live_picture(trace: Trace, series: Any, measures: Measures) -> Figure:
    """Live against reserved bytes over time, with what is lost between them."""
    from matplotlib.figure import Figure

    clock = Clock.of(trace)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    unit, name = size_unit(measures.peak_reserved_bytes)
    at, live, reserved = thinned(series, clock)
    live, reserved = live / unit, reserved / unit
    axes.fill_between(at, 0, live, step="post", color=LIVE, alpha=0.35, lw=0, label="live")
    axes.fill_between(
        at,
        live,
        reserved,
        step="post",
        color=LOST,
        alpha=0.6,
        lw=0,
        label="lost: reserved, not live",
    )
    axes.step(at, reserved, where="post", color=RESERVED, lw=1, label="reserved")
    axes.step(at, live, where="post", color=LIVE, lw=0.8)
    if measures.budget_bytes:
        axes.axhline(measures.budget_bytes / unit, color="0.3", ls="--", lw=1, label="budget")
    worst = clock.at(trace, min(measures.worst_event, len(trace) - 1))
    axes.axvline(worst, color=FAILED, ls=":", lw=1.3, label="worst moment")
    axes.set_ylim(0)
    axes.margins(x=0)
    axes.set_ylabel(name)
    axes.set_xlabel(clock.label)
    axes.grid(alpha=0.3)
    axes.set_title(live_title(measures), loc="left")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8.5)
    return figure


def live_title(measures: Measures) -> str:
    """The finding of live_picture."""
    part = 1 - (measures.utilization or 0)
    return (
        f"{measures.name}: {format_size(measures.peak_reserved_bytes)} reserved for "
        f"{format_size(measures.peak_live_bytes)} live at the peaks ({100 * part:.1f} % lost); "
        f"{format_size(round(measures.mean_lost_bytes))} lost on average"
    )


def thinned(series: Any, clock: Clock) -> tuple[Any, Any, Any]:
    """Times, live and reserved bytes; of many rows, both ends of each part's range."""
    import numpy as np

    at = np.asarray(series.event if clock.by_event else series.time_ns, dtype=np.float64)
    at = at / clock.scale
    live = np.asarray(series.live_bytes, dtype=np.float64)
    reserved = np.asarray(series.reserved_bytes, dtype=np.float64)
    if len(at) <= 2 * MOST_POINTS:
        return at, live, reserved
    starts = np.unique(np.linspace(0, len(at) - 1, MOST_POINTS).astype(int))
    low = [np.minimum.reduceat(column, starts) for column in (live, reserved)]
    high = [np.maximum.reduceat(column, starts) for column in (live, reserved)]
    both = [np.column_stack(pair).ravel() for pair in zip(high, low, strict=True)]
    ends = np.append(starts[1:], len(at) - 1)
    return np.column_stack((at[starts], (at[starts] + at[ends]) / 2)).ravel(), both[0], both[1]


def holes_picture(
    rows: Sequence[tuple[str, Sequence[int]]], request_bytes: int | None = None
) -> Figure:
    """Histograms of holes at the worst moments, one above the other: how many bytes are free in
    holes of which size.

    Args:
        rows: names with the sizes of their holes, in bytes.
        request_bytes: what found no place, to be marked.
    """
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(9, 0.9 + 2.3 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), 1, squeeze=False, sharex=True).flat
    sizes = [size for _, holes in rows for size in holes] + [request_bytes or 1 << 20]
    low, high = min(sizes).bit_length() - 1, max(sizes).bit_length()
    edges = [1 << bit for bit in range(low, high + 1)]
    for axes, (name, holes) in zip(panels, rows, strict=True):
        found = np.asarray(holes, dtype=np.float64)
        held, _ = np.histogram(found, edges, weights=found)
        number, _ = np.histogram(found, edges)
        unit, unit_name = size_unit(max(held.max(), 1))
        bars = axes.bar(edges[:-1], held / unit, np.diff(edges), align="edge", color=LOST, ec="w")
        axes.bar_label(bars, [f"{n:,}" if n else "" for n in number], fontsize=8)
        axes.set_xscale("log", base=2)
        axes.margins(y=0.3 if request_bytes else 0.15)
        if request_bytes:
            axes.axvline(request_bytes, color=FAILED, lw=1.5)
            axes.annotate(
                f"asked for: {format_size(request_bytes)}",
                (request_bytes, 0.96),
                xycoords=axes.get_xaxis_transform(),
                xytext=(-5, 0),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=8.5,
                color=FAILED,
            )
        axes.set_ylabel(f"free, {unit_name}")
        axes.grid(axis="y", alpha=0.3)
        axes.set_title(holes_title(name, holes), loc="left", fontsize=10)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda size, _: format_size(int(size)).replace(".00", ""))
    )
    axes.set_xlabel("size of a hole (over each bar: how many holes)")
    return figure


def holes_title(name: str, holes: Sequence[int]) -> str:
    """The finding of a panel of holes_picture."""
    if not holes:
        return f"{name}: nothing is free at the worst moment"
    return (
        f"{name}: {format_size(sum(holes))} free in {len(holes):,} "
        f"{'hole' if len(holes) == 1 else 'holes'}, the largest has {format_size(max(holes))}"
    )


def models_picture(rows: Sequence[Measures], title: str) -> Figure:
    """What each allocator reserves at its peak, and the smallest budget in which it replays,
    in terms of peak live bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    has_budgets = any(row.smallest_budget_bytes for row in rows)
    high = 0.38 if has_budgets else 0.7
    live = max(row.peak_live_bytes for row in rows)
    for y, row in enumerate(rows):
        bars = [(row.peak_reserved_bytes, LOST, "peak reserved", -high / 2 if has_budgets else 0)]
        if row.smallest_budget_bytes:
            bars.append((row.smallest_budget_bytes, LIVE, "smallest budget", high / 2))
        for size, color, label, shift in bars:
            text = f" {size / live:.3f}  ({format_size(size)})"
            if label == "peak reserved" and not row.completed:
                text += ", out of memory"
            axes.barh(
                y + shift,
                size / live,
                high,
                color=color,
                ec="w",
                hatch="//" if text.endswith("out of memory") else None,
                label=label if y == _first(rows, label) else None,
            )
            axes.text(size / live, y + shift, text, va="center", fontsize=8)
    axes.axvline(1, color="k", lw=1)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    widest = max(max(row.peak_reserved_bytes, row.smallest_budget_bytes or 0) for row in rows)
    axes.set_xlim(0, 1.3 * widest / live)
    axes.set_xlabel(f"in terms of peak live ({format_size(live)})")
    axes.set_title(title, loc="left")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower right", ncols=2, fontsize=8.5)
    return figure


def _first(rows: Sequence[Measures], label: str) -> int:
    if label == "peak reserved":
        return 0
    return next(y for y, row in enumerate(rows) if row.smallest_budget_bytes)
