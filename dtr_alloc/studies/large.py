"""Inputs larger than the plain job can hold, in a process with a wall, measured on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dtr_alloc.studies import checkout
from dtr_alloc.studies.study import Document, Options, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, OURS, SAME = "#8c8c8c", "#2c7fb8", "#a6d8f0"
MIB = 2**20


def compute(options: Options) -> Document:
    """One row per job: the largest inputs with and without dtr_alloc, memory and times."""
    given = ["--smoke"] if options.smoke else ["--at-once", str(options.jobs)]
    found = checkout.bench("bench.large_inputs", *given)
    kept = ("torch", "processor", "commit", "heuristic", "wall_bytes", "slack", "resolution")
    head = {key: found[key] for key in (*kept, "repeats_per_operator")}
    rows = [{key: _rounded(value) for key, value in row.items()} for row in found["results"]]
    return head | {"rows": rows}


def _rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def draw(document: Document) -> Mapping[str, Figure]:
    """A line for each job: how much larger the input may be, what it would need, what it costs."""
    from matplotlib.figure import Figure

    rows = document["rows"][::-1]
    wall = document["wall_bytes"] / MIB
    figure = Figure(figsize=(11, 1.6 + 0.75 * len(rows)), layout="constrained")
    larger, needs, times = figure.subplots(1, 3, sharey=True)
    places = range(len(rows))

    _pairs(larger, places, [1.0] * len(rows), [row["items_ratio"] for row in rows])
    for place, row in enumerate(rows):
        larger.annotate(str(row["plain_size"]), (1, place + 0.2), **_BESIDE)
        larger.annotate(str(row["size"]), (row["items_ratio"], place - 0.2), **_BESIDE)
    larger.set_yticks(places, [f"{row['job']}\n{row['input']}" for row in rows])
    larger.set_xlabel("largest input, plain job = 1")
    larger.margins(x=0.2)

    full = [place for place in places if "needed_bytes" in rows[place]]
    needed = [rows[place]["needed_bytes"] / MIB for place in full]
    needs.barh(full, needed, 0.4, color=PLAIN)
    for place, value in zip(full, needed, strict=True):
        needs.annotate(f"{value:.0f}", (value, place), **_BESIDE)
    needs.axvline(wall, color="black", linewidth=1.2)
    needs.annotate(
        f"wall\n{wall:.0f}",
        (wall, 1),
        (-4, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
    needs.set_xlim(left=0)
    needs.margins(x=0.15)
    needs.set_xlabel("plain job on our largest input\nwithout a wall: MiB that the process holds")

    plain = [row["plain_seconds_per_item"] for row in rows]
    times.axvline(1, color=PLAIN, linewidth=1.2)
    same = [rows[place]["same_size_seconds_per_item"] / plain[place] for place in full]
    times.plot(same, [place + 0.12 for place in full], "o", color=SAME, markeredgecolor=OURS)
    ours = [row["seconds_per_item"] / plain[place] for place, row in enumerate(rows)]
    times.plot(ours, [place - 0.12 for place in places], "o", color=OURS)
    for place, value in enumerate(ours):
        times.annotate(f"{value:.2f}", (value, place - 0.12), **_BESIDE)
    times.set_xlim(left=0)
    times.margins(x=0.15)
    times.set_xlabel("processor time for one item,\nplain job on its largest input = 1")
    _legend(figure)
    return {"": figure}


_BESIDE: dict[str, Any] = {
    "xytext": (4, 0),
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 8,
}


def _pairs(panel: Any, places: range, plain: list[float], ours: list[float]) -> None:
    panel.barh([place + 0.2 for place in places], plain, 0.36, color=PLAIN)
    panel.barh([place - 0.2 for place in places], ours, 0.36, color=OURS)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    light = {"marker": "o", "linestyle": "", "color": SAME, "markeredgecolor": OURS}
    handles = [
        Patch(color=PLAIN, label="plain job"),
        Patch(color=OURS, label="under dtr_alloc, on its largest input"),
        Line2D([], [], label="under dtr_alloc, on the plain job's largest input", **light),  # type: ignore[arg-type]
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)


STUDY = Study(
    title="Inputs larger than the plain job can hold, in a process with a wall",
    source="DTR paper, section 4.2, Table 1",
    compute=compute,
    draw=draw,
)
