"""What is learned of a step, in long logs: the rule that a job begins with, and what it plans."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.studies.panels import name_axes, panel_grid, rows_of
from bench.studies.published import THRASHING, published_logs
from bench.studies.repeated import repeated
from bench.studies.study import Document, Options, Study, results
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIOS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STEPS = 5
"""That the job has done when it plans."""
MOVE_BYTES_PER_S = 200e9
"""As the engine has it for GPUs where costs are given: the logs were recorded on one."""


def compute(options: Options) -> Document:
    programs = published_logs(options)
    ratios = (0.3, 0.5) if options.smoke else RATIOS
    cells = list(itertools.product(programs, ratios))
    calls = {f"{log}, {ratio}": (log, ratio) for log, ratio in cells}
    found = results(options.workers, programs, _cell, calls)
    return {
        "columns": ["log", "ratio", "operators", "rule", "learned", "planned"],
        "thrashing": THRASHING,
        "rows": [[*cell, *outcome] for cell, outcome in zip(cells, found, strict=True)],
    }


def _cell(programs: Mapping[str, Program], log: str, ratio: float) -> list[Any]:
    """The ratio is of the peak of the steps on the heap."""
    steps = repeated(programs[log], STEPS)
    whole = simulate.run_log(steps, semantics="runtime", space="heap", outputs=False)
    budget_bytes = int(whole.peak_bytes * ratio)
    found = simulate.play_step(steps, budget_bytes, move_bytes_per_s=MOVE_BYTES_PER_S, search=True)

    def slowdown(cost: float | None) -> float | None:
        return None if cost is None or 1 + cost > THRASHING else round(1 + cost, 5)

    return [
        found.operators,
        slowdown(found.usual_cost),
        slowdown(found.learned_cost),
        found.is_planned,
    ]


def draw(document: Document) -> Mapping[str, Figure]:
    rows = rows_of(document)
    logs = list(dict.fromkeys(row["log"] for row in rows))
    figure, panels = panel_grid(len(logs), panel=(3.3, 2.6), margin=(0.8, 1.0))
    for panel, log in zip(panels.flat, logs, strict=False):
        of_log = [row for row in rows if row["log"] == log]
        for key, color, marker in (("rule", "#cc3311", "s"), ("learned", "#000000", "o")):
            costs = [float("nan") if row[key] is None else row[key] - 1 for row in of_log]
            ratios = [row["ratio"] for row in of_log]
            panel.plot(ratios, costs, label=key, color=color, marker=marker, ms=4)
        panel.set_title(f"{log} ({of_log[0]['operators']} operators)", fontsize=10)
        panel.grid(alpha=0.25)
    x, y = "budget / peak without a budget", "additional compute of a step, with moves"
    name_axes(figure, panels, x, y, ncols=2)
    return {"": figure}


STUDY = Study(
    title="a step by the rule and as it is learned, with addresses",
    source="our own",
    compute=compute,
    draw=draw,
)
