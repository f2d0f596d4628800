"""The distance to the optimum: how much more than the best schedule a policy computes.

For static training graphs and a few budgets each: the optimum of all schedules with what is proven
of it, Checkmate's linear relaxation rounded, the checkpointing schemes of the literature, and every
heuristic through the simulator, all on the same counted bytes. Overhead is compute over the compute
without a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dtr_alloc.simulate import parse_heuristics, replay, thrash_limit
from dtr_alloc.studies import checkpointing, training_graphs
from dtr_alloc.studies.any_schedule import bound
from dtr_alloc.studies.checkmate import Checkmate
from dtr_alloc.studies.static_graph import StaticGraph, program
from dtr_alloc.studies.static_schedule import ScheduleError, Step, measure
from dtr_alloc.studies.study import Document, Options, Study, Unavailable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 30.0
"""For each program and budget."""
BUDGETS = 6
"""For each graph, evenly between the least that a schedule can need and the peak."""
HEURISTICS = (
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
"""The goal: so close to a proven optimum."""

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
SMOKE_GRAPHS: tuple[Callable[[], StaticGraph], ...] = (
    lambda: training_graphs.chain(5),
    lambda: training_graphs.unet(levels=1),
)


# ---- computing ----


def budgets(graph: StaticGraph, count: int) -> list[tuple[float, int]]:
    """Fractions of the peak, of two digits, and the bytes that they are; the largest first."""
    least = graph.least_bytes / graph.peak_bytes
    fractions = {round(least + (1 - least) * k / (count + 1), 2) for k in range(1, count + 1)}
    return [(f, int(graph.peak_bytes * f)) for f in sorted(fractions, reverse=True)]


def compute(options: Options) -> Document:
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        message = "integer programs need scipy: pip install 'dtr-alloc[studies]'"
        raise Unavailable(message) from None
    makers = SMOKE_GRAPHS if options.smoke else GRAPHS
    count, seconds = (2, 1.0) if options.smoke else (BUDGETS, SECONDS)
    document: Document = {
        "seconds_per_program": seconds,
        "graphs": [],
        "optimum": [],
        "schemes": [],
        "heuristics": [],
    }
    for make in makers:
        graph = make()
        document["graphs"].append(
            {
                "graph": graph.name,
                "nodes": len(graph),
                "forward": graph.forward,
                "peak_bytes": graph.peak_bytes,
                "least_bytes": graph.least_bytes,
                "pinned_bytes": graph.pinned_bytes,
            }
        )
        document["schemes"] += schemes(graph)
        checkmate = Checkmate(graph)
        for fraction, budget_bytes in budgets(graph, count):
            ran = heuristics(graph, fraction, budget_bytes)
            known = [row["compute"] for row in ran if row["status"] == "ok"]
            best = solve(checkmate, fraction, budget_bytes, seconds, min(known, default=None))
            document["heuristics"] += ran
            document["optimum"].append(best)
    document["distance"] = distances(document["heuristics"], document["optimum"])
    return document


def heuristics(graph: StaticGraph, fraction: float, budget_bytes: int) -> list[Row]:
    """A run of each heuristic through the simulator."""
    log = program(graph)
    rows = []
    for rule in parse_heuristics(HEURISTICS, "simrd"):
        limit = thrash_limit(graph.cost, THRASH)
        run = replay(log, rule, budget_bytes, semantics="simrd", max_recompute=limit)
        works = run.status == "ok"
        rows.append(
            {
                "graph": graph.name,
                "fraction": fraction,
                "heuristic": rule.name,
                "status": run.status,
                "compute": run.total_cost,
                "overhead": round(run.total_cost / graph.cost, 6) if works else None,
            }
        )
    return rows


def solve(
    checkmate: Checkmate, fraction: float, budget_bytes: int, seconds: float, known: int | None
) -> Row:
    """The optimum of one graph and budget: best schedule, proven bound, and how they were got.

    known: the cost of some schedule that fits.

    Checkmate's own program is solved only where the bound for any schedule left something open:
    elsewhere the schedule found is Checkmate's optimum as well.
    """
    graph = checkmate.graph
    proven = bound(graph, budget_bytes, seconds, known)
    costs = [measure(graph, proven.steps, budget_bytes).cost] if proven.steps else []
    status = form = None
    took = 0.0
    if proven.status != "infeasible" and not (proven.status == "optimal" and costs):
        solution = checkmate.optimum(budget_bytes, seconds, known)
        status, took = solution.status, solution.seconds
        form = solution.bound and round(solution.bound / graph.cost, 6)
        if solution.steps:
            costs.append(measure(graph, solution.steps, budget_bytes).cost)
    best = min(costs, default=None)
    rounded = _cheapest(graph, checkmate.rounded(budget_bytes, seconds), budget_bytes)
    return {
        "graph": graph.name,
        "fraction": fraction,
        "budget_bytes": budget_bytes,
        "status": proven.status,
        "best": best and round(best / graph.cost, 6),
        "bound": proven.cost and round(proven.cost / graph.cost, 6),
        "seconds": round(proven.seconds, 1),
        "checkmate_status": status,
        "checkmate_bound": form,
        "checkmate_seconds": round(took, 1),
        "rounded": rounded and round(rounded / graph.cost, 6),
    }


def _cheapest(
    graph: StaticGraph, schedules: Iterable[list[Step]], budget_bytes: int
) -> int | None:
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
        points = sorted((measured.peak_bytes, measured.cost) for measured in
                        (measure(graph, steps) for steps in schedules))
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


def reference(row: Row) -> float | None:
    """What a heuristic's overhead is held against: a proven optimum, or the proven bound; None if
    nothing fits into the budget or nothing is known."""
    found: float | None = row["bound"]
    return found


def distances(ran: list[Row], optimum: list[Row]) -> list[Row]:
    """How far each heuristic is from the proven bound: over all cells in which one schedule is
    known (found by a solver or by some heuristic)."""
    against = {(row["graph"], row["fraction"]): reference(row) for row in optimum}
    solved = {(row["graph"], row["fraction"]) for row in optimum if row["best"] is not None}
    solved |= {(row["graph"], row["fraction"]) for row in ran if row["status"] == "ok"}
    table = []
    for name in dict.fromkeys(row["heuristic"] for row in ran):
        own = [row for row in ran if row["heuristic"] == name]
        cells = [row for row in own if (row["graph"], row["fraction"]) in solved]
        over = []
        for row in cells:
            least = against[row["graph"], row["fraction"]]
            if row["status"] == "ok" and least is not None:
                over.append(row["overhead"] / least - 1)
        table.append(
            {
                "heuristic": name,
                "cells": len(cells),
                "failed": sum(row["status"] != "ok" for row in cells),
                "near": sum(value <= NEAR for value in over),
                "mean": round(sum(over) / len(over), 4) if over else None,
                "worst": round(max(over), 4) if over else None,
            }
        )
    return table


# ---- drawing ----


def draw(document: Document) -> Mapping[str, Figure]:
    from dtr_alloc.studies import optimum_pictures

    return optimum_pictures.pictures(document)


STUDY = Study(
    title="the distance to the optimum on static training graphs",
    source="Checkmate (Jain et al., MLSys 2020), figure 5; the optimum of all schedules is our own",
    compute=compute,
    draw=draw,
)
