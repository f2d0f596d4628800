"""A run on one page: self-contained HTML, which asks no network for anything and runs no script.

The pictures are matplotlib's SVG. What is black in them takes the color of the page's text, so that
they are seen on light and on dark.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.figures import advice, figures
from dtr_alloc.report import counter_rows, kept_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from dtr_alloc.torch.kept import Kept
    from dtr_alloc.torch.timeline import Moment, Span, Timeline

USED, LIMIT, AGAIN, MOVED, KEPT = "#1f8dd6", "#e0483e", "#e08a1e", "#c065b0", "#8a8a8a"
"""Colors that are seen on light and on dark."""
_WIDTH = 6.2
"""Of a picture, in inches: its text can be read on a telephone."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "savefig.transparent": True,
    "legend.frameon": False,
}
_BARS = 12
_SHARES = 100
"""Of the time, for which it is said what was computed again."""
_HEAP_ROWS = 24
_BLACK = re.compile(r"#000000|\bblack\b")

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem;
  color: light-dark(#1a1a1a, #e6e6e6); background: light-dark(#fff, #161616); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem; }
.words { font-size: 1.1rem; max-width: 60rem; }
.pictures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; } figcaption { max-width: 40rem; opacity: .8; font-size: .9rem; }
svg { width: 100%; height: auto; color: inherit; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem .8rem .15rem 0;
  vertical-align: top; } th { font-weight: normal; opacity: .8; min-width: 7.5rem; }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; margin-top: 1rem; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="words">$words</p>
$figures
<div class="pictures">
$pictures
</div>
$details
</body>
</html>
""")


def page(stats: Mapping[str, Any], facts: Mapping[str, Any], timeline: Timeline | None) -> str:
    """The page of a session that has ended.

    Args:
        stats: as at its end, with ``kept`` (dtr_alloc/report.py).
        facts: of the process.
        timeline: of the session; None: there are no pictures.
    """
    pictures = [] if timeline is None else list(_pictures(timeline))
    return _PAGE.substitute(
        title=escape(f"dtr_alloc: {_job(facts)}"),
        words=escape(advice(stats) or str(stats.get("error", ""))),
        figures=_table(figures(stats)),
        pictures="\n".join(pictures),
        details=_details("What is never evicted, when it was most", _kept(stats.get("kept", ())))
        + _details("All counters", _table(counter_rows(stats)))
        + _details(
            "The job",
            _table((name.replace("_", " "), _text(value)) for name, value in facts.items()),
        ),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _job(facts: Mapping[str, Any]) -> str:
    rank = f", rank {facts['rank']}" if facts.get("rank") is not None else ""
    return (Path(sys.argv[0]).name or "a run") + rank


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>\n'
        for name, value in rows
    )
    return f"<table>\n{cells}</table>\n" if cells else ""


def _details(summary: str, content: str) -> str:
    if not content:
        return ""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}</details>\n"


def _kept(entries: Sequence[Mapping[str, Any]]) -> str:
    return _table((format_size(entry["size_bytes"]), kept_text(entry)) for entry in entries)


def _pictures(timeline: Timeline) -> Iterator[str]:
    samples, steps = timeline.samples, timeline.steps
    if len(samples) > 1:
        yield _picture("Memory over time", _memory, samples, steps)
        yield _picture("Evicted, computed again, moved and swapped", _work, samples)
    if len(steps) > 1:
        yield _picture("Steps", _steps, steps)
    if timeline.fullest:
        yield _picture(
            "What fills the memory when it is fullest, by what made it", _fullest, timeline.fullest
        )
    if timeline.worst_heap:
        yield _picture(
            "The heap when most of it was free in pieces",
            _heap,
            timeline.worst_heap,
            caption="Addresses from left to right, row by row. What is in use is colored; what is "
            "not is cut to a row's length at most.",
        )


def _picture(title: str, draw: Callable[..., Figure], *data: Any, caption: str = "") -> str:
    with mpl.rc_context(_STYLE):
        text = io.StringIO()
        draw(*data).savefig(text, format="svg", metadata={"Date": None})
    svg = _BLACK.sub("currentColor", text.getvalue().partition("<svg")[2])
    # Text has no color of its own in this form.
    head = f'<svg role="img" aria-label="{escape(title)}" fill="currentColor"'
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f"<figure>\n<h2>{escape(title)}</h2>\n{head}{svg}\n{below}</figure>"


def _sizes(axis: Axis, most: float) -> None:
    """Ticks at round sizes."""
    tick = 2 ** max(0, math.ceil(math.log2(max(1, most) / 6)))
    axis.set_major_locator(MultipleLocator(tick))
    axis.set_major_formatter(FuncFormatter(lambda size, _: format_size(int(size))))


def _memory(samples: Sequence[Moment], steps: Sequence[Moment]) -> Figure:
    figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    seconds = [moment.seconds for moment in samples]
    axes.fill_between(
        seconds, [moment.allocated_bytes for moment in samples], color=USED, alpha=0.7, lw=0
    )
    axes.plot([], [], color=USED, lw=5, alpha=0.7, label="in use")
    axes.plot(seconds, [moment.reserved_bytes for moment in samples], color="black", lw=0.8,
              label="held of the system")  # fmt: skip
    budgets = [
        float("nan") if moment.budget_bytes >= UNLIMITED_BYTES else moment.budget_bytes
        for moment in samples
    ]
    axes.plot(seconds, budgets, color=LIMIT, lw=1.4, ls="--", label="budget")
    if len(steps) <= 60:
        for step in steps:
            axes.axvline(step.seconds, color="black", lw=0.4, ls=":")
    axes.set_ylim(bottom=0)
    _sizes(axes.yaxis, axes.get_ylim()[1])
    axes.set_xlabel("seconds")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def _work(samples: Sequence[Moment]) -> Figure:
    figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
    bytes_axes, share_axes = figure.subplots(2, 1, sharex=True)
    seconds = [moment.seconds for moment in samples]
    for name, color, label in (
        ("evicted_bytes", USED, "evicted"),
        ("moved_bytes", MOVED, "moved"),
        ("swapped_out_bytes", KEPT, "swapped out"),
    ):
        values = [getattr(moment, name) for moment in samples]
        if values[-1] > values[0]:
            bytes_axes.plot(
                seconds, [value - values[0] for value in values], color=color, label=label
            )
    bytes_axes.set_ylim(bottom=0)
    _sizes(bytes_axes.yaxis, bytes_axes.get_ylim()[1])
    bytes_axes.set_title("bytes, so far", loc="left", fontsize=9)
    if bytes_axes.get_lines():
        bytes_axes.legend()
    few = samples[:: -(-len(samples) // _SHARES)]
    _share(share_axes, few, [moment.seconds for moment in few[1:]])
    share_axes.set_xlabel("seconds")
    return figure


def _share(axes: Axes, moments: Sequence[Moment], x: Sequence[float]) -> None:
    """What was computed again between two moments, of all that was computed."""
    shares = []
    for before, after in pairwise(moments):
        again = after.recompute_cost_ns - before.recompute_cost_ns
        whole = again + after.total_cost_ns - before.total_cost_ns
        shares.append(100 * again / whole if whole else 0.0)
    axes.fill_between(x, shares, color=AGAIN, alpha=0.8, lw=0, step="mid")
    axes.set_ylim(0, 100)
    axes.set_title("computed again, % of all compute", loc="left", fontsize=9)


def _steps(steps: Sequence[Moment]) -> Figure:
    figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
    time_axes, share_axes = figure.subplots(2, 1, sharex=True)
    numbers = [step.steps for step in steps[1:]]
    times = [
        (after.seconds - before.seconds) / (after.steps - before.steps)
        for before, after in pairwise(steps)
    ]
    time_axes.plot(numbers, times, color="black", lw=1)
    planned = [
        (number, time)
        for number, time, (before, after) in zip(numbers, times, pairwise(steps), strict=True)
        if after.planned > before.planned
    ]
    if planned:
        label = "a plan is followed"
        time_axes.plot(*zip(*planned, strict=True), ".", color=USED, ms=4, label=label)
        time_axes.legend()
    time_axes.set_ylim(bottom=0)
    time_axes.set_title("seconds a step", loc="left", fontsize=9)
    _share(share_axes, steps, numbers)
    share_axes.set_xlabel("step of the optimizer")
    return figure


def _fullest(entries: Sequence[Kept]) -> Figure:
    whole: dict[tuple[str, bool], int] = {}
    for entry in entries:
        key = (entry.operator or entry.why, bool(entry.why))
        whole[key] = whole.get(key, 0) + entry.size_bytes
    largest = sorted(whole.items(), key=lambda item: -item[1])
    others = sum(size for _key, size in largest[_BARS:])
    rows = [*largest[:_BARS], *([(("others", True), others)] if others else [])]
    figure = Figure(figsize=(_WIDTH, 0.8 + 0.22 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, ((_name, is_kept), size) in enumerate(rows):
        color = KEPT if is_kept else USED
        axes.barh(place, size, color=color, alpha=0.8)
        axes.text(size, place, f" {format_size(size)}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [name[:44] for (name, _), _ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.grid(False)
    axes.xaxis.set_visible(False)
    axes.barh([0], [0], color=USED, alpha=0.8, label="can be evicted")
    axes.barh([0], [0], color=KEPT, alpha=0.8, label="cannot, or others")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _heap(spans: Sequence[Span]) -> Figure:
    """Rows of one length; what begins in a row and ends in a later one is in several."""
    widest = sum(span.size_bytes for span in spans) // _HEAP_ROWS
    places, last = [0], sum(spans[0])
    for span in spans[1:]:
        before = spans[len(places) - 1].size_bytes
        places.append(places[-1] + before + min(span.address - last, widest))
        last = sum(span)
    length = max(1, -(-(places[-1] + spans[-1].size_bytes) // _HEAP_ROWS))
    rows: list[list[tuple[int, int]]] = [[] for _ in range(_HEAP_ROWS)]
    for span, begin in zip(spans, places, strict=True):
        end = begin + span.size_bytes
        while begin < end:
            row = begin // length
            part = min(end, (row + 1) * length)
            rows[row].append((begin - row * length, part - begin))
            begin = part
    figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for row, parts in enumerate(rows):
        axes.broken_barh(parts, (row - 0.4, 0.8), color=USED, lw=0)
    axes.set_xlim(0, length)
    axes.invert_yaxis()
    axes.yaxis.set_visible(False)
    axes.grid(False)
    axes.set_xlabel("within a row")
    _sizes(axes.xaxis, length)
    return figure
