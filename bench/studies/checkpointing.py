"""Schemes that choose checkpoints in the forward pass: those that DTR is compared with.

Each gives what is kept between stages, S of checkmate.py; the least recomputation that goes with it
makes it a schedule. A budget is no input of theirs: each scheme has a parameter, and each value of
it gives a schedule with some peak and some cost, to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.studies.checkmate import least_computed, schedule_of, stage_count
from bench.studies.static_graph import StaticGraph
from bench.studies.static_schedule import Step

if TYPE_CHECKING:
    from bench.studies.checkmate import Matrix

_GREEDY_STEPS = 60


def separators(graph: StaticGraph) -> list[int]:
    """Forward nodes that no edge of the forward pass jumps over: what follows one depends on the
    past through it alone (the articulation points of Checkmate, section 6.1). The last forward
    node, the loss, is none."""
    reach = 0
    found = []
    for index in range(graph.forward - 1):
        if reach <= index:
            found.append(index)
        reach = max([reach, *(user for user in graph.users[index] if user < graph.forward)])
    return found


def sqrt_n(graph: StaticGraph, candidates: Sequence[int]) -> list[Step]:
    """Chen et al. 2016, section 4.1: every k-th candidate is a checkpoint, k about the root of
    their number."""
    every = max(1, math.isqrt(len(candidates)))
    return _segments(graph, candidates[every - 1 :: every])


def greedy(graph: StaticGraph, candidates: Sequence[int]) -> Iterator[list[Step]]:
    """Chen et al. 2016, algorithm 3: a candidate is a checkpoint if what was computed since the
    last one exceeds b bytes. For values of b from the smallest node to the whole forward pass."""
    sizes = [node.size_bytes for node in graph.nodes[: graph.forward]]
    least, most = max(1, min(sizes)), sum(sizes)
    allowed = set(candidates)
    seen: set[tuple[int, ...]] = set()
    for step in range(_GREEDY_STEPS + 1):
        limit = least * (most / least) ** (step / _GREEDY_STEPS)
        since, chosen = 0, []
        for index, size in enumerate(sizes):
            since += size
            if index in allowed and since > limit:
                chosen.append(index)
                since = 0
        if tuple(chosen) not in seen:
            seen.add(tuple(chosen))
            yield _segments(graph, chosen)


def _empty(graph: StaticGraph) -> Matrix:
    """What every scheme keeps: gradients until their last use, outputs, and in the forward pass
    what it still reads."""
    import numpy as np

    stages = stage_count(graph)
    kept = np.zeros((stages + 1, len(graph)), bool)
    for index, users in enumerate(graph.users):
        if index < graph.forward:
            users = tuple(user for user in users if user < graph.forward)
        last = stages if index in graph.outputs else max(users, default=index)
        kept[index + 1 : last + 1, index] = True
    return kept


def _schedule(graph: StaticGraph, kept: Matrix) -> list[Step]:
    return schedule_of(graph, least_computed(graph, kept), kept)


def _segments(graph: StaticGraph, checkpoints: Sequence[int]) -> list[Step]:
    """Checkpoints are kept. The nodes between two of them are recomputed, all at once, when the
    backward pass first reads one, and kept until their last use; those behind the last are kept
    from the forward pass."""
    kept = _empty(graph)
    bounds = [-1, *checkpoints, graph.forward - 1]
    for before, until in pairwise(bounds):
        segment = range(before + 1, until + 1)
        uses = {index: _backward_uses(graph, index) for index in segment}
        read = [use for of in uses.values() for use in of]
        if not read:
            continue
        if before >= 0:
            kept[before + 1 : min(read) + 1, before] = True
        for index in segment:
            if uses[index]:
                is_kept = before == bounds[-2] or index in checkpoints
                start = index + 1 if is_kept else min(read) + 1
                kept[start : max(uses[index]) + 1, index] = True
    return _schedule(graph, kept)


def _backward_uses(graph: StaticGraph, index: int) -> list[int]:
    return [user for user in graph.users[index] if user >= graph.forward]


# ---- chains ----


def is_chain(graph: StaticGraph) -> bool:
    """Whether each forward node reads the one before it, and nothing else."""
    return graph.forward > 1 and all(
        node.inputs == ((index - 1,) if index else ())
        for index, node in enumerate(graph.nodes[: graph.forward])
    )


def treeverse(graph: StaticGraph) -> Iterator[list[Step]]:
    """Griewank & Walther's treeverse (ACM TOMS 26, 2000) for 0, 1, 2, ... checkpoints: the least
    recomputation, in steps of the chain, that so many checkpoints allow.

    Raises ValueError for a graph that is no chain.
    """
    if not is_chain(graph):
        raise ValueError(f"{graph.name!r} is no chain; treeverse is for chains")
    stages: dict[int, list[int]] = {}  # by the first forward node that it reads: backward nodes
    for index in range(graph.forward, len(graph)):
        read = [source for source in graph.nodes[index].inputs if source < graph.forward]
        if read:
            stages.setdefault(min(read), []).append(index)
    for slots in range(graph.forward + 1):
        kept = _empty(graph)
        for checkpoint, reversed_by in _checkpoints(-1, graph.forward - 1, slots):
            due = [stage for index in reversed_by for stage in stages.get(index, [])]
            if due:
                is_first = min(due) == graph.forward
                kept[checkpoint + 1 if is_first else min(due) + 1 : max(due) + 1, checkpoint] = True
        yield _schedule(graph, kept)


def _checkpoints(start: int, last: int, slots: int) -> Iterator[tuple[int, range]]:
    """The checkpoints behind ``start``, each with the nodes for whose reversal it is kept."""
    length = last - start + 1  # start itself needs no step
    if slots == 0 or length < 2:
        return
    ahead = _split(length, slots)
    checkpoint = start + ahead
    yield checkpoint, range(checkpoint, last + 1)
    yield from _checkpoints(checkpoint, last, slots - 1)
    yield from _checkpoints(start, checkpoint - 1, slots)


@cache
def _steps(length: int, slots: int) -> int:
    """The steps ahead that reversing so many nodes takes, of which the first is there."""
    if slots == 0 or length < 2:
        return length * (length - 1) // 2
    ahead = _split(length, slots)
    return ahead + _steps(length - ahead, slots - 1) + _steps(ahead, slots)


@cache
def _split(length: int, slots: int) -> int:
    """How far ahead of the start the next checkpoint is best."""
    return min(
        range(1, length),
        key=lambda ahead: ahead + _steps(length - ahead, slots - 1) + _steps(ahead, slots),
    )
