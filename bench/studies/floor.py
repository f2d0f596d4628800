"""How far down a budget can go: the smallest that runs, and the failures above it.

Greedy eviction can fail at a budget and succeed at a smaller one (an *inversion*). For each
published log and heuristic, budgets are swept in steps of 1 % of the log's peak on the engine
that trains (runtime semantics, counted bytes).

A run that spends more than ``MOST`` times the log's compute counts as failed ("thrash"), like one
that is out of memory ("oom").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.studies.panels import name_axes, panel_grid
from bench.studies.published import published_logs
from bench.studies.study import Document, Options, Study, results
from dtr_alloc.advise.at_peak import Step
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 10
"""All compute, in terms of the log's, above which a run counts as failed."""

HEURISTICS = (
    "marginal",
    "marginal, lazy",
    "c=ancestors,m=size,s=0.5",
    "dtr-full",
    "dtr-eqclass",
    "msps",
    "dtr-local",
    "largest",
    "lru",
)

COLUMNS = {
    "logs": ["log", "peak_bytes", "compute", "least_ratio"],
    # Slowdowns from first_percent on in steps, or how a run failed.
    "sweeps": ["log", "heuristic", "first_percent", "step", "slowdowns"],
    "floors": ["log", "heuristic", "floor_percent", "safe_percent", "inversions"],
    # The first budget that is out of memory, and what is resident then, in % of the peak.
    "failures": [
        *("log", "heuristic", "percent", "constant", "running", "waiting"),
        *("allocated", "preemptions", "chain_depth"),
    ],
}

Row = list[Any]


# ---- one log ----


def least_bytes(program: Program) -> int:
    """A budget below which no schedule runs the log: the most that an operator reads, makes and
    needs meanwhile, with the constants that are alive then."""
    step = Step(program, 1)
    constants = [each for each in step.memory if each.is_constant or each.born in step.effects]
    kept = set(map(id, constants))
    needs = [sum(parts) for parts in zip(step.in_use(constants), step.workspaces, strict=True)]
    for memory in step.memory:
        if id(memory) not in kept:
            for operator in {memory.born, *memory.readers}:
                needs[operator] += memory.size_bytes
    return max(needs, default=0)


def _study(smoke: bool, name: str, program: Program) -> dict[str, list[Row]]:
    """The rows of one log."""
    base = simulate.baseline(program, semantics="runtime")
    peak, compute = base.peak_bytes, base.compute
    least = least_bytes(program)

    def run(heuristic: str, percent: int) -> simulate.Run:
        name, _, dealloc = heuristic.partition(", ")
        return simulate.run_log(
            program,
            name,
            peak * percent // 100,
            semantics="runtime",
            outputs=False,
            max_recompute=(MOST - 1) * compute,
            dealloc=dealloc or "eager",
        )

    def slowdown(run: simulate.Run) -> float | str:
        return round(run.total_cost / compute, 3) if run.status == "ok" else run.status

    lowest = max(1, -(-100 * least // peak))
    percents = range(95 if smoke else 99, 85 if smoke else lowest - 1, -5 if smoke else -1)
    found: dict[str, list[Row]] = {"logs": [], "sweeps": [], "failures": []}
    found["logs"].append([name, peak, compute, round(least / peak, 4)])
    for heuristic in HEURISTICS[:1] if smoke else HEURISTICS:
        runs = {percent: run(heuristic, percent) for percent in percents}
        values = [slowdown(run) for run in runs.values()]
        found["sweeps"].append([name, heuristic, percents[0], percents.step, values])
        failed = next((p for p in percents if runs[p].status == "oom"), None)
        if failed is not None:
            at = runs[failed]
            shares = (at.constant_bytes, at.running_bytes, at.waiting_bytes, at.end_bytes)
            found["failures"].append(
                [name, heuristic, failed]
                + [round(100 * share / peak, 1) for share in shares]
                + [at.preemptions, at.chain_depth]
            )
    return found


# ---- the document ----


def compute(options: Options) -> Document:
    logs = published_logs(options)
    document: Document = {"most": MOST, "columns": COLUMNS}
    tables: dict[str, list[Row]] = {"logs": [], "sweeps": [], "failures": []}
    calls = {name: (name, program) for name, program in logs.items()}
    for part in results(options.workers, options.smoke, _study, calls):
        for table, rows in part.items():
            tables[table] += rows
    tables["floors"] = list(_floors(tables["sweeps"]))
    return document | tables


def _floors(sweeps: list[Row]) -> Iterator[Row]:
    """Of each sweep: the lowest percentage that runs, the lowest above which all run, and the
    failures above the former."""
    for log, heuristic, first, step, values in sweeps:
        by_percent = {first + step * i: value for i, value in enumerate(values)}
        runs = [percent for percent, value in by_percent.items() if not isinstance(value, str)]
        fails = [percent for percent, value in by_percent.items() if isinstance(value, str)]
        floor = min(runs, default=None)
        safe = min((p for p in runs if p > max(fails, default=0)), default=None)
        inversions = sum(floor is not None and percent > floor for percent in fails)
        yield [log, heuristic, floor, safe, inversions]


# ---- the pictures ----

COLOR = "#0072b2"


def draw(document: Document) -> Mapping[str, Figure]:
    return {"": _draw_floors(document), "slowdown": _draw_slowdowns(document)}


def _draw_floors(document: Document) -> Figure:
    """Per log and heuristic a bar down to the floor; failures above it."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    logs = [row[0] for row in document["logs"]]
    least = {row[0]: 100 * row[3] for row in document["logs"]}
    heuristics = list(dict.fromkeys(row[1] for row in document["sweeps"]))
    columns = min(4, len(logs))
    lines = -(-len(logs) // columns)
    figure = Figure(figsize=(3.3 * columns + 1.6, 0.42 * len(heuristics) * lines + 1.6 * lines))
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axes in grid.flat:
        axes.set_visible(False)
    for log, axes in zip(logs, grid.flat, strict=False):
        axes.set_visible(True)
        for table in document["sweeps"]:
            if table[0] != log:
                continue
            _, heuristic, first, step, values = table
            y = heuristics.index(heuristic)
            ran = [first + step * i for i, v in enumerate(values) if not isinstance(v, str)]
            if not ran:
                continue
            failed = [first + step * i for i, v in enumerate(values) if isinstance(v, str)]
            above = [percent for percent in failed if percent > min(ran)]
            axes.plot([min(ran), 60], [y, y], color=COLOR, linewidth=3.2, zorder=1)
            axes.plot(above, [y] * len(above), "x", color="#c00000", markersize=4, zorder=2)
        axes.axvline(least[log], color="black", linestyle=":", linewidth=1)
        axes.set_title(log, fontsize=10)
        axes.set_xlim(0, 60)
        axes.set_yticks(range(len(heuristics)), heuristics, fontsize=8)
        axes.set_ylim(len(heuristics) - 0.4, -0.6)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_xlabel("budget, % of the peak", fontsize=8)
    marks = [
        Line2D([], [], color=COLOR, linewidth=3.2, label="runs"),
        Line2D([], [], color="#c00000", marker="x", linestyle="", label="fails above the floor"),
        Line2D(
            [],
            [],
            color="black",
            linestyle=":",
            label="no schedule runs below: one op and the constants",
        ),
    ]
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.legend(handles=marks, loc="lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _draw_slowdowns(document: Document) -> Figure:
    """What budgets near the floor cost, for the first heuristic."""
    least = {row[0]: 100 * row[3] for row in document["logs"]}
    heuristic = document["sweeps"][0][1]
    figure, panels = panel_grid(len(least), panel=(3.2, 2.6), margin=(0.5, 0.8))
    sweeps = [row for row in document["sweeps"] if row[1] == heuristic]
    for axes, (log, _, first, step, values) in zip(panels.flat, sweeps, strict=False):
        x = [first + step * i for i in range(len(values))]
        y = [float("nan") if isinstance(value, str) else value for value in values]
        axes.plot(x, y, color=COLOR, linewidth=1.6, label=heuristic)
        axes.axvline(least[log], color="black", linestyle=":", linewidth=1)
        axes.set_title(log, fontsize=10)
        axes.grid(True, linewidth=0.3)
    first_panel = panels[0, 0]
    first_panel.set_yscale("log")
    ticks = [1, 1.5, 2, 3, 5, 10]
    first_panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    first_panel.minorticks_off()
    first_panel.set(ylim=(0.97, 11), xlim=(0, 50))
    name_axes(figure, panels, "budget, % of the peak", "compute, in terms of the log's", ncols=1)
    return figure


STUDY = Study(
    title="The smallest budgets that run, and failures above them",
    source="our own; the DTR paper's section 4.2 reports out-of-memory points",
    compute=compute,
    draw=draw,
)
