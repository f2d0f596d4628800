"""Slowdown against budget, for the published logs and for jobs of ours, under all presets.

The budget of a published log is a ratio of its peak, as in the paper; that of a job is what it
keeps between two steps (parameters, the optimizer's state) and a ratio of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.studies.job_logs import JOBS, job_logs
from bench.studies.panels import COLORS, name_axes, panel_grid
from bench.studies.published import THRASHING, published_logs
from bench.studies.study import Document, Options, Study
from dtr_alloc import heuristics
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate
from dtr_alloc.simulation.executors import Workers
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.simulation.simulate import Limit, Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIVEN_UP = 10.0
"""A run is ended there. Below it we know whether it would run out of memory."""
FURTHER_DEALLOC = "lazy"
"""The default heuristic also runs with this policy for the dead; all run with ``eager``, as in the
paper."""
STEP = 5
"""Of the ratios, in percent; from 10 percent on."""


def compute(options: Options) -> Document:
    ratios = [percent / 100 for percent in range(10, 101, 20 if options.smoke else STEP)]
    rules = list(PRESETS.values())
    assert rules[-1].name == heuristics.ONLINE
    published = published_logs(options)
    plan = Plan([Limit(ratio=ratio) for ratio in ratios], rules, thrash=GIVEN_UP)
    lazy = replace(plan, heuristics=rules[-1:], deallocs=[FURTHER_DEALLOC])
    jobs = job_logs(("mlp",) if options.smoke else JOBS)
    rows: list[list[Any]] = []
    for each in (plan, lazy):
        runs = simulate.Study(each, list(published.values()), options.workers)
        rows += [["published", *_found(row), row["ratio"]] for row in runs]
        for program in jobs.values():
            rows += _job(program, each, ratios, options.workers)
    return {
        "columns": ["logs", "log", "heuristic", "status", "slowdown", "ratio"],
        "rows": rows,
        "floor_columns": ["logs", "log", "heuristic", "before_thrashing", "before_out_of_memory"],
        "floors": list(_floors(rows)),
    }


def _job(
    program: Program, plan: Plan, ratios: Sequence[float], workers: Workers
) -> Iterator[list[Any]]:
    run = simulate.run_log(program, "lru", semantics="runtime", outputs=False)
    idle, peak = run.end_bytes, run.peak_bytes
    budgets = {idle + int(ratio * (peak - idle)): ratio for ratio in ratios}
    limits = [Limit(size_bytes=budget) for budget in budgets]
    own = replace(plan, limits=limits, semantics="runtime")
    for row in simulate.Study(own, [program], workers):
        yield ["jobs", *_found(row), budgets[row["budget_bytes"]]]


def _found(row: Mapping[str, Any]) -> list[Any]:
    slowdown = row["total_compute"] / row["base_compute"]
    status = row["status"]
    if status == "ok" and slowdown > THRASHING:
        status = "thrash"
    dealloc = "" if row["dealloc"] == "eager" else f", {row['dealloc']}"
    return [row["log"], row["heuristic"] + dealloc, status, round(slowdown, 5)]


def _lines(rows: Sequence[Sequence[Any]]) -> Mapping[tuple[str, ...], list[Sequence[Any]]]:
    """The rows of each logs, log, heuristic, from the largest budget down."""
    lines: dict[tuple[str, ...], list[Sequence[Any]]] = {}
    for row in sorted(rows, key=lambda row: -row[5]):
        lines.setdefault(tuple(row[:3]), []).append(row)
    return lines


def _floors(rows: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """The last ratios, going down, before a line first fails in either way; None: at once."""
    for key, line in _lines(rows).items():
        lasts = []
        for failures in (("thrash", "oom"), ("oom",)):
            last = None
            for row in line:
                if row[3] in failures:
                    break
                last = row[5]
            lasts.append(last)
        yield [*key, *lasts]


def draw(document: Document) -> Mapping[str, Figure]:
    return {part: _picture(document["rows"], logs) for part, logs in PARTS.items()}


PARTS = {"": "published", "jobs": "jobs"}
_BUDGETS = {
    "published": "budget / peak",
    "jobs": "share of what a step adds that fits the budget",
}


def _picture(rows: Sequence[Sequence[Any]], logs: str) -> Figure:
    lines = {key: line for key, line in _lines(rows).items() if key[0] == logs}
    names = list(dict.fromkeys(name for _, name, _ in lines))
    figure, panels = panel_grid(len(names), panel=(3.6, 2.9), margin=(0.8, 1.2))
    for panel, log in zip(panels.flat, names, strict=False):
        for (_, of, heuristic), line in lines.items():
            if of != log:
                continue
            name, _, dealloc = heuristic.partition(", ")
            ours = name == heuristics.ONLINE
            style: dict[str, Any] = {"lw": 2.2 if ours else 1, "zorder": 3 if ours else 2}
            known = [row for row in line if row[3] == "ok"]
            panel.plot(
                [row[5] for row in known],
                [row[4] for row in known],
                color=COLORS[name],
                ls=":" if ours and not dealloc else "-",
                marker=".",
                ms=4,
                label=heuristic,
                **style,
            )
        panel.set_title(log)
        panel.grid(alpha=0.25)
    panels[0, 0].set_ylim(0.98, THRASHING)
    panels[0, 0].set_xlim(0.08, 1.02)
    name_axes(figure, panels, _BUDGETS[logs], "compute / compute without a budget", ncols=6)
    return figure


STUDY = Study(
    title="slowdown against budget: published logs and jobs of ours, all presets",
    source="DTR paper, section 4.2, figure 2; simrd thesis, section 5.2",
    compute=compute,
    draw=draw,
)
