"""The distance to the optimum: how much more than the best schedule a policy computes.

The study is settled. Its pictures: one for each graph, and the distances of all in one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.studies.study import Document, Study, settled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
COLORS = (
    "#0072b2",
    "#56b4e9",
    "#009e73",
    "#e69f00",
    "#d55e00",
    "#cc79a7",
    "#7f7f7f",
    "#8c564b",
    "#9467bd",
    "#17becf",
    "#bcbd22",
    "#000000",
)
MARKERS = "osD^vP*Xhd<>"
HIGHEST = 1.6
"""The overhead at which the curves are cut off."""
FARTHEST = 0.2
"""The distance that has the darkest color."""


def draw(document: Document) -> Mapping[str, Figure]:
    """By part of the file's name."""
    found = {"": _overview(document)}
    for graph in document["graphs"]:
        name = graph["graph"]
        found[re.sub("[^a-z0-9]+", "-", name.lower())] = _graph(document, graph)
    return found


def _of(rows: list[Row], graph: str) -> list[Row]:
    return [row for row in rows if row["graph"] == graph]


def _graph(document: Document, graph: Row) -> Figure:
    from matplotlib.figure import Figure

    name = graph["graph"]
    figure = Figure(figsize=(13, 7), layout="constrained")
    curves, table = figure.subplots(2, 1, height_ratios=(1.9, 1))
    optimum = sorted(_of(document["optimum"], name), key=lambda row: row["fraction"])
    ran = _of(document["heuristics"], name)
    names = list(dict.fromkeys(row["heuristic"] for row in ran))
    _curves(curves, optimum, _of(document["schemes"], name), ran, names)
    least = graph["least_bytes"] / graph["peak_bytes"]
    curves.axvspan(0, least, color="0.85", lw=0)
    curves.set_xlim(min(least - 0.02, min(row["fraction"] for row in optimum)), 1.005)
    curves.text(
        least,
        0.5,
        "no schedule fits ",
        transform=curves.get_xaxis_transform(),
        rotation=90,
        ha="right",
        va="center",
        fontsize=8,
        color="0.35",
    )
    figure.legend(*curves.get_legend_handles_labels(), loc="outside right center", fontsize=8.5)
    size = f"{graph['nodes']} operators"
    size += ", coarse" if graph["is_coarse"] else f" ({graph['forward']} forward)"
    figure.suptitle(f"{name}: a training step of {size}")
    _distance_table(table, optimum, ran, names)
    return figure


def _curves(
    axes: Axes, optimum: list[Row], schemes: list[Row], ran: list[Row], names: list[str]
) -> None:
    top = max(
        [row["overhead"] for row in ran if row["overhead"]]
        + [row["best"] for row in optimum if row.get("best")]
    )
    top = min(HIGHEST, top + 0.02)
    for at, heuristic in enumerate(names):
        points = sorted(
            (row["fraction"], row["overhead"])
            for row in ran
            if row["heuristic"] == heuristic and row["overhead"]
        )
        axes.plot(
            *zip(*points, strict=True) if points else ([], []),
            color=COLORS[at % len(COLORS)],
            marker=MARKERS[at % len(MARKERS)],
            ms=4.5,
            lw=1,
            label=heuristic,
        )
    for scheme, style in (
        ("Chen greedy, separators", "--"),
        ("Chen greedy, all nodes", "-"),
        ("treeverse", ":"),
    ):
        points = sorted(
            (row["fraction"], row["overhead"]) for row in schemes if row["scheme"] == scheme
        )
        if points:
            points.append((1.01, points[-1][1]))
            axes.step(
                *zip(*points, strict=True),
                where="post",
                color="0.6",
                ls=style,
                lw=1.4,
                label=scheme,
                zorder=1,
            )
    for scheme, marker in (("√n, separators", "x"), ("√n, all nodes", "+")):
        points = [(row["fraction"], row["overhead"]) for row in schemes if row["scheme"] == scheme]
        if points and points[0][1] < top:
            axes.plot(*points[0], marker, color="0.35", ms=9, mew=2, label=scheme)
    rounded = [(row["fraction"], row["rounded"]) for row in optimum if row.get("rounded")]
    if rounded:
        axes.plot(
            *zip(*rounded, strict=True),
            "--",
            color="k",
            marker="s",
            mfc="w",
            ms=5,
            lw=1,
            label="Checkmate, linear program rounded",
        )
    best = [(row["fraction"], row["best"]) for row in optimum if row.get("best")]
    if best:
        axes.plot(
            *zip(*best, strict=True), color="k", lw=2.6, marker=".", ms=9, label="best schedule"
        )
    bounded = [row for row in optimum if row["bound"]]
    x, y = [row["fraction"] for row in bounded], [row["bound"] for row in bounded]
    if best:
        upper = [row["best"] or row["bound"] for row in bounded]
        label = "what is left open: down to the proven bound"
        axes.fill_between(x, y, upper, color="k", alpha=0.25, lw=0, label=label)
    else:
        axes.plot(x, y, color="k", lw=2.6, marker=".", ms=9, label="proven bound")
    axes.set_ylim(1 - (top - 1) * 0.02, top)
    axes.set_xlabel("budget / peak without a budget")
    axes.set_ylabel("compute / compute without a budget")
    axes.grid(alpha=0.3)


def _distance_table(axes: Axes, optimum: list[Row], ran: list[Row], names: list[str]) -> None:
    """Percent above the proven bound, per heuristic and budget."""
    import numpy as np

    fractions = [row["fraction"] for row in optimum]
    least = {row["fraction"]: row["bound"] for row in optimum}
    open_ = {row["fraction"] for row in optimum if not row.get("is_proven")}
    cells = np.full((len(names), len(fractions)), np.nan)
    axes.set_title("percent above the optimum (≤: above the proven bound)", fontsize=10)
    for row in ran:
        y, x = names.index(row["heuristic"]), fractions.index(row["fraction"])
        text = row["status"]
        if row["overhead"] and least[row["fraction"]]:
            cells[y, x] = row["overhead"] / least[row["fraction"]] - 1
            text = f"{'≤ ' if row['fraction'] in open_ else ''}{100 * cells[y, x]:.1f}"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=_ink(cells[y, x]))
    axes.imshow(cells, cmap="YlOrRd", vmin=0, vmax=FARTHEST, aspect="auto")
    axes.set_xticks(range(len(fractions)), [f"{f:g}" for f in fractions])
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("budget / peak")
    axes.tick_params(length=0)


def _ink(value: float) -> str:
    return "w" if value > 0.7 * FARTHEST else "k"


def _overview(document: Document) -> Figure:
    """Mean distance of each heuristic on each graph, with the cells in which it fails."""
    import numpy as np
    from matplotlib.figure import Figure

    graphs = [row["graph"] for row in document["graphs"]]
    names = [row["heuristic"] for row in document["distance"]]
    least = {
        (row["graph"], row["fraction"]): row["best"]
        for row in document["optimum"]
        if row.get("is_proven")
    }
    graphs = [graph for graph in graphs if any(graph == of for of, _ in least)]
    cells = np.full((len(names), len(graphs) + 1), np.nan)
    figure = Figure(
        figsize=(2.6 + 1.25 * len(graphs), 1.6 + 0.42 * len(names)), layout="constrained"
    )
    axes = figure.subplots()
    for y, name in enumerate(names):
        for x, graph in enumerate([*graphs, None]):
            over, failed = [], 0
            for row in document["heuristics"]:
                cell = (row["graph"], row["fraction"])
                if row["heuristic"] != name or graph not in (None, row["graph"]):
                    continue
                if cell not in least:
                    continue
                if row["overhead"]:
                    over.append(row["overhead"] / least[cell] - 1)
                else:
                    failed += 1
            if over:
                cells[y, x] = sum(over) / len(over)
            text = f"{100 * cells[y, x]:.1f}" if over else ""
            text += f"  ({failed} failed)" if failed else ""
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color=_ink(cells[y, x]))
    axes.imshow(cells, cmap="YlOrRd", vmin=0, vmax=FARTHEST, aspect="auto")
    axes.axvline(len(graphs) - 0.5, color="w", lw=4)
    axes.set_xticks(range(len(graphs) + 1), [*graphs, "all"])
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel(
        "percent above the optimum: mean over the budgets at which the optimum is proven and it "
        "works,\nand at how many of these it fails"
    )
    return figure


STUDY = Study(
    title="the distance to the optimum on static training graphs",
    source="Checkmate (Jain et al., MLSys 2020), figure 5; the optimum of all schedules is our own",
    compute=settled("601c0cc7"),
    draw=draw,
)
