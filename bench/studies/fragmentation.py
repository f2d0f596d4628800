"""What fragmentation costs under eviction: lost bytes, recomputing and the smallest budgets.

Logs are run on the engine that trains (runtime semantics). The *fixed* heap has as many
addresses as the budget has bytes: one piece of memory that was allocated at once, the world of the
published policies. The *mapped* heap has memory mapped by chunks of 2 MiB, as CUDA has it.
``counted`` has no places at all: what a policy would do without fragmentation.

The peak is that of the fixed heap without a limit, for all. The jobs of ours are small, so their
mapped chunk is as large a part of their peak as 2 MiB is of 8 GiB, and a page at least.

Moves are not free: a run's overhead is what is recomputed and what moving takes. The published logs
are of a GPU, their costs are taken as nanoseconds and a copy on the device as MOVE_BYTES_PER_S; for
the jobs of ours, whose costs are measured on the CPU, the CPU's copy is measured, too. A move costs
5 microseconds besides.

What is lost at an eviction, and when an eviction is scattered, says simulate/fragmentation.h.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.studies.job_logs import job_logs
from bench.studies.panels import name_axes, panel_grid
from bench.studies.published import THRASHING, published_logs
from bench.studies.study import Document, Options, Study
from dtr_alloc import heuristics
from dtr_alloc.oplog import Program
from dtr_alloc.simulation import simulate
from dtr_alloc.simulation.executors import results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = list[Any]

CHUNK = 2 << 20
"""The least that CUDA maps."""
CHUNKS_OF_A_PEAK = (8 << 30) // CHUNK
PAGE = 4096
MOVE_BYTES_PER_S = 200e9
"""Of a copy within the memory of a GPU of the logs' time (it reads and writes, at half of the
memory's bandwidth at most); an assumption."""

PERCENTS = tuple(range(30, 91, 10))
"""Budgets of the comparison, in percent of the peak."""
SEARCHED = range(58, 6, -4)
"""Budgets among which the smallest that works is looked for, likewise."""
COPIED = 64 << 20
"""Bytes that are copied to measure the speed of copies."""
GIVEN_UP = 2
"""After so many failures in a row none of the smaller ones is tried."""
OUR_JOBS = ("mlp", "resnet", "transformer")


@dataclass(frozen=True)
class Policy:
    """What decides, and where memory is.

    Attributes:
        heuristic: a preset, which brings its way of making room along.
        space: one of simulate.SPACES.
        moves: whether contents may be moved.
        speed: of moves, in terms of the logs' own; 1 but to see what depends on it.
        options: further ones of simulate.run_log.
        color, style: of its line in pictures.
    """

    heuristic: str
    space: str
    color: str
    style: str = "-"
    moves: bool = False
    speed: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


OURS = heuristics.ONLINE

POLICIES: dict[str, Policy] = {
    "dtr-full": Policy("dtr-full", "fixed", "#0072b2"),
    "dtr-eqclass": Policy("dtr-eqclass", "fixed", "#56b4e9"),
    "megengine": Policy("megengine", "fixed", "#b8a300"),
    "coop": Policy("coop", "fixed", "#5e3c99", options={"placement": "two-ended"}),
    "coop, best fit": Policy("coop", "fixed", "#5e3c99", "--"),
    "ours": Policy(OURS, "fixed", "#000000", moves=True),
    "ours, moves at a quarter of the speed": Policy(
        OURS, "fixed", "#000000", "--", moves=True, speed=0.25
    ),
    "ours, no moves": Policy(OURS, "fixed", "#009e73"),
    "ours, mapped": Policy(OURS, "heap", "#d55e00", moves=True),
    "ours, counted": Policy(OURS, "bytes", "#9a9a9a", ":"),
}

COLUMNS = {
    "logs": ["logs", "log", "peak_bytes", "compute", "chunk_bytes"],
    # Of a run: the overhead is what is recomputed (and what moving takes) over the compute; lost
    # bytes are shares of the budget, the mean over all times that something was evicted for room.
    "rows": [
        *("logs", "log", "policy", "percent", "status", "overhead", "lost_mean", "lost_most"),
        *("evictions", "scattered", "times", "remaps", "moved_bytes", "moving"),
    ],
    "floors": ["logs", "log", "policy", "floor_percent", "safe_percent"],
    # Over all logs of a kind at the budgets of the comparison.
    "summary": [
        *("logs", "policy", "cells", "failures", "overhead_mean", "lost_mean", "lost_most"),
        *("evictions", "scattered", "remaps", "moved_bytes", "floor_mean", "ahead_of_ours"),
        "behind_ours",
    ],
}


def chunk_of(logs: str, peak_bytes: int) -> int:
    """The unit of mapping for a log, in bytes."""
    if logs == "published":
        return CHUNK
    return max(PAGE, peak_bytes // CHUNKS_OF_A_PEAK // PAGE * PAGE)


# ---- one log ----


def _study(smoke: bool, logs: str, program: Program, speed: float) -> dict[str, list[Row]]:
    """The rows of one log. speed: what moving does in a second, in bytes."""
    name = program.path
    base = simulate.run_log(program, "lru", semantics="runtime", space="fixed", outputs=False)
    chunk_bytes = chunk_of(logs, base.peak_bytes)
    found: dict[str, list[Row]] = {"rows": [], "floors": []}
    found["logs"] = [[logs, name, base.peak_bytes, base.model_cost, chunk_bytes]]
    for label, policy in POLICIES.items():
        run = partial(_run, program, policy, base=base, chunk_bytes=chunk_bytes, speed=speed)
        for percent in PERCENTS[-1:] if smoke else PERCENTS:
            budget_bytes = base.peak_bytes * percent // 100
            figures = _figures(run(budget_bytes, measure=True), budget_bytes)
            found["rows"].append([logs, name, label, percent, *figures])
        works, failures = [], 0
        for percent in SEARCHED[:1] if smoke else SEARCHED:
            works.append(run(base.peak_bytes * percent // 100).status == "ok")
            failures = 0 if works[-1] else failures + 1
            if failures == GIVEN_UP:
                break
        lowest = [percent for percent, ok in zip(SEARCHED, works, strict=False) if ok]
        safe = works.index(False) - 1 if False in works else len(works) - 1
        found["floors"].append(
            [logs, name, label, min(lowest, default=None), SEARCHED[safe] if safe >= 0 else None]
        )
    return found


def _run(
    program: Program,
    policy: Policy,
    budget_bytes: int,
    *,
    base: simulate.Run,
    chunk_bytes: int,
    speed: float,
    measure: bool = False,
) -> simulate.Run:
    return simulate.run_log(
        program,
        policy.heuristic,
        budget_bytes,
        semantics="runtime",
        space=policy.space,
        chunk_bytes=chunk_bytes if policy.space == "heap" else 0,
        move_bytes_per_s=policy.moves * policy.speed * speed,
        measure=measure,
        outputs=False,
        max_recompute=simulate.thrash_limit(base.model_cost, THRASHING),
        **policy.options,
    )


def _figures(run: simulate.Run, budget_bytes: int) -> Row:
    times = max(1, run.forced_times)
    return [
        run.status,
        round((run.remat_cost + run.move_cost) / run.model_cost, 5) if run.status == "ok" else None,
        round(run.lost_bytes / times / budget_bytes, 6),
        round(run.most_lost_bytes / budget_bytes, 6),
        *(run.forced, run.scattered, run.forced_times, run.remaps, run.moved_bytes),
        round(run.move_cost / run.model_cost, 5) if run.status == "ok" else None,
    ]


def cpu_copy_bytes_per_s() -> float:
    """What this CPU copies in a second, from memory to memory: the median of some copies."""
    source, target = ctypes.create_string_buffer(COPIED), ctypes.create_string_buffer(COPIED)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        ctypes.memmove(target, source, COPIED)
        times.append(time.perf_counter() - begin)
    return COPIED / statistics.median(times)


# ---- the document ----


def compute(options: Options) -> Document:
    published = published_logs(options).values()
    logs = [("published", program, MOVE_BYTES_PER_S) for program in published]
    cpu = cpu_copy_bytes_per_s()
    jobs = job_logs(("mlp",) if options.smoke else OUR_JOBS)
    logs += [("jobs", program, cpu) for program in jobs.values()]
    calls = {f"{kind}, {program.path}": (kind, program, speed) for kind, program, speed in logs}
    tables: dict[str, list[Row]] = {"logs": [], "rows": [], "floors": []}
    for part in results(options.workers, options.smoke, _study, calls):
        for table, rows in part.items():
            tables[table] += rows
    tables["summary"] = list(summary(tables["rows"], tables["floors"]))
    return {
        "columns": COLUMNS,
        "thrashing": THRASHING,
        "cpu_copy_bytes_per_s": round(cpu),
        **tables,
    }


def summary(rows: Sequence[Row], floors: Sequence[Row]) -> Iterator[Row]:
    """A line for each kind of logs and policy. The mean overhead counts a failure as 1; lost bytes
    are the mean over the runs that worked and evicted. A policy is ahead in a cell if it works and
    ours does not, or recomputes less by more than a thousandth of the compute."""
    ours = {(row[0], row[1], row[3]): row[5] for row in rows if row[2] == "ours"}
    for logs in dict.fromkeys(row[0] for row in rows):
        for label in POLICIES:
            cells = [row for row in rows if row[0] == logs and row[2] == label]
            worked = [row for row in cells if row[4] == "ok"]
            evicting = [row for row in worked if row[10] > 0]
            of_ours = [ours[row[0], row[1], row[3]] for row in cells]
            own_and_ours = [
                (_cost(row[5]), _cost(of)) for row, of in zip(cells, of_ours, strict=True)
            ]
            lowest = [row[3] for row in floors if row[0] == logs and row[2] == label]
            yield [
                *(logs, label, len(cells), len(cells) - len(worked)),
                round(statistics.fmean(min(1.0, _cost(row[5])) for row in cells), 4),
                round(statistics.fmean([row[6] for row in evicting] or [0.0]), 5),
                max((row[7] for row in evicting), default=0.0),
                *(sum(row[column] for row in worked) for column in (8, 9, 11, 12)),
                round(statistics.fmean(100 if low is None else low for low in lowest), 2),
                sum(own < of - 0.001 for own, of in own_and_ours),
                sum(own > of + 0.001 for own, of in own_and_ours),
            ]


def _cost(overhead: float | None) -> float:
    return float("inf") if overhead is None else overhead


# ---- the pictures ----


def draw(document: Document) -> Mapping[str, Figure]:
    return {"": _draw_lost(document), "slowdown": _draw_overheads(document)}


def _draw_lost(document: Document) -> Figure:
    """Lost bytes and scattered evictions against the budget, in the mean over the logs."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row[0] for row in document["rows"]))
    figure = Figure(figsize=(4.4 * len(kinds) + 0.6, 6.2), layout="constrained")
    panels = figure.subplots(2, len(kinds), squeeze=False, sharex=True, sharey="row")
    for column, logs in enumerate(kinds):
        for label, policy in POLICIES.items():
            if policy.space == "bytes":
                continue
            lost, scattered = [], []
            for percent in PERCENTS:
                runs = [
                    row
                    for row in document["rows"]
                    if row[:1] + row[2:5] == [logs, label, percent, "ok"] and row[10] > 0
                ]
                evictions = sum(row[8] for row in runs)
                lost.append(100 * statistics.fmean([row[6] for row in runs] or [float("nan")]))
                share = sum(row[9] for row in runs) / evictions if evictions else float("nan")
                scattered.append(100 * share)
            style = {"color": policy.color, "ls": policy.style, "marker": ".", "ms": 5}
            panels[0, column].plot(PERCENTS, lost, label=label, **style)
            panels[1, column].plot(PERCENTS, scattered, **style)
        panels[0, column].set_title(logs)
        panels[1, column].set_xlabel("budget, % of the peak")
    panels[0, 0].set_ylabel("lost at an eviction, % of the budget")
    panels[1, 0].set_ylabel("scattered evictions, % of all")
    panels[0, 0].set_yscale("symlog", linthresh=1)
    panels[0, 0].set_ylim(0, 100)
    for panel in panels.flat:
        panel.grid(alpha=0.25)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _draw_overheads(document: Document) -> Figure:
    names = [row[:2] for row in document["logs"]]
    figure, panels = panel_grid(len(names), panel=(2.9, 2.3), margin=(0.8, 1.2))
    for panel, (logs, log) in zip(panels.flat, names, strict=False):
        for label, policy in POLICIES.items():
            line = [row for row in document["rows"] if row[:3] == [logs, log, label]]
            panel.plot(
                [row[3] for row in line],
                [float("nan") if row[5] is None else 1 + row[5] for row in line],
                color=policy.color,
                ls=policy.style,
                marker=".",
                ms=4,
                lw=1.2,
                label=label,
            )
        panel.set_title(log if logs == "published" else f"{log} (job)", fontsize=9)
        panel.grid(alpha=0.25)
    panels[0, 0].set_ylim(0.98, THRASHING)
    name_axes(
        figure, panels, "budget, % of the peak", "compute / compute without a budget", ncols=4
    )
    return figure


STUDY = Study(
    title="what fragmentation costs: lost bytes, recomputing and the smallest budgets",
    source="our own; compared with Coop (NeurIPS 2023) and MegEngine's DTR, section 3.6",
    compute=compute,
    draw=draw,
)
