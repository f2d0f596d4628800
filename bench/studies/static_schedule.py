"""Schedules of a static graph, and what they cost: checked step by step, whoever made them.

A schedule is a list of steps: compute a node, or free one. The rules, in the order of a step:

1. A node is computed only while all its inputs are resident and it is not resident itself.
2. Its output is allocated while everything resident stays: pinned + resident + output <= budget.
3. What is freed was resident.
4. Nodes are computed for the *first* time in the order of the graph: a schedule recomputes, it
   does not reorder the program.
5. At the end each node was computed, and the outputs are resident.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bench.studies.static_graph import StaticGraph

Step = tuple[Literal["compute", "free"], int]
"""What is done to which node."""


class ScheduleError(ValueError):
    """A schedule breaks a rule: the message names the step, the node and the rule."""


@dataclass(frozen=True)
class Measured:
    """What a schedule takes.

    Attributes:
        cost: of all that it computes.
        peak_bytes: the most memory at a time, what is pinned included.
        computed: how many operators it ran.
    """

    cost: int
    peak_bytes: int
    computed: int


def measure(graph: StaticGraph, steps: Iterable[Step], budget_bytes: int | None = None) -> Measured:
    """Runs a schedule on counted bytes. Raises ScheduleError where it breaks a rule; the budget
    may be left open."""
    nodes = graph.nodes
    resident: set[int] = set()
    now = peak = graph.pinned_bytes
    cost = computed = 0
    first = 0  # the node that is to be computed next for the first time
    for at, (kind, index) in enumerate(steps):

        def broken(why: str, at: int = at, kind: str = kind, index: int = index) -> ScheduleError:
            return ScheduleError(f"{graph.name!r}, step {at} ({kind} {index}): {why}")

        if not 0 <= index < len(nodes):
            raise broken(f"there are {len(nodes)} nodes")
        node = nodes[index]
        if kind == "free":
            if index not in resident:
                raise broken("it is not resident")
            resident.remove(index)
            now -= node.size_bytes
            continue
        missing = [source for source in node.inputs if source not in resident]
        if missing:
            raise broken(f"its inputs {missing} are not resident")
        if index in resident:
            raise broken("it is resident")
        if index > first:
            raise broken(f"node {first} comes before it and was never computed")
        first += index == first
        now += node.size_bytes
        peak = max(peak, now)
        if budget_bytes is not None and now > budget_bytes:
            raise broken(f"it takes {now} bytes; the budget is {budget_bytes}")
        resident.add(index)
        cost += node.cost
        computed += 1
    if first < len(nodes):
        raise ScheduleError(f"{graph.name!r}: node {first} is never computed")
    if not graph.outputs <= resident:
        lost = sorted(graph.outputs - resident)
        raise ScheduleError(f"{graph.name!r}: the outputs {lost} are not resident at the end")
    return Measured(cost, peak, computed)
