"""How far the presets are from the best schedule known: thousands of ops, the whole log known."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.studies import schedules
from bench.studies.job_logs import job_logs
from bench.studies.panels import COLORS, name_axes, panel_grid, rows_of
from bench.studies.published import THRASHING, published_logs
from bench.studies.study import Document, Options, Study, results
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate
from dtr_alloc.simulation.presets import PRESETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIOS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
JOBS = ("unet", "transformer", "lstm", "densenet")
SHOWN = ("dtr-full", "dtr-eqclass")
STEPS_TIMES_OPS_SQUARED = 1_000_000_000
"""Of local search, for each log and budget: a step's time grows about as the square of the log."""
MOST_STEPS = 6000


def compute(options: Options) -> Document:
    programs = {("published", name): log for name, log in published_logs(options).items()}
    if not options.smoke:
        programs |= {("jobs", name): log for name, log in job_logs(JOBS).items()}
    ratios = (0.3, 0.5) if options.smoke else RATIOS
    cells = list(itertools.product(programs, ratios))
    calls = {f"{', '.join(log)}, {ratio}": (log, ratio, options.smoke) for log, ratio in cells}
    found = results(options.workers, programs, _cell, calls)
    rows = [[*log, ratio, *outcome] for (log, ratio), outcome in zip(cells, found, strict=True)]
    columns = ["logs", "log", "ratio", "ops", "best_known", "made_by", "dealloc"]
    columns += ["best_preset", "preset", "best_preset_lazy", "preset_lazy"]
    return {
        "columns": [*columns, *SHOWN],
        "thrashing": THRASHING,
        "rows": rows,
    }


def _cell(
    programs: Mapping[tuple[str, str], Program], log: tuple[str, str], ratio: float, smoke: bool
) -> list[Any]:
    program = programs[log]
    base = simulate.baseline(program)
    budget_bytes = int(base.peak_bytes * ratio)
    most = int(base.compute * (THRASHING - 1))
    of_presets = {
        preset.name: schedules.of_policy(program, preset, budget_bytes, most)
        for preset in PRESETS.values()
    }
    working = [found for found in of_presets.values() if found is not None]
    best_preset = min(working, key=lambda found: found.cost, default=None)
    best_lazy = schedules.best_preset(program, budget_bytes, deallocs=("ignore",), thrash=THRASHING)
    steps = min(MOST_STEPS, STEPS_TIMES_OPS_SQUARED // max(1, program.operator_count) ** 2)
    best = schedules.search(
        program, budget_bytes, steps=100 if smoke else steps, seed=1, among=[*working, best_lazy]
    )
    if best is not None:
        assert best_preset is None or best.cost <= best_preset.cost
        assert schedules.run(program, best).total_cost == best.cost

    def slowdown(found: schedules.Schedule | None) -> float | None:
        return None if found is None else round(found.cost / base.compute, 5)

    return [
        program.operator_count,
        slowdown(best),
        None if best is None else best.by,
        None if best is None else best.dealloc,
        slowdown(best_preset),
        None if best_preset is None else best_preset.by,
        slowdown(best_lazy),
        None if best_lazy is None else best_lazy.by,
        *(slowdown(of_presets[name]) for name in SHOWN),
    ]


# ---- the picture ----

_LINES = (
    ("best_known", "best schedule known", "#000000", "o", "-"),
    ("best_preset", "best preset, eager eviction", "#cc3311", "s", "--"),
    ("best_preset_lazy", "best preset, the dead stay", "#009988", "^", "--"),
    *((name, name, COLORS[name], ".", "-") for name in SHOWN),
)


def draw(document: Document) -> Mapping[str, Figure]:
    panels_of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows_of(document):
        panels_of.setdefault((row["logs"], row["log"]), []).append(row)
    figure, panels = panel_grid(len(panels_of), panel=(3.3, 2.6), margin=(0.8, 1.0))
    for panel, ((logs, name), of_log) in zip(panels.flat, panels_of.items(), strict=False):
        for key, label, color, marker, style in _LINES:
            _line(panel, of_log, key, label=label, color=color, marker=marker, ls=style)
        own = "" if logs == "published" else "our job: "
        panel.set_title(f"{own}{name} ({of_log[0]['ops']} ops)", fontsize=10)
        panel.grid(alpha=0.25, which="both")
    first = panels[0, 0]
    first.set_yscale("symlog", linthresh=0.01)
    first.set_ylim(-0.001, document["thrashing"] - 1)
    ticks = (0, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0)
    first.set_yticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    x, y = "budget / peak without a budget", "additional compute (logarithmic from 1 % on)"
    name_axes(figure, panels, x, y, ncols=len(_LINES))
    return {"": figure}


def _line(panel: Any, rows: Sequence[Mapping[str, Any]], key: str, **style: Any) -> None:
    """Where a run fails or thrashes there is a gap."""
    ours = key == "best_known"
    panel.plot(
        [row["ratio"] for row in rows],
        [float("nan") if row[key] is None else row[key] - 1 for row in rows],
        lw=2.0 if ours else 1.1,
        ms=4 if ours else 3.5,
        zorder=3 if ours else 2,
        **style,
    )


STUDY = Study(
    title="best schedule known against the presets, the whole log known",
    source="our own",
    compute=compute,
    draw=draw,
)
