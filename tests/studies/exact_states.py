"""The cheapest schedule of a tiny graph, by searching all states: nothing is assumed.

A state is how many nodes were computed for the first time, and which are resident. Dijkstra's
algorithm over all states finds the least cost of any schedule that static_schedule.py admits: a
node may be computed as often as one likes, recomputations stand in any order. There are up to
nodes * 2**nodes states, so this is for graphs of a dozen nodes: to check other solvers.
"""

from __future__ import annotations

import heapq

from bench.studies.static_graph import StaticGraph

MOST_NODES = 16


def least_cost(graph: StaticGraph, budget_bytes: int) -> int | None:
    """The cost of the cheapest schedule within the budget; None if there is no schedule.

    Raises ValueError for a graph of more than MOST_NODES nodes.
    """
    count = len(graph)
    if count > MOST_NODES:
        raise ValueError(f"{graph.name!r} has {count} nodes; allowed: at most {MOST_NODES}")
    reads = [sum(1 << source for source in node.inputs) for node in graph.nodes]
    sizes = [node.size_bytes for node in graph.nodes]
    wanted = sum(1 << index for index in graph.outputs)
    room = budget_bytes - graph.pinned_bytes
    used = [0] * (1 << count)  # by the set that is resident
    for resident in range(1, 1 << count):
        low = resident & -resident
        used[resident] = used[resident ^ low] + sizes[low.bit_length() - 1]
    best = {(0, 0): 0}
    queue = [(0, 0, 0)]
    while queue:
        cost, first, resident = heapq.heappop(queue)
        if cost > best[first, resident]:
            continue
        if first == count and resident & wanted == wanted:
            return cost
        following = [
            (cost, first, resident ^ 1 << index)
            for index in range(count)
            if resident >> index & 1  # free it
        ]
        following += [
            (cost + graph.nodes[index].cost, first + (index == first), resident | 1 << index)
            for index in range(min(first + 1, count))
            if not resident >> index & 1
            and resident & reads[index] == reads[index]
            and used[resident] + sizes[index] <= room
        ]
        for total, next_first, next_resident in following:
            state = (next_first, next_resident)
            if total < best.get(state, total + 1):
                best[state] = total
                heapq.heappush(queue, (total, *state))
    return None
