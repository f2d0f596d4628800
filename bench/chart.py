"""The README's chart, drawn from committed results: what a budget costs, beside the alternatives.

python -m bench.chart        # writes docs/step-time.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "chart", "font.size": 9}

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

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


def jobs(axes: Axes) -> None:
    """Measured step times of real jobs."""
    found = json.loads((RESULTS / "job_sweep_cpu.json").read_text())["results"]
    for policy, label, color in (
        ("dtr-eqclass, eager", "DTR paper's policy", "#56b4e9"),
        ("default", OURS, "#d55e00"),
    ):
        fractions = sorted({row["fraction"] for row in found})
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


def main() -> None:
    figure, both = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    for axes, draw in zip(both, (jobs, logs), strict=True):
        draw(axes)
        axes.invert_xaxis()
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.1f}x")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(ROOT / "docs/step-time.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
