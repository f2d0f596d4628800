"""What static schedules need on the linear network (linear_network.py), as exact counts.

Both count the operators that are repeated: all that are executed, less the 2 * layers of a run
without a limit. A budget is a number of tensors. Of ``layers`` gradients all but the last layer's,
which has no arguments, are steps to be reversed: the one of layer i needs the state t_{i-1}.
"""

from __future__ import annotations

import math


def treeverse(layers: int, budget: int) -> int | None:
    """The fewest repeated operators of any schedule; None if none fits.

    Griewank and Walther (Algorithm 799: revolve, 2000, section 2) count the forward steps that
    reversing l steps takes with s checkpoints: r l - beta(s + 1, r - 1), where beta(s, r) is the
    binomial coefficient of s + r over s, and r the least with beta(s, r) >= l. Their checkpoints
    include the input, which costs us nothing, and they do not count the state that is computed,
    that from which it is, and the gradient, which cost us three tensors: s = budget - 2.
    Exhaustive search gives the same numbers (tests/studies/test_chain_bounds.py).
    """
    steps = layers - 1
    checkpoints = budget - 2
    if checkpoints < 1:
        return None
    repetitions = 0
    while math.comb(checkpoints + repetitions, checkpoints) < steps:
        repetitions += 1
    # beta(s + 1, r - 1) is the binomial coefficient of s + r over s + 1
    forward = repetitions * steps - math.comb(checkpoints + repetitions, checkpoints + 1)
    return forward - (steps - 1)


def chen_peak(layers: int, segment: int) -> int:
    """The most tensors that Chen et al.'s segments of this length hold at once."""
    states = layers - 2
    segments = -(-states // segment)
    last = states - (segments - 1) * segment
    # Forward: the last state of each segment but the last, all of the last segment, and the two
    # layers whose outputs no gradient needs. Backward, in the last but one: the checkpoints before
    # its own, the segment, a gradient.
    forward = (segments - 1) + last + 2
    return forward if segments == 1 else max(forward, (segments - 1) + segment)


def chen(layers: int, budget: int) -> int | None:
    """The repeated operators of Chen et al.'s scheme (Training deep nets with sublinear memory
    cost, 2016, section 4): the layers in segments of one length, whose last states are kept while
    the others are computed once more. The length is the best of those that fit; about
    sqrt(layers) for a budget of 2 sqrt(layers). None if none fits.

    The last segment's states are kept from the forward pass.
    """
    states = layers - 2
    counts = [
        (-(-states // segment) - 1) * (segment - 1)
        for segment in range(1, states + 1)
        if chen_peak(layers, segment) <= budget
    ]
    return min(counts, default=None)
