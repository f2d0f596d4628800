"""A bound for every schedule of a static graph: what no policy can undercut.

Checkmate's optimum is not one: in a stage it computes each node once, in the order of the graph,
and a policy is free of that. The program here relaxes Checkmate's (checkmate.py, whose stages and
names it uses) to what is true of *any* schedule that static_schedule.py admits. ``R[t, k]``: k is
computed in stage t, once or more often; ``S[t, i]``: i is resident when the first computation of
stage t begins. The cost of all R is at most the schedule's.

1. ``R[t, k] <= R[t, i] + S[t, i]`` for each input i of k.
2. ``S[t+1, i] <= R[t, i] + S[t, i]``.
3. Node t is the last that stage t computes. While it is, its inputs, itself and all of ``S[t+1]``
   are resident, and fit into the budget.
4. What is in S[t], is not computed in stage t, and is read by t or in S[t+1], is resident
   throughout: ``P[t, i] >= S[t, i] - R[t, i]`` (and ``+ S[t+1, i] - 1`` if t does not read it).
   While k is recomputed in stage t, these (``Q[t]`` bytes) fit into the budget beside k and its
   inputs.

A solution of this program may be no schedule: results that stage t computes to keep are missing in
4 until t itself is computed. Where one is, carried out in the order of the graph, it is the optimum
of all schedules, and Checkmate's too. The program has a fraction of Checkmate's rows and is solved
in a fraction of its time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from bench.studies.checkmate import matrix, schedule_of, size_unit, stage_count
from bench.studies.integer_model import IntegerModel, Name
from bench.studies.static_graph import StaticGraph
from bench.studies.static_schedule import ScheduleError, Step, measure


@dataclass(frozen=True)
class Bound:
    """What is proven.

    Attributes:
        status: of the solver: ``optimal`` (nothing more can be got from this program), ``time
            limit``, or ``infeasible``: no schedule fits into the budget.
        cost: every schedule costs at least this; None if infeasible.
        steps: the solution, if it was found to be a schedule within the budget.
        seconds: of the solver.
    """

    status: str
    cost: float | None
    steps: list[Step] | None
    seconds: float


def bound(
    graph: StaticGraph, budget_bytes: int, seconds: float, at_most: float | None = None
) -> Bound:
    """What every schedule within the budget costs at least, as far as so much time can prove it.

    at_most: the cost of a schedule that is known.
    """
    if budget_bytes < graph.least_bytes:
        return Bound("infeasible", None, None, 0.0)
    model = IntegerModel()
    stages, count = stage_count(graph), len(graph)
    unit = size_unit(graph)
    sizes = [node.size_bytes / unit for node in graph.nodes]
    room = (budget_bytes - graph.pinned_bytes) // unit
    for t in range(stages + 1):
        for i in range(min(t, count)):
            wanted = t == stages and i in graph.outputs
            model.variable("S", t, i, lower=int(wanted), whole=True)
    for t in range(stages):
        for i in range(min(t + 1, count)):
            model.variable("R", t, i, lower=int(i == t), whole=True)
            if i < t:
                model.variable("P", t, i)
        model.variable("Q", t, upper=room)
    for t in range(stages):
        _stage(model, graph, t, sizes, room)
    objective: list[tuple[float, Name]] = [
        (graph.nodes[i].cost / graph.cost, ("R", t, i))
        for t in range(stages)
        for i in range(min(t + 1, count))
    ]
    rows = [] if at_most is None else [(objective, at_most / graph.cost * (1 + 1e-9))]
    found = model.solve(objective, seconds, rows=rows)
    cost = None if found.bound is None else max(found.bound, 1.0) * graph.cost
    if found.values is not None:
        computed, kept = (matrix(graph, kind, found.values, 0.5) for kind in "RS")
        steps = schedule_of(graph, computed, kept)
        with suppress(ScheduleError):
            measure(graph, steps, budget_bytes)
            return Bound(found.status, cost, steps, found.seconds)
    return Bound(found.status, cost, None, found.seconds)


def _stage(
    model: IntegerModel, graph: StaticGraph, t: int, sizes: list[float], room: float
) -> None:
    count = len(graph)
    earlier = range(min(t, count))
    read = set(graph.nodes[t].inputs) | {t} if t < count else set()
    for k in (*earlier, *([t] if t < count else [])):
        for i in graph.nodes[k].inputs:
            model.row([(1, ("R", t, k)), (-1, ("R", t, i)), (-1, ("S", t, i))], upper=0)
        model.row([(1, ("S", t + 1, k)), (-1, ("R", t, k)), (-1, ("S", t, k))], upper=0)
    kept: list[tuple[float, Name]] = [
        (sizes[i], ("S", t + 1, i)) for i in range(count) if i not in read
    ]
    model.row(kept, upper=room - sum(sizes[i] for i in read))
    for i in earlier:
        stays: list[tuple[float, Name]] = [(1, ("S", t, i)), (-1, ("R", t, i)), (-1, ("P", t, i))]
        if i in read:
            model.row(stays, upper=0)
        else:
            model.row([*stays, (1, ("S", t + 1, i))], upper=1)
    model.row([(-1, ("Q", t)), *((sizes[i], ("P", t, i)) for i in earlier)], lower=0, upper=0)
    for k in earlier:
        own = (*graph.nodes[k].inputs, k)
        terms: list[tuple[float, Name]] = [(sum(sizes[i] for i in own), ("R", t, k))]
        terms += [(1, ("Q", t)), *((-sizes[i], ("P", t, i)) for i in own)]
        model.row(terms, upper=room)
