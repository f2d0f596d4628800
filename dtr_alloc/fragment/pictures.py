"""The pictures of ``dtr-alloc fragment report``. matplotlib is imported when one is drawn.

Titles state findings; axes have units.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtr_alloc.config import format_size
from dtr_alloc.fragment.measures import size_unit
from dtr_alloc.fragment.residency import Residencies
from dtr_alloc.traces.trace import Kind, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAILED = "#d55e00"


def save(figure: Figure, path: Path) -> None:
    """Writes a figure, in the format of the suffix. Raises OSError as the disk does."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=110)


def wrapped(title: str, columns: int) -> str:
    """A title in lines of so many characters at most."""
    return "\n".join(textwrap.wrap(title, columns))


@dataclass(frozen=True)
class Clock:
    """The time axis: of a trace's times, or of its events if no time passes.

    Attributes:
        scale: of the axis' unit, in nanoseconds or events.
        label: of the axis.
        by_event: whether it counts events.
    """

    scale: float
    label: str
    by_event: bool

    @staticmethod
    def of(trace: Trace, by_event: bool = False) -> Clock:
        """by_event: even if the trace has times."""
        longest = trace.time_ns[-1] if len(trace) else 0
        if by_event or not longest:
            return Clock(1.0, "event", True)
        for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
            if longest >= 3 * scale:
                return Clock(scale, f"time, {unit}", False)
        return Clock(1.0, "time, ns", False)

    def at(self, trace: Trace, event: int) -> float:
        """The position of an event on the axis."""
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
    """The map of a heap (dtr_alloc.fragment.heap_map); below it the evictions, recomputations and
    moves, if there are any."""
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
    rows = 2 if drawn.marks else 1
    ratios = (6, 1)[:rows]
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=ratios).flat
    axes = panels[0]
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
    axes.grid(False)
    for offset in drawn.axis.offsets[1:]:
        axes.axhline(offset / unit, color="0.5", lw=0.6)
    cut = " (unused addresses cut out at the lines)" if len(drawn.axis.offsets) > 1 else ""
    axes.set_ylabel(f"address{cut}, {name}")
    axes.set_title(wrapped(title, 104), loc="left")
    _events(axes, trace, clock)
    handles: list[Any] = [Patch(fc=shade, label=label) for label, shade in drawn.classes]
    handles.append(Patch(fc=heap_map.FREE, label="free, reserved"))
    handles += [Line2D([], [], color=mark, lw=3, label=label) for label, mark in drawn.marks]
    about = "size of a block" if color == "size" else "operator"
    figure.legend(handles=handles, loc="outside right upper", title=about, fontsize=8.5)
    if drawn.marks:
        _strip(panels[1], trace, blocks, clock, np.linspace(left, right, 201), drawn.marks)
    panels[rows - 1].set_xlabel(clock.label)
    return figure


def _events(axes: Axes, trace: Trace, clock: Clock) -> None:
    """Out-of-memory errors, and where training steps begin."""
    kinds = trace.kind
    steps = [event for event, kind in enumerate(kinds) if kind == Kind.STEP]
    if len(steps) <= 40:
        for event in steps:
            axes.axvline(clock.at(trace, event), color="0.5", lw=0.7, ls=":")
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
            bbox={"fc": "none", "ec": FAILED, "pad": 2},
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
