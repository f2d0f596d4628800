"""What each part of a score is worth; what becomes of the dead; what the search visits.

Three questions of the DTR paper's appendix D on the published logs, each run in simrd's semantics:
the score's parts (c, m, s and its exponent), the deallocation policies, and the storages that are
visited to choose and to keep scores up to date, which is the paper's measure of overhead at run
time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.studies.panels import COLORS, name_axes, panel_grid
from bench.studies.published import THRASHING, published_logs
from bench.studies.study import Document, Options, Study
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate
from dtr_alloc.simulation.executors import Workers
from dtr_alloc.simulation.presets import PRESETS, parse
from dtr_alloc.simulation.simulate import Limit, Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSTS = ("none", "local", "component", "ancestors", "neighborhood", "marginal")
SIZES = ("none", "size")
EXPONENTS = ("0", "0.25", "0.5", "1")
RATIOS = (0.3, 0.5, 0.7)
"""Of the peak: where the parts are compared."""
DEALLOCS = ("eager", "banish", "ignore")


def compute(options: Options) -> Document:
    logs = list(published_logs(options).values())
    return {
        "part_columns": ["log", "c", "m", "s", "ratio", "status", "slowdown"],
        "parts": list(_parts(logs, options.workers)),
        "dealloc_columns": ["log", "dealloc", "heuristic", "ratio", "status", "slowdown"],
        "deallocs": list(_deallocs(logs, options)),
        "access_columns": ["log", "heuristic", "ratio", "status", "model_ops", "accesses"],
        "accesses": list(_accesses(logs, options.workers)),
    }


def _outcome(row: Mapping[str, Any]) -> list[Any]:
    return [row["status"], round(row["total_compute"] / row["base_compute"], 5)]


def _parts(logs: Sequence[Program], workers: Workers) -> Iterator[list[Any]]:
    of = {f"c={c},m={m},s={s}": (c, m, s) for c, m, s in itertools.product(COSTS, SIZES, EXPONENTS)}
    rules = list(map(parse, of))
    plan = Plan([Limit(ratio=ratio) for ratio in RATIOS], rules, thrash=THRASHING)
    for row in simulate.Study(plan, logs, workers):
        yield [row["log"], *of[row["heuristic"]], row["ratio"], *_outcome(row)]


def _deallocs(logs: Sequence[Program], options: Options) -> Iterator[list[Any]]:
    rules = [PRESETS["dtr-full"], PRESETS["marginal"]]
    ratios = [percent / 100 for percent in range(20, 101, 20 if options.smoke else 5)]
    limits = [Limit(ratio=ratio) for ratio in ratios]
    plan = Plan(limits, rules, deallocs=DEALLOCS, thrash=THRASHING)
    for row in simulate.Study(plan, logs, options.workers):
        yield [row["log"], row["dealloc"], row["heuristic"], row["ratio"], *_outcome(row)]


def _accesses(logs: Sequence[Program], workers: Workers) -> Iterator[list[Any]]:
    plan = Plan([Limit(ratio=0.5)], list(PRESETS.values()), thrash=THRASHING)
    for row in simulate.Study(plan, logs, workers):
        counts = [row["status"], row["model_ops"], row["accesses"]]
        yield [row["log"], row["heuristic"], row["ratio"], *counts]


def draw(document: Document) -> Mapping[str, Figure]:
    return {
        "": _draw_parts(document["parts"]),
        "deallocs": _draw_deallocs(document["deallocs"]),
        "accesses": _draw_accesses(document["accesses"]),
    }


def _draw_parts(rows: Sequence[Sequence[Any]]) -> Figure:
    """One table of colors a budget: a line a score, a column a log."""
    from matplotlib.figure import Figure

    logs = list(dict.fromkeys(row[0] for row in rows))
    scores = list(dict.fromkeys(tuple(row[1:4]) for row in rows))
    figure = Figure(figsize=(15, 11), layout="constrained")
    panels = figure.subplots(1, len(RATIOS), sharey=True)
    image = None
    for panel, ratio in zip(panels, RATIOS, strict=True):
        cells = [[float("nan")] * len(logs) for _ in scores]
        for row in rows:
            if row[4] == ratio and row[5] == "ok":
                cells[scores.index(tuple(row[1:4]))][logs.index(row[0])] = row[6]
        image = panel.imshow(cells, aspect="auto", cmap="viridis_r", vmin=1, vmax=1.6)
        for y, line in enumerate(cells):
            for x, value in enumerate(line):
                known = value == value
                text = f"{value:.2f}" if known else "-"
                color = "white" if known and value > 1.3 else "black"
                panel.text(x, y, text, ha="center", va="center", fontsize=7.5, color=color)
        panel.set_title(f"budget: {ratio:.0%} of the peak")
        panel.set_xticks(range(len(logs)), logs, rotation=60, ha="right")
        for y in range(0, len(scores), len(SIZES) * len(EXPONENTS)):
            panel.axhline(y - 0.5, color="black", lw=1)
    labels = [f"{c}   m={m:<5}  s^{s}" for c, m, s in scores]
    panels[0].set_yticks(range(len(scores)), labels, fontsize=8)
    panels[0].set_ylabel("score: c / (m · s^a)")
    assert image is not None
    bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.4, aspect=50)
    bar.set_label("compute / compute without a budget (-: more than twice, or out of memory)")
    return figure


def _draw_deallocs(rows: Sequence[Sequence[Any]]) -> Figure:
    logs = list(dict.fromkeys(row[0] for row in rows))
    figure, panels = panel_grid(len(logs), panel=(3.4, 2.9), margin=(0.8, 1))
    styles = {"eager": "-", "banish": "--", "ignore": ":"}
    for panel, log in zip(panels.flat, logs, strict=False):
        for heuristic, dealloc in itertools.product(("dtr-full", "marginal"), DEALLOCS):
            line = [row for row in rows if row[:3] == [log, dealloc, heuristic] and row[4] == "ok"]
            panel.plot(
                [row[3] for row in line],
                [row[5] for row in line],
                ls=styles[dealloc],
                color=COLORS[heuristic],
                label=f"{heuristic}, {dealloc}",
            )
        panel.set_title(log)
        panel.grid(alpha=0.25)
    panels[0, 0].set_ylim(0.98, THRASHING)
    name_axes(figure, panels, "budget / peak", "compute / compute without a budget", ncols=6)
    return figure


def _draw_accesses(rows: Sequence[Sequence[Any]]) -> Figure:
    from matplotlib.figure import Figure

    logs = list(dict.fromkeys(row[0] for row in rows))
    presets = list(dict.fromkeys(row[1] for row in rows))
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots()
    width = 0.85 / len(presets)
    for number, preset in enumerate(presets):
        of = [row for row in rows if row[1] == preset]
        at = [logs.index(row[0]) + (number - len(presets) / 2) * width for row in of]
        done = [row[3] == "ok" for row in of]
        bars = axes.bar(
            at, [row[5] / row[4] for row in of], width, color=COLORS[preset], label=preset
        )
        for bar, finished in zip(bars, done, strict=True):
            if not finished:
                bar.set_alpha(0.35)
    axes.set_yscale("log")
    axes.set_xticks(range(len(logs)), logs)
    axes.set_ylabel("storages visited for each operator of the model")
    axes.set_title("budget: 50% of the peak (pale: the run failed, counted until then)")
    axes.grid(axis="y", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    return figure


STUDY = Study(
    title="the parts of the score, deallocation policies, storages visited",
    source="DTR paper, appendix D.1 to D.3, figures 5 to 12",
    compute=compute,
    draw=draw,
)
