"""Where the time of a training step goes under less and less memory, measured on the CPU. The
study is settled; this draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.studies.study import Document, Study, settled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Warm: the job's own operators; blue and green: what stands around them; the engine is dark.
COLORS = {
    "operators": "#c9c9c9",
    "again": "#e8833a",
    "search": "#000000",
    "engine": "#7b3294",
    "capture": "#2c7fb8",
    "allocator": "#41ab5d",
    "faults": "#addd8e",
    "rest": "#a6d8f0",
}
LABELS = {
    "operators": "operators, first time",
    "again": "operators, run again",
    "search": "search for evictions",
    "engine": "the rest of the engine",
    "capture": "capture, and rebuilding arguments",
    "allocator": "giving memory",
    "faults": "page faults",
    "rest": "rest: the job's Python, autograd,\nPyTorch's way to an operator",
}


def draw(document: Document) -> Mapping[str, Figure]:
    """Stacked bars, a panel for each job: one bar for each budget."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    jobs = list(dict.fromkeys(row["job"] for row in document["rows"]))
    columns = min(4, len(jobs) + 1)
    lines = -(-(len(jobs) + 1) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.3 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel, job in zip(panels, jobs, strict=False):
        rows = [row for row in document["rows"] if row["job"] == job]
        _panel(panel, job, rows)
    for panel in panels[len(jobs) :]:
        panel.axis("off")
    parts = [Patch(color=COLORS[part], label=LABELS[part]) for part in reversed(COLORS)]
    marks = [
        Line2D([], [], color="black", marker="D", markersize=4, linestyle="", label="not watched"),
        Line2D([], [], color="black", linewidth=1.2, label="without dtr_alloc"),
    ]
    panels[len(jobs)].legend(handles=[*parts, *marks], loc="center", frameon=False, fontsize=9)
    return {"": figure}


def _panel(panel: Axes, job: str, rows: list[Document]) -> None:
    names = ["none" if row["fraction"] is None else f"{row['fraction']:g}" for row in rows]
    trained = [place for place, row in enumerate(rows) if row["outcome"] == "trains"]
    bottoms = [0.0] * len(trained)
    for part, color in COLORS.items():
        heights = [rows[place][part] for place in trained]
        panel.bar(trained, heights, bottom=bottoms, color=color, width=0.75)
        bottoms = [low + height for low, height in zip(bottoms, heights, strict=True)]
    bare = [rows[place]["bare_ratio"] for place in trained]
    panel.plot(trained, bare, "D", color="black", markersize=4)
    panel.axhline(1, color="black", linewidth=1.2)
    for place, row in enumerate(rows):
        if row["outcome"] != "trains":
            panel.text(place, 0.05, row["outcome"], ha="center", va="bottom", rotation=90, size=8)
    panel.set_xticks(range(len(rows)), names)
    panel.set_xlim(-0.6, len(rows) - 0.4)
    panel.set_title(job, fontsize=10)
    panel.set_xlabel("part of the activation memory")
    panel.set_ylabel("processor time of a step")


STUDY = Study(
    title="Where the time of a training step goes, by model and budget",
    source="DTR paper, section 4.2 (the prototype's profile)",
    compute=settled("601c0cc7"),
    draw=draw,
)
