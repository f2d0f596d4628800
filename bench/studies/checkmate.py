"""Optimal rematerialization as an integer program: Checkmate (Jain et al., MLSys 2020).

Time is cut into *stages*; in stage t node t is computed for the first time, after whatever is
recomputed for it ("frontier-advancing", section 4.6). In a stage each node is computed at most
once, in the order of the graph. The variables (sections 4.3 and 4.4), for nodes i, k <= t:

* ``R[t, i]``: i is computed in stage t. ``R[t, t] = 1``.
* ``S[t, i]``: i is resident when stage t begins.
* ``FREE[t, k, i]``: in stage t, i is freed right after k was computed, which reads it or is it.
* ``U[t, k]``: the memory in use in stage t right after k's output was allocated.

Minimize the cost of all R. Rules:

1. ``R[t, k] <= R[t, i] + S[t, i]`` for each input i of k.
2. ``S[t+1, i] <= R[t, i] + S[t, i]``; nothing is resident when stage 0 begins.
3. ``U[t, k] = U[t, k-1] - (sizes freed after k-1) + size(k) R[t, k] <= budget``, from
   ``U[t, -1] = (pinned) + (sizes of S[t])``.
4. A node is freed only after its last use in the stage, and is then gone:
   ``FREE[t, k, i] <= R[t, k]``; for each later user j of i: ``R[t, j] + (FREE[t, k, i] summed over
   k < j) <= 1``; ``S[t+1, i] + (FREE[t, k, i] summed over k) <= R[t, i] + S[t, i]``.
5. ``R[t, i] + S[t, i] <= 1``: what is resident is not computed.

The paper's program defines FREE by two inequalities with a big constant; rule 4 says the same with
sums, and its linear relaxation is tighter. FREE may be continuous: given R and S nothing but 0 and
1 is best. If the last node is not the only output, a stage without a new node follows the last
one, and what is to be resident behind it are the outputs.

Memory is counted as the simulator counts it: an output is allocated while all inputs and all that
is kept stay resident. What Checkmate cannot express, and the simulator can do: compute a node twice
in one stage, or in another order than the graph's. So its optimum is no bound for the simulator;
``any_schedule.py`` gives one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.studies.integer_model import IntegerModel, Name, Terms
from bench.studies.static_graph import StaticGraph
from bench.studies.static_schedule import Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.bool_]
    """(stages + 1, nodes)."""

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Those that deterministic rounding tries, as Checkmate's own sweep does."""


@dataclass(frozen=True)
class Solution:
    """What the solver says of one graph and budget.

    Attributes:
        status: ``optimal``, ``infeasible`` or ``time limit``.
        steps: the best schedule found, or None.
        bound: no schedule of this form costs less; None if infeasible.
        seconds: of the solver.
    """

    status: str
    steps: list[Step] | None
    bound: float | None
    seconds: float


def stage_count(graph: StaticGraph) -> int:
    """One stage for each node, and a last one if outputs may have to be recomputed."""
    return len(graph) + (graph.outputs != {len(graph) - 1})


def size_unit(graph: StaticGraph) -> int:
    """The greatest common divisor of all sizes. Programs count in it, so that the solver sees small
    numbers, and "fits" means the same for it and for integers."""
    return math.gcd(*(node.size_bytes for node in graph.nodes)) or 1


class Checkmate:
    """Checkmate's program for a graph, to be solved for one budget or several."""

    def __init__(self, graph: StaticGraph) -> None:
        self.graph = graph
        self._stages = stage_count(graph)
        self._unit = size_unit(graph)
        self._model = IntegerModel()
        self._variables()
        for t in range(self._stages):
            for k in self._computable(t):
                self._use_and_keep(t, k)
                self._memory(t, k)

    def _computable(self, stage: int) -> range:
        return range(min(stage + 1, len(self.graph)))

    def _variables(self) -> None:
        graph, model, stages = self.graph, self._model, self._stages
        for t in range(stages + 1):
            for i in range(min(t, len(graph))):
                wanted = t == stages and i in graph.outputs
                model.variable("S", t, i, lower=int(wanted), whole=True)
            if t < stages:
                for i in self._computable(t):
                    model.variable("R", t, i, lower=int(i == t), whole=True)
        for t in range(stages):
            for k in self._computable(t):
                model.variable("U", t, k, upper=math.inf)
                for i in (*graph.nodes[k].inputs, k):
                    model.variable("FREE", t, k, i)

    def _use_and_keep(self, t: int, k: int) -> None:
        row, node = self._model.row, self.graph.nodes[k]
        for i in node.inputs:
            row([(1, ("R", t, k)), (-1, ("R", t, i)), (-1, ("S", t, i))], upper=0)
        row([(1, ("R", t, k)), (1, ("S", t, k))], upper=1)
        for i in (*node.inputs, k):
            row([(1, ("FREE", t, k, i)), (-1, ("R", t, k))], upper=0)
        frees: list[tuple[float, Name]] = [(1, ("FREE", t, k, k))]
        for j in self.graph.users[k]:
            if j > t:
                break
            row([*frees, (1, ("R", t, j))], upper=1)
            frees.append((1, ("FREE", t, j, k)))
        there: Terms = [(-1, ("R", t, k)), (-1, ("S", t, k))]
        row([*frees, (1, ("S", t + 1, k)), *there], upper=0)

    def _memory(self, t: int, k: int) -> None:
        nodes = self.graph.nodes
        sizes = [node.size_bytes / self._unit for node in nodes]
        terms: list[tuple[float, Name]] = [(1, ("U", t, k)), (-sizes[k], ("R", t, k))]
        if k == 0:
            terms += [(-sizes[i], ("S", t, i)) for i in range(len(nodes))]
        else:
            terms.append((-1, ("U", t, k - 1)))
            terms += [(sizes[i], ("FREE", t, k - 1, i)) for i in (*nodes[k - 1].inputs, k - 1)]
        self._model.row(terms, lower=0, upper=0)

    def _objective(self) -> list[tuple[float, Name]]:
        nodes, total = self.graph.nodes, self.graph.cost
        return [
            (nodes[i].cost / total, ("R", t, i))
            for t in range(self._stages)
            for i in self._computable(t)
        ]

    def _limits(self, budget_bytes: int, at_most: float | None) -> list[tuple[Terms, float]]:
        room = (budget_bytes - self.graph.pinned_bytes) // self._unit
        rows: list[tuple[Terms, float]] = [
            ([(1, ("U", t, k))], room) for t in range(self._stages) for k in self._computable(t)
        ]
        if at_most is not None:
            rows.append((self._objective(), at_most / self.graph.cost * (1 + 1e-9)))
        return rows

    def optimum(self, budget_bytes: int, seconds: float, at_most: float | None = None) -> Solution:
        """The cheapest schedule within the budget, or the best that is found in so much time.

        at_most: a cost; what costs more is not looked for. ``infeasible`` then says that every
        schedule of this form costs more.
        """
        if budget_bytes < self.graph.least_bytes:
            return Solution("infeasible", None, None, 0.0)
        limits = self._limits(budget_bytes, at_most)
        found = self._model.solve(self._objective(), seconds, rows=limits)
        if found.bound is None:
            return Solution(found.status, None, None, found.seconds)
        bound = max(found.bound, 1.0) * self.graph.cost
        steps = None
        if found.values is not None:
            computed, kept = (matrix(self.graph, kind, found.values, 0.5) for kind in "RS")
            steps = schedule_of(self.graph, computed, kept)
        return Solution(found.status, steps, bound, found.seconds)

    def rounded(self, budget_bytes: int, seconds: float) -> list[list[Step]]:
        """Schedules rounded from the linear relaxation; none if it is infeasible or takes too long.

        Two-phase rounding (section 5): S is rounded at a threshold, then R is the least that goes
        with it. Whether a schedule fits into the budget is for the caller to measure.
        """
        if budget_bytes < self.graph.least_bytes:
            return []
        limits = self._limits(budget_bytes, None)
        found = self._model.solve(self._objective(), seconds, rows=limits, whole=False)
        if found.values is None:
            return []
        schedules = []
        for threshold in THRESHOLDS:
            kept = matrix(self.graph, "S", found.values, threshold)
            schedules.append(schedule_of(self.graph, least_computed(self.graph, kept), kept))
        return schedules


def matrix(graph: StaticGraph, kind: str, values: Mapping[Name, float], threshold: float) -> Matrix:
    """Which of the variables ``(kind, stage, node)`` are at least the threshold: (stages + 1,
    nodes)."""
    import numpy as np

    found = np.zeros((stage_count(graph) + 1, len(graph)), bool)
    for name, value in values.items():
        if name[0] == kind:
            found[name[1], name[2]] = value >= threshold
    return found


def least_computed(graph: StaticGraph, kept: Matrix) -> Matrix:
    """The least R for an S, both (stages + 1, nodes): what must be computed in each stage so that
    its node can be, and that what the next stage keeps is there."""
    import numpy as np

    computed = np.zeros_like(kept)
    for t in range(len(kept) - 1):
        wanted = kept[t + 1] & ~kept[t]
        if t < len(graph):
            wanted[t] = True
        for k in reversed(range(len(graph))):
            if wanted[k]:
                computed[t, k] = True
                for i in graph.nodes[k].inputs:
                    if not kept[t, i]:
                        wanted[i] = True
    return computed


def schedule_of(graph: StaticGraph, computed: Matrix, kept: Matrix) -> list[Step]:
    """The steps of R and S, (stages + 1, nodes) each: everything is freed as soon as the rest of
    its stage does not read it and the next one does not keep it."""
    steps: list[Step] = []
    resident: set[int] = set()

    def free(wanted: set[int]) -> None:
        for index in sorted(resident - wanted):
            steps.append(("free", index))
            resident.remove(index)

    for t in range(len(kept) - 1):
        due = [k for k in range(len(graph)) if computed[t, k] and k not in resident]
        keep = {i for i in range(len(graph)) if kept[t + 1, i]}
        last: dict[int, int] = defaultdict(lambda: -1)
        for at, k in enumerate(due):
            for i in (*graph.nodes[k].inputs, k):
                last[i] = at
        free(keep | set(last))
        for at, k in enumerate(due):
            steps.append(("compute", k))
            resident.add(k)
            free(keep | {i for i, until in last.items() if until > at})
    return steps
