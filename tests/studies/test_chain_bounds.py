"""The counts of static schedules, against schedules that are searched for or written out.

They need nothing.
"""

import heapq
import math

import pytest

from bench.studies import chain_bounds


def linear_operators(layers):
    """The arguments of each operator of the linear network: layer i's forward tensor is i, its
    gradient 2 * layers - 1 - i."""
    operators = [[i - 1] if i else [] for i in range(layers)]
    operators.append([])
    for i in reversed(range(layers - 1)):
        behind = len(operators) - 1
        operators.append([i - 1, behind] if i else [behind])
    return operators


def fewest_repeated(operators, budget):
    """Shortest path over (operators executed so far, tensors in memory); None if there is none."""
    start = (0, frozenset())
    found = {start: 0}
    queue = [(0, 0, start)]
    pushed = 0
    while queue:
        repeated, _, state = heapq.heappop(queue)
        if found[state] < repeated:
            continue
        done, kept = state
        if done == len(operators):
            return repeated
        steps = [(0, (done, kept - {tensor})) for tensor in kept]
        if len(kept) < budget:
            ready = [t for t in range(done + 1) if t not in kept and kept.issuperset(operators[t])]
            steps += [(int(t < done), (max(done, t + 1), kept | {t})) for t in ready]
        for cost, after in steps:
            if repeated + cost < found.get(after, repeated + cost + 1):
                found[after] = repeated + cost
                pushed += 1
                heapq.heappush(queue, (repeated + cost, pushed, after))
    return None


@pytest.mark.parametrize("budget", [2, 3, 4, 5])
def test_treeverse_is_the_least_that_any_schedule_repeats(budget):
    for layers in range(4, 12 if budget < 5 else 10):
        least = fewest_repeated(linear_operators(layers), budget)
        assert chain_bounds.treeverse(layers, budget) == least, layers


def follow_segments(layers, segment):
    """Chen et al.'s schedule, executed: how many operators it repeats, and its peak."""
    operators = linear_operators(layers)
    states = layers - 2
    first_of_last = (states - 1) // segment * segment
    checkpoints = {tensor for tensor in range(first_of_last) if tensor % segment == segment - 1}
    memory, peak, executed = set(), 0, 0

    def execute(tensor):
        nonlocal peak, executed
        assert memory.issuperset(operators[tensor])
        memory.add(tensor)
        peak = max(peak, len(memory))
        executed += 1

    for i in range(layers):
        execute(i)
        if 0 < i <= first_of_last and i - 1 not in checkpoints:
            memory.discard(i - 1)
    memory -= {layers - 1, layers - 2}
    execute(layers)
    for i in reversed(range(layers - 1)):
        gradient = 2 * layers - 1 - i
        if i and i - 1 not in memory:
            # The checkpoint of this segment was used, and freed, by the gradient before.
            for state in range((i - 1) // segment * segment, i):
                execute(state)
        execute(gradient)
        memory -= {gradient - 1, i - 1}
    assert memory == {2 * layers - 1}
    return executed - 2 * layers, peak


@pytest.mark.parametrize("layers", [4, 9, 16, 30, 64, 100])
def test_segments_repeat_and_hold_what_is_said(layers):
    for segment in range(1, layers - 1):
        repeated, peak = follow_segments(layers, segment)
        segments = -(-(layers - 2) // segment)
        assert repeated == (segments - 1) * (segment - 1), segment
        assert peak == chain_bounds.chen_peak(layers, segment), segment


def test_segments_of_sqrt_n_fit_into_twice_that_and_cost_one_more_forward_pass():
    for layers in (16, 100, 1024, 8192):
        budget = math.isqrt(4 * layers - 1) + 1
        repeated = chain_bounds.chen(layers, budget)
        assert chain_bounds.treeverse(layers, budget) <= repeated <= layers
    assert chain_bounds.chen(1024, 10) is None
