"""The distance to the optimum: how much more than the best schedule a policy computes.

For static training graphs and a few budgets each: the optimum of all schedules with what is proven
of it, Checkmate's linear relaxation rounded, the checkpointing schemes of the literature, and every
heuristic through the simulator, all on the same counted bytes. Overhead is compute over the compute
without a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.studies import checkpointing, training_graphs
from bench.studies.any_schedule import bound
from bench.studies.checkmate import Checkmate
from bench.studies.log_graph import coarse_graph
from bench.studies.static_graph import StaticGraph, program
from bench.studies.static_schedule import Step, measure
from bench.studies.study import Document, Options, Study, Unavailable
from dtr_alloc.oplog import Program, compile_log
from dtr_alloc.simulation.simulate import (
    Baseline,
    baseline,
    parse_heuristics,
    run_log,
    thrash_limit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 30.0
"""For each program and budget."""
BUDGETS = 6
"""For each graph, evenly between the least that a schedule can need and the peak."""
HEURISTICS = (
    "marginal",
    "dtr-full",
    "dtr-eqclass",
    "dtr-local",
    "lru",
    "largest",
    "msps",
    "estar",
    "c=ancestors,m=size,s=0.25",
    "c=ancestors,m=size,s=0.5",
)
"""What is compared, as ``dtr-alloc simulate --heuristics`` takes it. ``megengine`` and ``coop`` are
about fragmentation, which counted bytes do not have."""
THRASH = 3.0
"""A run that computes more than so many times the program has failed, as in the DTR paper."""
NEAR = 0.03
"""What counts as near to the optimum."""
CLOSE = 1e-5
"""Relative: a bound so close to a schedule proves it. The solver's own tolerances are as large."""

Row = dict[str, Any]
GRAPHS: tuple[Callable[[], StaticGraph], ...] = (
    lambda: training_graphs.chain(24),
    training_graphs.vgg16,
    training_graphs.perceptron,
    lambda: training_graphs.residual(blocks=4),
    lambda: training_graphs.unet(levels=4),
    training_graphs.dense,
    training_graphs.transformer,
)
LOGS = {"unet.log.xz": "U-Net, published log"}
"""Of the logs that the DTR paper published: those small enough, by their files' names."""
SMALL = 0.003
"""Of a log's peak: storages below are not in its graph."""
LOG_BUDGETS = (0.8, 0.7, 0.6, 0.5, 0.4)
"""For each log, as ratios of its peak."""
LOG_SECONDS = 120.0
"""As SECONDS, for the graph of a log."""
SMOKE_GRAPHS: tuple[Callable[[], StaticGraph], ...] = (
    lambda: training_graphs.chain(5),
    lambda: training_graphs.unet(levels=1),
)


# ---- computing ----


@dataclass(frozen=True)
class Case:
    """A program that is studied.

    Attributes:
        graph: what the solvers work on.
        log: what the heuristics run through the simulator.
        base: the log's peak and compute without a budget.
        once: compute of the log that the graph has not (log_graph.py); 0 if the graph is the log.
        is_coarse: whether the graph is a coarse view of the log, with a bound that holds for the
            log, but schedules that are none of it.
    """

    graph: StaticGraph
    log: Program
    base: Baseline
    once: int = 0
    is_coarse: bool = False

    @property
    def name(self) -> str:
        return self.graph.name

    def overhead(self, cost: float | None) -> float | None:
        """Of a cost of the graph; None stays None."""
        return None if cost is None else round((cost + self.once) / self.base.compute, 6)

    def budgets(self, options: Options) -> list[tuple[float, int]]:
        """Fractions of the peak, of two digits, and the bytes that they are; the largest first."""
        peak_bytes = self.base.peak_bytes
        if self.is_coarse:
            return [(ratio, int(peak_bytes * ratio)) for ratio in LOG_BUDGETS]
        count = 2 if options.smoke else BUDGETS
        least = self.graph.least_bytes / peak_bytes
        fractions = {round(least + (1 - least) * k / (count + 1), 2) for k in range(1, count + 1)}
        return [(ratio, int(peak_bytes * ratio)) for ratio in sorted(fractions, reverse=True)]


def generated(graph: StaticGraph) -> Case:
    """The case of a graph that is a program of its own."""
    return Case(graph, program(graph), Baseline(graph.peak_bytes, graph.cost))


def published(path: Path, name: str) -> Case:
    """The case of an op log."""
    log = compile_log(path)
    base = baseline(log)
    coarse = coarse_graph(name, log, int(SMALL * base.peak_bytes))
    return Case(coarse.graph, log, base, coarse.once, is_coarse=True)


def cases(options: Options) -> Iterator[Case]:
    for make in SMOKE_GRAPHS if options.smoke else GRAPHS:
        yield generated(make())
    if options.logs is not None and not options.smoke:
        for file, name in LOGS.items():
            yield published(options.logs / file, name)


def compute(options: Options) -> Document:
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        message = "integer programs need scipy: pip install scipy"
        raise Unavailable(message) from None
    document: Document = {"graphs": [], "optimum": [], "schemes": [], "heuristics": []}
    for case in cases(options):
        document["graphs"].append(
            {
                "graph": case.name,
                "nodes": len(case.graph),
                "forward": case.graph.forward,
                "is_coarse": case.is_coarse,
                "peak_bytes": case.base.peak_bytes,
                "least_bytes": case.graph.least_bytes,
                "pinned_bytes": case.graph.pinned_bytes,
            }
        )
        seconds = LOG_SECONDS if case.is_coarse else 1.0 if options.smoke else SECONDS
        checkmate = None if case.is_coarse else Checkmate(case.graph)
        document["schemes"] += [] if case.is_coarse else schemes(case.graph)
        for fraction, budget_bytes in case.budgets(options):
            ran = heuristics(case, fraction, budget_bytes)
            known = [row["compute"] for row in ran if row["status"] == "ok"]
            best = solve(case, checkmate, fraction, budget_bytes, seconds, min(known, default=None))
            document["heuristics"] += ran
            document["optimum"].append(best)
    document["optimum"] = conclusions(document["optimum"])
    document["distance"] = distances(document)
    return document


def heuristics(case: Case, fraction: float, budget_bytes: int) -> list[Row]:
    """A run of each heuristic through the simulator."""
    rows = []
    for rule in parse_heuristics(HEURISTICS, "simrd"):
        limit = thrash_limit(case.base.compute, THRASH)
        run = run_log(case.log, rule, budget_bytes, semantics="simrd", max_recompute=limit)
        works = run.status == "ok"
        rows.append(
            {
                "graph": case.name,
                "fraction": fraction,
                "heuristic": rule.name,
                "status": run.status,
                "compute": run.total_cost,
                "overhead": round(run.total_cost / case.base.compute, 6) if works else None,
            }
        )
    return rows


def solve(
    case: Case,
    checkmate: Checkmate | None,
    fraction: float,
    budget_bytes: int,
    seconds: float,
    known: int | None,
) -> Row:
    """The optimum of one case and budget: best schedule, proven bound, and how they were got.

    checkmate: of the case's graph. Its own program is solved only where the bound for any schedule
        left something open: elsewhere the schedule found is Checkmate's optimum as well. None: not
        asked, and not rounded.
    known: the compute of some run that fits: a schedule as well.

    The row's ``best`` is missing for a coarse case, ``checkmate_...`` where it was not asked.
    """
    graph = case.graph
    at_most = None if known is None else known - case.once
    proven = bound(graph, budget_bytes, seconds, at_most)
    costs = [measure(graph, proven.steps, budget_bytes).cost] if proven.steps else []
    is_closed = proven.status == "optimal" and bool(costs)
    row: Row = {
        "graph": case.name,
        "fraction": fraction,
        "budget_bytes": budget_bytes,
        "status": proven.status,
        "bound": case.overhead(proven.cost),
        "seconds": round(proven.seconds, 1),
    }
    if checkmate is not None:
        if proven.status != "infeasible" and not is_closed:
            solution = checkmate.optimum(budget_bytes, seconds, at_most)
            if solution.steps:
                costs.append(measure(graph, solution.steps, budget_bytes).cost)
            row |= {
                "checkmate_status": solution.status,
                "checkmate_bound": case.overhead(solution.bound),
                "checkmate_seconds": round(solution.seconds, 1),
            }
        rounded = _cheapest(graph, checkmate.rounded(budget_bytes, seconds), budget_bytes)
        row["rounded"] = case.overhead(rounded)
    if not case.is_coarse:
        costs += [] if at_most is None else [at_most]
        row["best"] = case.overhead(min(costs, default=None))
    return row


def conclusions(optimum: list[Row]) -> list[Row]:
    """What the rows say together. A schedule that fits into a budget fits into a larger one: so a
    bound holds for smaller budgets, too. ``is_proven``: the best schedule reaches the bound."""
    found: list[Row] = []
    for row in optimum:  # of each graph the largest budget first
        before = found[-1] if found and found[-1]["graph"] == row["graph"] else row
        bounds = [of["bound"] for of in (before, row)]
        concluded = dict(row)
        if None not in bounds:
            concluded["bound"] = max(bounds)
        if row.get("best") is not None:
            concluded["is_proven"] = row["best"] <= concluded["bound"] * (1 + CLOSE)
        found.append(concluded)
    return found


def _cheapest(graph: StaticGraph, schedules: Iterable[list[Step]], budget_bytes: int) -> int | None:
    costs = []
    for steps in schedules:
        measured = measure(graph, steps)
        if measured.peak_bytes <= budget_bytes:
            costs.append(measured.cost)
    return min(costs, default=None)


def schemes(graph: StaticGraph) -> list[Row]:
    """The points of the checkpointing schemes: those that no cheaper one undercuts in memory."""
    found: dict[str, Iterable[list[Step]]] = {}
    for where, candidates in (
        ("separators", checkpointing.separators(graph)),
        ("all nodes", range(graph.forward - 1)),
    ):
        if candidates:
            found[f"√n, {where}"] = [checkpointing.sqrt_n(graph, candidates)]
            found[f"Chen greedy, {where}"] = checkpointing.greedy(graph, candidates)
    if checkpointing.is_chain(graph):
        found["treeverse"] = checkpointing.treeverse(graph)
    rows = []
    for scheme, schedules in found.items():
        points = sorted(
            (measured.peak_bytes, measured.cost)
            for measured in (measure(graph, steps) for steps in schedules)
        )
        least = None
        for peak_bytes, cost in points:
            if least is None or cost < least:
                least = cost
                rows.append(
                    {
                        "graph": graph.name,
                        "scheme": scheme,
                        "fraction": round(peak_bytes / graph.peak_bytes, 4),
                        "overhead": round(cost / graph.cost, 6),
                    }
                )
    return rows


def distances(document: Document) -> list[Row]:
    """How far each heuristic is from the optimum: over the graphs and budgets where one is proven.
    Of a coarse log no optimum is known, so it does not count here."""
    proven = {
        (row["graph"], row["fraction"]): row["best"]
        for row in document["optimum"]
        if row.get("is_proven")
    }
    table = []
    for name in dict.fromkeys(row["heuristic"] for row in document["heuristics"]):
        cells = [
            (row["overhead"], proven[row["graph"], row["fraction"]])
            for row in document["heuristics"]
            if row["heuristic"] == name and (row["graph"], row["fraction"]) in proven
        ]
        over = [overhead / least - 1 for overhead, least in cells if overhead is not None]
        table.append(
            {
                "heuristic": name,
                "cells": len(cells),
                "failed": len(cells) - len(over),
                "near": sum(value <= NEAR for value in over),
                "mean": round(sum(over) / len(over), 4) if over else None,
                "worst": round(max(over), 4) if over else None,
            }
        )
    return table


# ---- drawing ----


def draw(document: Document) -> Mapping[str, Figure]:
    from bench.studies import optimum_pictures

    return optimum_pictures.pictures(document)


STUDY = Study(
    title="the distance to the optimum on static training graphs",
    source="Checkmate (Jain et al., MLSys 2020), figure 5; the optimum of all schedules is our own",
    compute=compute,
    draw=draw,
)
