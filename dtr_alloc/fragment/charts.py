"""Pictures that compare heaps: live and reserved bytes over events, and holes by size. matplotlib
is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtr_alloc.config import format_size
from dtr_alloc.fragment.measures import Measures, size_unit
from dtr_alloc.fragment.pictures import FAILED
from dtr_alloc.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIVE, LOST, RESERVED = "#0072b2", "#e69f00", "#000000"
MOST_POINTS = 2000
"""The most points of all lines of a kind in a picture. Longer lines show the largest and the
smallest value of each part."""
CUT_OFF = 2.5
"""Bars beyond this multiple of the peak of live bytes are cut off, and labelled with their
numbers."""


def live_picture(trace: Trace, rows: Sequence[tuple[Any, Measures]]) -> Figure:
    """Live and reserved bytes over events, and the lost bytes between them: a panel for each series
    (with the columns of walk.Series) and its measures."""
    unit, name = size_unit(max(measures.peak_reserved_bytes for _, measures in rows))
    figure, panels = _panels(len(rows), (10, 4.2), (6.2, 2.6))
    for panel, (series, measures) in zip(panels, rows, strict=True):
        points = thinned(series, max(2, MOST_POINTS // len(rows)))
        _live(panel, points, measures, min(measures.worst_event, len(trace) - 1), unit)
        panel.set_title(live_title(measures), loc="left", fontsize=12 if len(rows) == 1 else 8.5)
        panel.set_ylabel(name)
        panel.set_xlabel("event")
    for panel in panels:
        panel.label_outer()
    most = max(measures.peak_reserved_bytes for _, measures in rows)
    live = max(measures.peak_live_bytes for _, measures in rows)
    panels[0].set_ylim(0, 1.06 * (min(most, CUT_OFF * live or most) or 1) / unit)
    handles = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, fontsize=8.5)
    return figure


def _panels(
    count: int, alone: tuple[float, float], each: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """Panels with common axes, in two columns if there are several. Sizes in inches."""
    from matplotlib.figure import Figure

    columns = min(2, count)
    high = -(-count // columns)
    size = alone if count == 1 else (columns * each[0], 0.6 + high * each[1])
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(high, columns, squeeze=False, sharex=True, sharey=True)
    for empty in panels.flat[count:]:
        empty.remove()
    return figure, list(panels.flat[:count])


def _live(axes: Axes, points: Any, measures: Measures, worst: int, unit: float) -> None:
    at, live, reserved = points
    live, reserved = live / unit, reserved / unit
    axes.fill_between(at, 0, live, step="post", color=LIVE, alpha=0.35, lw=0, label="live")
    axes.fill_between(
        at, live, reserved, step="post", color=LOST, alpha=0.6, lw=0, label="lost (not live)"
    )
    axes.step(at, reserved, where="post", color=RESERVED, lw=1, label="reserved")
    axes.step(at, live, where="post", color=LIVE, lw=0.8)
    if measures.budget_bytes:
        axes.axhline(measures.budget_bytes / unit, color="0.5", ls="--", lw=1, label="budget")
    axes.axvline(worst, color=FAILED, ls=":", lw=1.3, label="worst moment")
    if not measures.completed:
        axes.plot(worst, measures.peak_reserved_bytes / unit, "x", color=FAILED, ms=9, mew=2.5,
                  label="out of memory", clip_on=False)  # fmt: skip
    axes.margins(x=0)
    axes.grid(alpha=0.3)


def live_title(measures: Measures) -> str:
    """The finding of live_picture."""
    part = 100 * (1 - (measures.utilization or 0))
    return (
        f"{measures.name}: {format_size(measures.peak_reserved_bytes)} reserved for "
        f"{format_size(measures.peak_live_bytes)} live at the peaks: {part:.1f} % lost"
    )


def thinned(series: Any, most: int) -> tuple[Any, Any, Any]:
    """Events, live and reserved bytes; of more rows than twice the most, both ends of each part's
    range."""
    import numpy as np

    at = np.asarray(series.event, dtype=np.float64)
    live = np.asarray(series.live_bytes, dtype=np.float64)
    reserved = np.asarray(series.reserved_bytes, dtype=np.float64)
    if len(at) <= 2 * most:
        return at, live, reserved
    starts = np.unique(np.linspace(0, len(at) - 1, most).astype(int))
    low = [np.minimum.reduceat(column, starts) for column in (live, reserved)]
    high = [np.maximum.reduceat(column, starts) for column in (live, reserved)]
    both = [np.column_stack(pair).ravel() for pair in zip(high, low, strict=True)]
    ends = np.append(starts[1:], len(at) - 1)
    return np.column_stack((at[starts], (at[starts] + at[ends]) / 2)).ravel(), both[0], both[1]


def holes_picture(
    rows: Sequence[tuple[str, Sequence[int], int | None]],
) -> Figure:
    """Histograms of holes at the worst moments, a panel each: the free bytes by size of hole.

    Args:
        rows: names with the sizes of their holes in bytes, and the request that failed, if any.
    """
    import numpy as np
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, panels = _panels(len(rows), (9, 3.2), (6.2, 2.2))
    sizes = [size for _, holes, request in rows for size in (*holes, request or 1 << 20)]
    low, high = min(sizes).bit_length() - 1, max(sizes).bit_length()
    edges = [1 << bit for bit in range(low, high + 1)]
    unit, unit_name = size_unit(max(sum(holes) for _, holes, _ in rows) / 4)
    highest = 0.0
    for axes, (name, holes, request_bytes) in zip(panels, rows, strict=True):
        found = np.asarray(holes, dtype=np.float64)
        held, _ = np.histogram(found, edges, weights=found)
        number, _ = np.histogram(found, edges)
        bars = axes.bar(edges[:-1], held / unit, np.diff(edges), align="edge", color=LOST, ec="w")
        axes.bar_label(bars, [f"{n:,}" if n else "" for n in number], fontsize=8)
        axes.set_xscale("log", base=2)
        highest = max(highest, held.max() / unit)
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
        axes.set_xlabel("size of a hole (over each bar: how many holes)")
        axes.grid(axis="y", alpha=0.3)
        axes.set_title(holes_title(name, holes), loc="left", fontsize=9)
        axes.xaxis.set_major_locator(LogLocator(2, numticks=6))
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda size, _: format_size(int(size)).replace(".00", ""))
        )
    panels[0].set_ylim(0, 1.3 * highest or 1)
    for panel in panels:
        panel.label_outer()
    return figure


def holes_title(name: str, holes: Sequence[int]) -> str:
    """The finding of a panel of holes_picture."""
    if not holes:
        return f"{name}: nothing is free at the worst moment"
    return (
        f"{name}: {format_size(sum(holes))} free in {len(holes):,} "
        f"{'hole' if len(holes) == 1 else 'holes'}, the largest has {format_size(max(holes))}"
    )
