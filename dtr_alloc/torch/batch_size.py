"""The largest batch that a budget trains at an acceptable cost."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import torch

from dtr_alloc.config import UNLIMITED_BYTES, ConfigError
from dtr_alloc.core import StateError
from dtr_alloc.torch.api import active, stats

_STEPS = 2
"""Steps of one size. The first may make an optimizer's state, for example."""
_PARTS = 8
"""The number of sizes between two powers of two that may be tried."""


def find_batch_size(
    try_batch: Callable[[int], object],
    start: int = 1,
    *,
    slowdown: float = 1.5,
    most: int | None = None,
) -> int:
    """The largest batch whose steps fit the budget without too much recomputation.

    Sizes are doubled from ``start`` on, or halved if that is too large; then those between the
    largest that fits and the smallest that does not are tried by bisection, in eighths::

        def try_batch(size):
            optimizer.zero_grad()
            loss_of(model, data[:size]).backward()
            optimizer.step()

        size = dtr_alloc.find_batch_size(try_batch, start=8, slowdown=1.3)

    The cost of operators decides, so other programs on the machine do not matter: a slowdown of 1.3
    means that three tenths of a step's own compute run again. Evictions and searches take more
    time; steps that are learned later recompute less. An out-of-memory error in a trial is
    forgotten, and the session goes on. Ranks would each find a size of their own: let one find it,
    without collectives.

    Args:
        try_batch: runs one step with a batch of so many samples; called twice for each size. It
            trains the model: make the model, or load its state, again afterwards. After an
            out-of-memory error, gradients are incomplete.
        start: the first size; 1 or more.
        slowdown: the most compute of a step, relative to its own operators; 1 (nothing is
            recomputed) or more. The setting ``thrash`` is a limit, too.
        most: the largest size; by default 1024 times ``start``.

    Raises torch.OutOfMemoryError if the smallest batch is too large, StateError without a session
    or with an unlimited budget, ConfigError for arguments out of their range, and all errors of
    ``try_batch``.
    """
    _check_arguments(start, slowdown, most)
    active()
    if stats()["budget_bytes"] == UNLIMITED_BYTES:
        raise StateError("find_batch_size: the budget is unlimited, so any batch would fit")
    most = 1024 * start if most is None else most
    forget_broken_backward = graph_forgetter()

    def fits(size: int) -> bool:
        try:
            ratio = _compute_ratio(try_batch, size)
        except torch.OutOfMemoryError:
            forget_broken_backward()
            if size == 1:
                raise
            ratio = math.nan  # no slowdown allows for it, math.inf neither
        gc.collect()  # the error is gone, and with it the frames that it came from
        if ratio > slowdown and size == 1:
            raise torch.OutOfMemoryError(
                f"dtr_alloc: find_batch_size: with a batch of 1 a step computes {ratio:.2f} times "
                f"its own operators, and slowdown is {slowdown}; raise the budget or slowdown"
            )
        return ratio <= slowdown

    size = start
    if fits(size):
        while size < most and fits(larger := min(2 * size, most)):
            size = larger
        if size == most:
            return size
        too_large = larger
    else:
        too_large = size
        while not fits(size := too_large // 2):
            too_large = size
    step = max(1, size // _PARTS)
    while too_large - size > step:
        middle = size + max(step, (too_large - size) // 2 // step * step)
        if fits(middle):
            size = middle
        else:
            too_large = middle
    return size


def _check_arguments(start: int, slowdown: float, most: int | None) -> None:
    for name, value in (("start", start), ("most", start if most is None else most)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"find_batch_size: {name}", value, "an int, 1 or more")
    if most is not None and most < start:
        raise ConfigError("find_batch_size: most", most, f"start, which is {start}, or more")
    if not (isinstance(slowdown, int | float) and slowdown >= 1):
        raise ConfigError("find_batch_size: slowdown", slowdown, "a number, 1 or more")


def _compute_ratio(try_batch: Callable[[int], object], size: int) -> float:
    """The compute of the last of some steps, relative to its own operators."""
    for _ in range(_STEPS):
        before = stats()
        try_batch(size)
    after = stats()
    again, own = (
        after[name] - before[name] for name in ("recompute_cost_seconds", "total_cost_seconds")
    )
    return 1 + again / own if own else 1.0


def graph_forgetter() -> Callable[[], None]:
    """Returns a function that frees the graphs of backward passes that raised on this thread, if
    they are younger than this call.

    PyTorch leaves their remaining tasks in this thread's queue, with the graph and its saved
    tensors. They are thrown away when they come to the front of the queue, which has the youngest
    first: a backward pass through the oldest graph removes all of them.
    """
    with torch.inference_mode(False), torch.enable_grad():
        oldest = torch.ones((), requires_grad=True) * 1

    return lambda: oldest.backward(retain_graph=True)
