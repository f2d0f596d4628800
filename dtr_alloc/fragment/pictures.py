"""The pictures of ``dtr-alloc fragment report``. matplotlib is imported when one is drawn.

Titles state findings; axes have units.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtr_alloc.config import format_size
from dtr_alloc.fragment.measures import size_unit
from dtr_alloc.fragment.residency import Residencies
from dtr_alloc.traces.trace import Kind, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAILED = "#d55e00"


def map_picture(
    trace: Trace,
    blocks: Residencies,
    title: str,
    *,
    segments: Any = None,
    color: str = "size",
) -> Figure:
    """The map of a heap (dtr_alloc.fragment.heap_map); below it the evictions, recomputations and
    moves, if there are any."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from dtr_alloc.fragment import heap_map

    drawn = heap_map.heap_map(trace, blocks, segments=segments, color=color)
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    rows = 2 if drawn.marks else 1
    ratios = (6, 1)[:rows]
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=ratios).flat
    axes = panels[0]
    unit, name = size_unit(drawn.axis.length_bytes)
    right = max(1, len(trace))
    top = drawn.axis.length_bytes / unit
    axes.imshow(
        drawn.image,
        extent=(0, right, 0, top),
        origin="lower",
        aspect="auto",
        interpolation="antialiased",
    )
    axes.grid(False)
    for offset in drawn.axis.offsets[1:]:
        axes.axhline(offset / unit, color="0.5", lw=0.6)
    cut = " (unused addresses cut out at the lines)" if len(drawn.axis.offsets) > 1 else ""
    axes.set_ylabel(f"address{cut}, {name}")
    axes.set_title(textwrap.fill(title, 104), loc="left")
    _events(axes, trace)
    handles: list[Any] = [Patch(fc=shade, label=label) for label, shade in drawn.classes]
    handles.append(Patch(fc=heap_map.FREE, label="free, reserved"))
    handles += [Line2D([], [], color=mark, lw=3, label=label) for label, mark in drawn.marks]
    about = "size of a block" if color == "size" else "operator"
    figure.legend(handles=handles, loc="outside right upper", title=about, fontsize=8.5)
    if drawn.marks:
        _strip(panels[1], blocks, np.linspace(0, right, 201), drawn.marks)
    panels[rows - 1].set_xlabel("event")
    return figure


def _events(axes: Axes, trace: Trace) -> None:
    """Out-of-memory errors, and where training steps begin."""
    kinds = trace.kind
    steps = [event for event, kind in enumerate(kinds) if kind == Kind.STEP]
    if len(steps) <= 40:
        for event in steps:
            axes.axvline(event, color="0.5", lw=0.7, ls=":")
    failed = [event for event, kind in enumerate(kinds) if kind == Kind.OUT_OF_MEMORY]
    for event in failed[:200]:
        axes.axvline(event, color=FAILED, lw=1.6)
    if failed:
        on_left = failed[0] > len(trace) / 2
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        axes.annotate(
            f"out of memory: {format_size(trace.size_bytes[failed[0]])} asked for{more}",
            (failed[0], 0.97),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6 if on_left else 6, 0),
            textcoords="offset points",
            ha="right" if on_left else "left",
            va="top",
            fontsize=9,
            bbox={"fc": "none", "ec": FAILED, "pad": 2},
        )


def _strip(axes: Axes, blocks: Residencies, edges: Any, marks: Sequence[tuple[str, str]]) -> None:
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
    drawn = []
    for label, color in reversed(marks):
        (events, how), wanted = of[label]
        chosen = how == wanted
        drawn.append((np.histogram(events[chosen], edges, weights=sizes[chosen])[0], color))
    unit, name = size_unit(max(height.max() for height, _ in drawn))
    bottom = np.zeros(len(edges) - 1)
    for height, color in drawn:
        axes.bar(edges[:-1], height / unit, np.diff(edges), bottom, color=color, align="edge")
        bottom += height / unit
    axes.set_ylabel(f"per bar, {name}", fontsize=8)
    axes.margins(x=0)
