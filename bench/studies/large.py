"""Inputs larger than the plain job can hold, in a process with a wall, measured on the CPU. The
study is settled; this draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.studies.study import Document, Study, settled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN, BESIDE = "#8c8c8c", "#d4d4d4"
OURS, SAME = "#2c7fb8", "#a6d8f0"
MIB = 2**20


def draw(document: Document) -> Mapping[str, Figure]:
    """A line for each job: how much larger the input may be, what it would need, what it costs."""
    from matplotlib.figure import Figure

    rows = document["rows"][::-1]
    figure = Figure(figsize=(11, 1.6 + 0.75 * len(rows)), layout="constrained")
    larger, needs, times = figure.subplots(1, 3, sharey=True)
    _larger(larger, rows)
    _needs(needs, rows, document["wall_bytes"] / MIB)
    _times(times, rows)
    _legend(figure)
    return {"": figure}


def _beside(panel: Axes, text: str, x: float, y: float) -> None:
    panel.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=8)


def _larger(panel: Axes, rows: list[Document]) -> None:
    places = range(len(rows))
    ratios = [row["items_ratio"] for row in rows]
    panel.barh([place + 0.2 for place in places], [1.0] * len(rows), 0.36, color=PLAIN)
    panel.barh([place - 0.2 for place in places], ratios, 0.36, color=OURS)
    for place, row in enumerate(rows):
        _beside(panel, str(row["plain_size"]), 1, place + 0.2)
        _beside(panel, str(row["size"]), row["items_ratio"], place - 0.2)
    panel.set_yticks(places, [f"{row['job']}\n{row['input']}" for row in rows])
    panel.set_xlim(0, 1.25 * max(ratios))
    panel.set_xlabel("samples, pixels, tokens, ... of the largest input,\nplain job = 1")


def _needs(panel: Axes, rows: list[Document], wall: float) -> None:
    full = [place for place, row in enumerate(rows) if "needed_bytes" in row]
    needed = [rows[place]["needed_bytes"] / MIB for place in full]
    beside = [rows[place]["beside_bytes"] / MIB for place in full]
    panel.barh(full, needed, 0.4, color=PLAIN)
    panel.barh(full, beside, 0.4, color=BESIDE)
    for place, value in zip(full, needed, strict=True):
        _beside(panel, f"{value:.0f}", value, place)
    panel.axvline(wall, color="black", linewidth=1.2)
    panel.set_title(f"wall: {wall:.0f} MiB", fontsize=9)
    panel.set_xlim(0, 1.2 * max([wall, *needed]))
    panel.set_xlabel("plain job on our largest input, no wall:\nMiB that the process holds")


def _times(panel: Axes, rows: list[Document]) -> None:
    full = [(place, row) for place, row in enumerate(rows) if "needed_bytes" in row]
    same = [row["same_size_seconds_per_item"] / row["plain_seconds_per_item"] for _, row in full]
    ours = [row["seconds_per_item"] / row["needed_seconds_per_item"] for _, row in full]
    panel.axvline(1, color=PLAIN, linewidth=1.2)
    above = [place + 0.12 for place, _ in full]
    below = [place - 0.12 for place, _ in full]
    panel.plot(same, above, "o", color=SAME, markeredgecolor=OURS)
    panel.plot(ours, below, "o", color=OURS)
    for place, value in zip(below, ours, strict=True):
        _beside(panel, f"{value:.2f}", value, place)
    panel.set_xlim(0, 1.2 * max([1, *ours]))
    panel.set_xlabel("processor time of a step,\nplain job on the same input, no wall = 1")


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    same = Line2D([], [], marker="o", linestyle="", color=SAME, markeredgecolor=OURS)
    same.set_label("under dtr_alloc, on the plain job's largest input")
    handles = [
        Patch(color=PLAIN, label="plain job"),
        Patch(color=BESIDE, label="of that: interpreter, PyTorch, code"),
        Patch(color=OURS, label="under dtr_alloc, on its largest input"),
        same,
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8)


STUDY = Study(
    title="Inputs larger than the plain job can hold, in a process with a wall",
    source="DTR paper, section 4.2, Table 1",
    compute=settled("601c0cc7"),
    draw=draw,
)
