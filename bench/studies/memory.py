"""What is in memory at each moment of a run on the linear network.

As in the DTR paper, figure 4, and in the thesis on simrd, section 5.2, figures 7 to 10: one column
for each operator that is executed, one row for each layer. Black: neither the layer's output nor
its gradient is in memory. Red: its output is. White: its gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.studies.linear_network import BUDGETS, layer_of, linear_network
from bench.studies.study import Document, Options, Study
from dtr_alloc.simulation.simulate import run_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "2 ⌈√N⌉"
TEXT = {"⌈2√N⌉": BUDGETS["2 sqrt N"], "⌈log₂N⌉": BUDGETS["log2 N"]}


def compute(options: Options) -> Document:
    layers, thesis_layers = (40, 25) if options.smoke else (200, 101)
    budget = 2 * (math.isqrt(layers - 1) + 1)
    return {
        "interval_columns": ["tensor", "first column", "column after the last"],
        "runs": [
            _trace(layers, PAPER, budget, "estar"),
            *(
                _trace(thesis_layers, bound, budget_of(thesis_layers), heuristic)
                for bound, budget_of in TEXT.items()
                for heuristic in ("dtr-full", "lru")
            ),
        ],
    }


def _trace(layers: int, bound: str, budget: int, heuristic: str) -> dict[str, Any]:
    # Banishing, as in both texts.
    run = run_log(linear_network(layers), heuristic, budget, dealloc="banish", decisions=True)
    if run.status != "ok" or run.decisions is None:
        raise RuntimeError(f"{heuristic} with {budget} tensors for {layers} layers: {run.status}")
    operators, found = intervals(run.decisions)
    return {
        "layers": layers,
        "bound": bound,
        "budget": budget,
        "heuristic": heuristic,
        "dealloc": "banish",
        "operators": operators,
        "additional": run.remat_ops,
        "intervals": found,
    }


def intervals(decisions: str) -> tuple[int, list[list[int]]]:
    """Follows a run's decisions (dtr_simulate_runtime), of operators with one
    output each.

    Returns how many operators were executed, and for each time that a tensor was in memory [tensor,
    the first operator after which it was there, the first after which it was not any more].
    What is freed before operator k runs was there after k - 1, and what is released by the
    program was there after the operator before.
    """
    operators = 0
    since: dict[int, int] = {}
    found = []
    for line in decisions.split():
        kind, tensor = line[0], int(line[1:])
        if kind in "MR":
            since[tensor] = operators
            operators += 1
        elif kind in "ED":
            found.append([tensor, since.pop(tensor), operators])
        # Banished: its memory was freed before, by an eviction of its own.
    found.extend([tensor, first, operators] for tensor, first in since.items())
    return operators, sorted(found)


def draw(document: Document) -> Mapping[str, Figure]:
    from matplotlib.figure import Figure

    paper, *thesis = document["runs"]
    one = Figure(figsize=(10, 5), layout="constrained", dpi=150)
    _picture(one.subplots(), paper)
    _legend(one)
    four = Figure(figsize=(12, 8), layout="constrained", dpi=150)
    for axes, run in zip(four.subplots(2, 2).flat, thesis, strict=True):
        _picture(axes, run)
    _legend(four)
    return {"": one, "traces": four}


EMPTY, FORWARD, GRADIENT = range(3)
COLORS = {EMPTY: "black", FORWARD: "#e8352c", GRADIENT: "white"}
MEANINGS = {
    EMPTY: "not in memory (not yet computed, evicted, or banished)",
    FORWARD: "the layer's output is in memory",
    GRADIENT: "the layer's gradient is in memory",
}
BACKWARD = "#27b4ff"


def _picture(axes: Axes, run: Mapping[str, Any]) -> None:
    import numpy as np
    from matplotlib.colors import ListedColormap

    layers = run["layers"]
    state = np.full((layers, run["operators"]), EMPTY, dtype=np.uint8)
    for tensor, first, after in run["intervals"]:
        row = state[layer_of(tensor, layers), first:after]
        np.maximum(row, FORWARD if tensor < layers else GRADIENT, out=row)
    axes.imshow(
        state,
        cmap=ListedColormap(list(COLORS.values())),
        vmin=EMPTY,
        vmax=GRADIENT,
        interpolation="nearest",
        aspect="auto",
        origin="lower",
        extent=(0, run["operators"], 0.5, layers + 0.5),
    )
    axes.axvline(layers, color=BACKWARD, linewidth=1, linestyle="--")
    axes.set_title(
        f"{run['heuristic']}, N = {layers}, B = {run['bound']} = {run['budget']}: "
        f"{run['additional']} operators executed again",
        fontsize=10,
    )
    axes.set_xlabel("operators executed")
    axes.set_ylabel("layer")


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=color, edgecolor="0.5", label=MEANINGS[state])
        for state, color in COLORS.items()
    ]
    handles.append(Line2D([], [], color=BACKWARD, ls="--", label="the backward pass begins"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)


STUDY = Study(
    title="what is in memory at each moment, on a linear network",
    source="DTR paper, figure 4; simrd thesis, section 5.2, figures 7 to 10",
    compute=compute,
    draw=draw,
)
