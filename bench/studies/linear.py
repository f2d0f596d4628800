"""Additional computation against the number of layers of a linear network.

As in the thesis on simrd, section 5.1, figures 2 and 3, for more heuristics, with exact counts of
static schedules beside (chain_bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.studies import chain_bounds
from bench.studies.linear_network import BUDGETS, linear_network
from bench.studies.panels import COLORS
from bench.studies.study import Document, Options, Study
from dtr_alloc.simulation.simulate import run_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEURISTICS = ("marginal", "dtr-full", "dtr-eqclass", "estar", "msps", "dtr-local", "lru")
SETTINGS = (
    ("simrd", "eager", HEURISTICS),
    ("simrd", "banish", ("dtr-full", "lru")),
    ("runtime", "eager", ("dtr-full", "lru")),
)
"""Semantics, deallocation policy, heuristics. The thesis banishes; simrd can feed dtr-eqclass under
eager eviction only. Our engine counts a tensor that was just computed again as just used, which
simrd does not."""
SIZE_BYTES = 512
"""Of a tensor: what the engine's pool counts in."""
MOST_REPEATED = 4096
"""A run that repeats more operators than this for each layer is ended: it thrashes."""


def compute(options: Options) -> Document:
    sizes = [2**k for k in range(4, 9 if options.smoke else 14)]
    runs = [row for layers in sizes for row in _runs(layers)]
    return {
        "limit": f"a run ends as thrash when it has repeated more than {MOST_REPEATED} N operators",
        "columns": [
            *("bound", "layers", "budget", "heuristic"),
            *("semantics", "dealloc", "status", "additional"),
        ],
        "runs": runs,
        "schedule_columns": ["bound", "layers", "budget", "chen", "treeverse"],
        "schedules": [
            [
                bound,
                layers,
                budget_of(layers),
                chain_bounds.chen(layers, budget_of(layers)),
                chain_bounds.treeverse(layers, budget_of(layers)),
            ]
            for bound, budget_of in BUDGETS.items()
            for layers in sizes
        ],
    }


def _runs(layers: int) -> Iterator[list[Any]]:
    program = linear_network(layers, SIZE_BYTES)
    for bound, budget_of in BUDGETS.items():
        budget = budget_of(layers)
        for semantics, dealloc, names in SETTINGS:
            for heuristic in names:
                run = run_log(
                    program,
                    heuristic,
                    budget * SIZE_BYTES,
                    dealloc=dealloc,
                    semantics=semantics,
                    max_recompute=MOST_REPEATED * layers,
                )
                found = (run.status, run.remat_ops)
                yield [bound, layers, budget, heuristic, semantics, dealloc, *found]


def draw(document: Document) -> Mapping[str, Figure]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for (whole, per_layer), bound in zip(panels.T, BUDGETS, strict=True):
        written = bound.replace(" sqrt ", "√").replace("log2", "log₂")
        whole.set_title(f"budget: ⌈{written}⌉ tensors")
        _panel(whole, bound, document, lambda layers, count: count)
        _guides(whole, bound, document)
        _panel(per_layer, bound, document, lambda layers, count: count / layers)
        per_layer.set_xlabel("layers N")
    # Above that, lines of this panel have left the neighborhood of the static schedules.
    panels[1, 0].set_ylim(0.4, 10)
    panels[1, 0].yaxis.set_major_formatter("{x:g}")
    panels[0, 0].set_ylabel("operators executed again (2N are executed anyway)")
    panels[1, 0].set_ylabel("the same for each layer, cut off above 10")
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    return {"": figure}


LINES: Sequence[tuple[str, str, str, dict[str, Any]]] = (
    ("simrd", "marginal", "marginal (ours)", {"marker": ".", "lw": 2}),
    ("simrd", "dtr-full", "dtr-full", {"marker": "."}),
    ("simrd", "dtr-eqclass", "dtr-eqclass", {"marker": ".", "ls": "--"}),
    ("simrd", "estar", "estar", {"marker": "."}),
    ("simrd", "msps", "msps", {"marker": "."}),
    ("simrd", "dtr-local", "dtr-local", {"marker": "o", "mfc": "none", "ms": 7}),
    ("simrd", "lru", "lru", {"marker": "x", "ms": 5}),
    ("runtime", "lru", "lru, on our engine", {"ls": ":", "marker": "x", "ms": 5}),
)
"""Semantics, heuristic, label, style. dtr-local and lru make the same choices here: a cross in a
circle shows both."""


def _panel(axes: Axes, bound: str, document: Document, scale: Callable[[int, int], float]) -> None:
    static: Sequence[tuple[int, str, dict[str, Any]]] = (
        (4, "treeverse: the least possible", {"color": "0.75", "lw": 6}),
        (3, "Chen et al., √N", {"color": "black", "ls": "--", "lw": 1.2, "zorder": 3}),
    )
    for column, label, style in static:
        schedules = [
            row for row in document["schedules"] if row[0] == bound and row[column] is not None
        ]
        y = [scale(row[1], row[column]) for row in schedules]
        axes.plot([row[1] for row in schedules], y, label=label, **style)
    for semantics, heuristic, label, style in LINES:
        runs = [
            row
            for row in document["runs"]
            if row[0] == bound and row[3:7] == [heuristic, semantics, "eager", "ok"]
        ]
        y = [scale(row[1], row[7]) for row in runs]
        line: dict[str, Any] = {"color": COLORS[heuristic], "lw": 1.2, "label": label}
        axes.plot([row[1] for row in runs], y, **line | style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(alpha=0.25)


def _guides(axes: Axes, bound: str, document: Document) -> None:
    """How a count would grow, as thin lines."""
    layers = [row[1] for row in document["schedules"] if row[0] == bound]
    guides: dict[str, Callable[[int], float]]
    if bound == "log2 N":
        guides = {"N²/4": lambda n: n * n / 4, "N log₂N": lambda n: n * math.log2(n)}
    else:
        guides = {"N²/45": lambda n: n * n / 45, "N√N/4": lambda n: n * math.sqrt(n) / 4}
    for text, growth in guides.items():
        axes.plot(layers, [growth(n) for n in layers], color="0.5", ls=(0, (1, 2)), lw=1)
        axes.annotate(
            text,
            (layers[-1], growth(layers[-1])),
            xytext=(24, 0),
            textcoords="offset points",
            va="center",
            color="0.35",
            fontsize=9,
            annotation_clip=False,
        )


STUDY = Study(
    title="additional computation on a linear network of N layers",
    source="simrd thesis, section 5.1, figures 2 and 3; DTR paper, theorem 3.1",
    compute=compute,
    draw=draw,
)
