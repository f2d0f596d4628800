"""The README's charts, drawn from committed results: what a budget costs, beside the alternatives.

python -m bench.chart        # writes docs/peers.svg and docs/step-time.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "chart", "font.size": 9}

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from bench.peers import report  # noqa: E402

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results"
OURS = "dtr_alloc (default)"
FAILURE = 2.0
"""What a run counts that fails or computes more than twice."""
POLICIES = {
    "marginal": (OURS, "#d55e00"),
    "dtr-full": ("DTR, h-full", "#0072b2"),
    "dtr-eqclass": ("DTR, classes", "#56b4e9"),
    "megengine": ("MegEngine", "#009e73"),
    "msps": ("Capuchin (MSPS)", "#cc79a7"),
    "lru": ("LRU", "#999999"),
}
METHODS = {
    "checkpoint, each block": ("o", "#0072b2"),
    "checkpoint, every second": ("s", "#0072b2"),
    "checkpoint, √N segments": ("D", "#0072b2"),
    "selective checkpoint": ("^", "#56b4e9"),
    "compiled": ("o", "#009e73"),
    "compiled, budget 0.5": ("s", "#009e73"),
    "compiled, budget 0.2": ("D", "#009e73"),
}
OUR_COLOR = "#d55e00"
CUT = 3.0
"""Where the axis of step times ends at the latest."""


def peers(axes: Axes, job: str, document: dict[str, Any]) -> None:
    """Step times of a job by memory: under each method, and ours in that much and other memory."""
    cells = [row for row in document["cells"] if row["job"] == job]
    ours = [row for row in (*cells, *document["lines"]) if row["job"] == job and "share" in row]
    line = sorted(
        (row["share"], row["ours"]["ratio"]) for row in ours if row["ours"]["outcome"] == "trains"
    )
    axes.plot(*zip(*line, strict=True), ".-", color=OUR_COLOR, label=OURS, linewidth=1)
    for row in cells:
        if row["peer"]["outcome"] == "trains":
            marker, color = METHODS[row["method"]]
            at = (row["share"], row["peer"]["ratio"])
            axes.plot(*at, marker, color=color, markersize=5)
    for row in ours:
        if row["ours"]["outcome"] != "trains":
            axes.plot(
                row["share"], 0.97, "x", color=OUR_COLOR, transform=axes.get_xaxis_transform()
            )
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_ylim(top=min(axes.get_ylim()[1], CUT))
    axes.set_title(job, fontsize=9)


def peers_key(axes: Axes) -> None:
    """What the marks of `peers` mean."""
    axes.set_axis_off()
    axes.plot([], [], ".-", color=OUR_COLOR, label=f"{OURS}, 0 lines edited")
    axes.plot([], [], "x", color=OUR_COLOR, label="dtr_alloc does not train")
    for name, (marker, color) in METHODS.items():
        axes.plot([], [], marker, color=color, label=name)
    axes.legend(frameon=False, fontsize=8, loc="center", labelspacing=0.7)


def jobs(axes: Axes) -> None:
    """Measured step times of real jobs."""
    found = json.loads((RESULTS / "job_sweep_cpu.json").read_text())["results"]
    for policy, label, color in (
        ("dtr-eqclass, eager", "DTR paper's policy", "#56b4e9"),
        ("default", OURS, "#d55e00"),
    ):
        fractions = sorted({row["fraction"] for row in found if row["fraction"]})
        ratios = [
            [
                row["step_ratio"]
                for row in found
                if (row["policy"], row["fraction"], row["outcome"])
                == (policy, fraction, "same bits")
            ]
            for fraction in fractions
        ]
        axes.plot(fractions, [median(each) for each in ratios], "o-", color=color, label=label)
        for fraction, each in zip(fractions, ratios, strict=True):
            if len(each) < 13:
                at = (fraction, median(each))
                text = axes.annotate(
                    f"{len(each)} of 13",
                    at,
                    (0, -14 if policy == "default" else 7),
                    textcoords="offset points",
                    ha="center",
                )
                text.set(color=color, fontsize=8)
    axes.plot([1], [1], "ks", label="PyTorch alone runs out of memory below")
    axes.set_title("Step time on the CPU, median of the jobs that train", fontsize=9)
    axes.set(xlabel="activation memory allowed", ylabel="time, against no eviction")
    axes.set(ylim=(0.9, 2.05), xlim=(0.15, 1.03))


def logs(axes: Axes) -> None:
    """Simulated compute of the published logs."""
    document = json.loads((RESULTS / "reproduce/sweep.json").read_text())
    rows = [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]
    ratios = [round(0.2 + 0.1 * n, 1) for n in range(9)]
    for policy, (label, color) in reversed(POLICIES.items()):
        line = []
        for ratio in ratios:
            cells = [
                row["slowdown"] if row["status"] == "ok" else FAILURE
                for row in rows
                if (row["logs"], row["heuristic"], row["ratio"]) == ("published", policy, ratio)
            ]
            assert len(cells) == 8, (policy, ratio, len(cells))
            line.append(mean(min(cell, FAILURE) for cell in cells))
        axes.plot(ratios, line, "o-", color=color, label=label, markersize=3)
    axes.set_title("Simulated compute, mean of the DTR paper's 8 logs", fontsize=9)
    axes.set(xlabel="peak memory allowed", ylabel="compute, a failure counts 2")
    axes.set(ylim=(0.9, 2.05))


def finish(axes: Axes) -> None:
    axes.invert_xaxis()
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
    axes.grid(alpha=0.3)


def save(figure: Figure, name: str) -> None:
    figure.savefig(ROOT / "docs" / name, metadata={"Date": None})


def main() -> None:
    document = json.loads((RESULTS / "peers_cpu.json").read_text())
    names = list(dict.fromkeys(row["job"] for row in document["cells"]))
    figure, grid = plt.subplots(2, (len(names) + 2) // 2, figsize=(9.6, 4.8), layout="constrained")
    for axes, name in zip(grid.flat, names, strict=False):
        peers(axes, name, document)
        finish(axes)
    for axes in grid.flat[len(names) : -1]:
        axes.set_axis_off()
    peers_key(grid.flat[-1])
    figure.supxlabel("peak memory, against plain PyTorch", fontsize=9)
    figure.supylabel(f"step time, against plain PyTorch (to {CUT:.0f}x)", fontsize=9)
    figure.suptitle(f"{report.summary(document)}.", fontsize=10)
    save(figure, "peers.svg")

    figure, both = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    for axes, draw in zip(both, (jobs, logs), strict=True):
        draw(axes)
        finish(axes)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    save(figure, "step-time.svg")


if __name__ == "__main__":
    main()
