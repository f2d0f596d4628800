"""A run on one page."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import compress, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from dtr_alloc import html
from dtr_alloc.advise.where import bytes_by_place, repeats_by_place
from dtr_alloc.config import UNLIMITED_BYTES, format_size
from dtr_alloc.figures import advice, figures, kept_text
from dtr_alloc.records import Kept, Moment, Repeats, Rows, Span
from dtr_alloc.report import counter_rows, html_table, printed_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


USED, LIMIT, AGAIN, MOVED, KEPT = "#1f8dd6", "#e0483e", "#e08a1e", "#c065b0", "#8a8a8a"
FREE = "#8fb339"
"""The colors can be seen on light and on dark, and told apart."""
_BARS = 12
_NAMES = 40
"""Blocks smaller than this share of memory are not labelled."""
_LETTERS = 60
"""The longest label of a block, in characters."""
_LABEL = 48
"""The longest label above a bar, in characters; a longer name keeps its end, which tells it from
others."""
_ROWS = 100
"""The most rows of a table that is hidden at first."""
_SEEN = 200
"""A thinner layer of the memory's chart would be a name without an area."""
_SHARES = 100
"""The number of parts of the time with a share of recomputation."""
_HEAP_ROWS = 24


def page(stats: Mapping[str, Any], facts: Mapping[str, Any], rows: Rows | None) -> str:
    """The page of a session that has ended.

    Args:
        stats: at its end, with ``kept`` (dtr_alloc/report.py).
        facts: of the process.
        rows: of the session; None: there are no pictures.
    """
    named = (
        (name.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
        for name, value in facts.items()
    )
    body = html_table(figures(stats))
    error = printed_error()
    if error is not None:
        text = escape(f"The last error was {type(error).__name__}: {error}")
        body = f"<p>{text}</p>\n{body}"
    if rows is not None:
        body += html.pictures(_pictures(rows))
    kept = ((format_size(of["size_bytes"]), kept_text(of)) for of in stats.get("kept", ()))
    tables: dict[str, Iterable[tuple[str, str]]] = {
        **({} if rows is None else _places(rows)),
        "Unevictable contents at their peak, with the reasons": kept,
        "All counters": counter_rows(stats),
        "The job": named,
    }
    body += "".join(html.details(title, html_table(table)) for title, table in tables.items())
    words = advice(stats, error) or str(stats.get("error", ""))
    job = Path(*map(str, sys.argv[:1])).name or "a run"
    rank = f", rank {facts['rank']}" if facts.get("rank") is not None else ""
    return html.document(f"dtr_alloc: {job}{rank}", words, body)


def _places(rows: Rows) -> dict[str, Iterable[tuple[str, str]]]:
    """Tables by module and line."""
    filled = [each for each in rows.fullest if each.operator][:_ROWS]
    return {
        "Memory at its peak, by module": (
            (_place_text(each), format_size(each.size_bytes)) for each in filled
        ),
        "Recomputations, by module": (
            (_place_text(each), f"{each.seconds:.3g} s, {each.times:,} times")
            for each in rows.repeats[:_ROWS]
        ),
    }


def _place_text(entry: Kept | Repeats) -> str:
    module = f"{entry.module} ({entry.line})" if entry.line else entry.module
    return ": ".join(filter(None, (module, entry.operator)))


def _pictures(rows: Rows) -> Iterator[str]:
    samples, steps = rows.samples, rows.steps
    if len(samples) > 1:
        yield _picture("Memory over time", _memory, samples, steps)
        yield _picture("Evictions, recomputations, moves and swaps", _work, samples)
    if len(steps) > 1:
        yield _picture("Steps", _steps, steps)
    if rows.fullest:
        yield _picture("Memory at its peak, by module and operator", _fullest, rows.fullest)
    if rows.repeats:
        yield _picture("Recomputations", _repeats, rows.repeats)
    if rows.worst_heap:
        yield _picture(
            "The heap at its worst fragmentation",
            _heap,
            rows.worst_heap,
            caption=_heap_caption(samples),
        )


def _picture(title: str, draw: Callable[..., Figure], *data: Any, caption: str = "") -> str:
    """A picture of the data, or the reason why it could not be drawn."""
    try:
        return html.svg(title, draw, *data, caption=caption)
    except Exception as error:
        return html.framed(title, f"<p>It could not be drawn: {escape(repr(error))}</p>", "")


def _figure(height: float, rows: int = 1) -> tuple[Figure, Any]:
    """A figure, and its axes. In inches."""
    figure = Figure(figsize=(html.WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, sharex=True)


def _sizes(axis: Axis, most: float) -> None:
    """Ticks at round sizes."""
    tick = 2 ** max(0, math.ceil(math.log2(max(1, most) / 6)))
    axis.set_major_locator(MultipleLocator(tick))
    axis.set_major_formatter(FuncFormatter(lambda size, _: format_size(int(size))))


def _memory(samples: Sequence[Moment], steps: Sequence[Moment]) -> Figure:
    figure, axes = _figure(3.2)
    seconds = [moment.seconds for moment in samples]
    bottom = [0] * len(samples)
    seen = max(moment.reserved_bytes for moment in samples) / _SEEN
    for label, color, sizes in (
        ("in use, cannot be evicted", KEPT, [each.unevictable_bytes for each in samples]),
        ("can be evicted", USED, [each.evictable_bytes for each in samples]),
        ("free, in one piece", FREE, [each.whole_bytes for each in samples]),
        ("free, in pieces", AGAIN, [each.scattered_bytes for each in samples]),
    ):
        if max(sizes) > seen:
            top = [below + size for below, size in zip(bottom, sizes, strict=True)]
            axes.fill_between(seconds, bottom, top, color=color, alpha=0.7, lw=0, label=label)
            bottom = top
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
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _work(samples: Sequence[Moment]) -> Figure:
    figure, (bytes_axes, share_axes) = _figure(3.2, rows=2)
    seconds = [moment.seconds for moment in samples]
    for name, color, label in (
        ("evicted_bytes", USED, "evicted"),
        ("moved_bytes", MOVED, "moved"),
        ("swapped_out_bytes", KEPT, "swapped out"),
        ("swapped_in_bytes", AGAIN, "swapped in"),
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
    """The recomputed share of all computation between two moments."""
    shares = [100 * after.recompute_share(before) for before, after in pairwise(moments)]
    axes.fill_between(x, shares, color=AGAIN, alpha=0.8, lw=0, step="mid")
    axes.set_ylim(0, 100)
    axes.set_title("computed again, % of all compute", loc="left", fontsize=9)


def _steps(steps: Sequence[Moment]) -> Figure:
    figure, (time_axes, share_axes) = _figure(3.2, rows=2)
    numbers = [step.steps for step in steps[1:]]
    times = [after.seconds_a_step(before) for before, after in pairwise(steps)]
    time_axes.plot(numbers, times, color="black", lw=1)
    is_planned = (after.is_planned(before) for before, after in pairwise(steps))
    if planned := list(compress(zip(numbers, times, strict=True), is_planned)):
        label = "a plan is followed"
        time_axes.plot(*zip(*planned, strict=True), ".", color=USED, ms=4, label=label)
        time_axes.legend()
    time_axes.set_ylim(bottom=0)
    time_axes.set_title("seconds a step", loc="left", fontsize=9)
    _share(share_axes, steps, numbers)
    share_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    share_axes.set_xlabel("step of the optimizer")
    return figure


def _fullest(entries: Sequence[Kept]) -> Figure:
    """Modules with their contents from left to right, and their operators at the end."""
    made = bytes_by_place(entries)
    modules: Counter[tuple[str, ...]] = Counter()
    for (place, _), size in made:
        for depth in range(len(place.modules)):
            modules[place.modules[: depth + 1]] += size
    blocks = [(path[:-1], path[-1], size, FREE) for path, size in modules.items()]
    for (place, is_kept), size in made:
        blocks.append((place.modules, place.short_operator, size, KEPT if is_kept else USED))
    least = sum(size for _, size in made) / _NAMES
    columns = 1 + max(len(inside) for inside, _, _, _ in blocks)
    figure, axes = _figure(5)
    free: dict[tuple[str, ...], float] = defaultdict(float)  # where the next one in it begins
    for inside, name, size, color in sorted(blocks, key=lambda block: (len(block[0]), -block[2])):
        column, begin, width = len(inside), free[inside], 1
        free[inside] += size
        if color == FREE:
            free[*inside, name] = begin
        else:
            width = columns - column
        axes.barh(begin, width, size, left=column, align="edge", color=color, alpha=0.7, ec="white")
        if size >= least:
            text = f"{name} {format_size(size)}"[: _LETTERS * width // columns]
            axes.text(column + 0.03, begin + size / 2, text, va="center", fontsize=8)
    for color, label in ((USED, "can be evicted"), (KEPT, "cannot")):
        axes.barh([0], [0], color=color, alpha=0.7, label=label)
    figure.legend(loc="outside upper center", ncols=2)
    axes.margins(0)
    axes.invert_yaxis()
    axes.set_axis_off()
    return figure


def _repeats(entries: Sequence[Repeats]) -> Figure:
    rows = repeats_by_place(entries)[:_BARS]
    figure, axes = _figure(0.2 + 0.36 * len(rows))
    axes.barh(range(len(rows)), [seconds for _, seconds, _ in rows], 0.4, color=AGAIN, alpha=0.8)
    for row, (place, seconds, times) in enumerate(rows):
        name = place.label
        shown = name if len(name) <= _LABEL else f"…{name[-_LABEL:]}"
        axes.text(0, row - 0.25, shown, va="bottom", fontsize=8)
        axes.text(seconds, row, f" {seconds:.3g} s, {times:,} times", va="center", fontsize=8)
    axes.set_ylim(-0.9, len(rows) - 0.6)
    axes.invert_yaxis()
    axes.margins(x=0.45)
    axes.grid(False)
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    axes.spines.bottom.set_visible(False)
    return figure


def _heap_caption(samples: Sequence[Moment]) -> str:
    words = (
        "Addresses from left to right, row by row. Blocks in use are colored; free ranges are cut "
        "to a row's length. "
    )
    if samples:
        worst = max(samples, key=lambda moment: moment.scattered_bytes)
        words += (
            f"{format_size(worst.scattered_bytes)} of {format_size(worst.reserved_bytes)} were "
            "free outside of the largest piece, where a large request finds no place. "
        )
    return words + (
        "If the figures say that fragmentation limits the job, a larger budget helps, which "
        "`dtr-alloc suggest` finds. Otherwise there is nothing to do."
    )


def _heap(spans: Sequence[Span]) -> Figure:
    """Rows of one length; a block that crosses a row's end continues in the next row."""
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
    figure, axes = _figure(3.2)
    for row, parts in enumerate(rows):
        axes.broken_barh(parts, (row - 0.4, 0.8), color=USED, lw=0)
    axes.set_xlim(0, length)
    axes.invert_yaxis()
    axes.yaxis.set_visible(False)
    axes.grid(False)
    axes.set_xlabel("within a row")
    _sizes(axes.xaxis, length)
    return figure
