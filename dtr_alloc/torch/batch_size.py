"""The largest batch that a budget trains at a bearable price."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import torch

from dtr_alloc.config import UNLIMITED_BYTES, ConfigError
from dtr_alloc.core import StateError
from dtr_alloc.torch.api import active, stats

_STEPS = 2
"""The first one at a size may make what later ones find, such as an optimizer's state."""
_PARTS = 8
"""How finely the sizes between two powers of two are tried."""


def find_batch_size(
    try_batch: Callable[[int], object],
    start: int = 1,
    *,
    slowdown: float = 1.5,
    most: int | None = None,
) -> int:
    """The largest batch whose steps fit the budget without computing too much again.

    Sizes are doubled from ``start`` on, or halved if that is too large, and those between the
    largest that fits and the smallest that does not are tried by bisection, in eighths::

        def try_batch(size):
            optimizer.zero_grad()
            loss_of(model, data[:size]).backward()
            optimizer.step()

        size = dtr_alloc.find_batch_size(try_batch, start=8, slowdown=1.3)

    What decides is the cost of the operators, so it does not matter what else the machine does: a
    slowdown of 1.3 means that three tenths of a step's own compute run again. Evicting and choosing
    take time beyond that; steps that are learned later run less again. What runs out of memory in a
    trial is forgotten, and the session goes on. Ranks would each find a size of their own: let one
    find it, without collectives.

    Args:
        try_batch: runs one step with a batch of so many samples; called twice for each size. It
            trains what it trains: make the model, or load its state, again afterwards. Gradients of
            a step that ran out of memory are left in part.
        start: the first size; 1 or more.
        slowdown: how many times the compute of its own operators a step may take; 1 (nothing is
            computed again) or more. Above the setting ``thrash`` that one decides.
        most: the largest size; by default 1024 times ``start``.

    Raises torch.OutOfMemoryError if the smallest batch is too large, StateError without a session
    or if its budget is unlimited, ConfigError for arguments out of their range, and whatever else
    ``try_batch`` raises.
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
    """What the last of some steps computed, over what its own operators did."""
    for _ in range(_STEPS):
        before = stats()
        try_batch(size)
    after = stats()
    again, own = (
        after[name] - before[name] for name in ("recompute_cost_seconds", "total_cost_seconds")
    )
    return 1 + again / own if own else 1.0


def graph_forgetter() -> Callable[[], None]:
    """What frees the graphs of backwards that raised on this thread, if they are younger than this
    call.

    PyTorch leaves the tasks that it had not run in this thread's queue, and with them the graph
    and what it saved. They are thrown away when they come to the front of the queue, where the
    youngest stand: so a backward through the oldest graph there is makes room for all of them.
    """
    with torch.inference_mode(False), torch.enable_grad():
        oldest = torch.ones((), requires_grad=True) * 1

    return lambda: oldest.backward(retain_graph=True)
