"""Train a job without dtr_alloc, under it, and under less and less of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

import dtr_alloc
from bench.models import JOBS
from dtr_alloc.torch.batch_size import graph_forgetter

forget_broken_backward = graph_forgetter()


@dataclass(frozen=True)
class Run:
    """What a run under dtr_alloc left behind."""

    state: dict[str, Tensor]
    stats: dict[str, Any]
    idle_bytes: int
    """The most that stayed allocated between two steps."""
    added: dict[str, Any]
    """What the run added to each number in stats()."""
    step_seconds: float
    """The fastest step after the first."""

    @property
    def evictions(self) -> int:
        return self.added["evictions"]

    @property
    def rematerializations(self) -> int:
        return self.added["rematerializations"]

    @property
    def peak_bytes(self) -> int:
        return self.stats["peak_allocated_bytes"]


@dataclass(frozen=True)
class Profile:
    """What a job holds without a budget; activation memory is what a step adds and gives back."""

    idle_bytes: int
    peak_bytes: int

    @property
    def activation_bytes(self) -> int:
        return self.peak_bytes - self.idle_bytes

    def budget(self, fraction: float) -> int:
        """The budget in bytes that leaves this fraction of the activation memory."""
        return self.idle_bytes + int(fraction * self.activation_bytes)

    def fraction(self, budget_bytes: int) -> float:
        """The inverse of `budget`."""
        return (budget_bytes - self.idle_bytes) / self.activation_bytes


def in_own_process(run: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns, in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(run, arguments)


def train_plain(name: str, steps: int, **options: Any) -> dict[str, Tensor]:
    """The job's state after `steps` steps without dtr_alloc."""
    job = JOBS[name](**options)
    for i in range(steps):
        job.step(i)
    return job.state()


class Thrashing(RuntimeError):
    """A run repeated more operators than it was allowed to: the budget works in principle."""


@contextmanager
def limited_repeats(most: int | None) -> Iterator[None]:
    """Ends a run with Thrashing after so many rematerializations; None: no limit."""
    if most is None:
        yield
        return
    dtr_alloc.limit_rematerializations(most)
    try:
        yield
    except dtr_alloc.StateError as error:
        if "limit_rematerializations" not in str(error):
            raise
        raise Thrashing(f"more than {most} rematerializations") from error
    finally:
        dtr_alloc.limit_rematerializations(None)


def train(
    name: str,
    budget: int | str,
    steps: int,
    check: bool = False,
    most_repeats: int | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train under a budget; `check` verifies every structure after every step. `settings` are
    further ones of the session, `options` the job's.

    Raises torch.OutOfMemoryError when the budget is too small, Thrashing after `most_repeats`
    rematerializations.
    """
    device = options.get("device", "cpu")
    gc.collect()
    session = dtr_alloc.session(budget=budget, device=device, **(settings or {}))
    with session, limited_repeats(most_repeats):
        dtr_alloc.reset_peak_stats()
        before = dtr_alloc.stats()
        job = JOBS[name](**options)
        idle, fastest = 0, float("inf")
        # Of the thread where it is the processor that works: other jobs do not count.
        read_clock = time.perf_counter if device == "cuda" else time.thread_time
        try:
            for i in range(steps):
                start = read_clock()
                job.step(i)
                if device == "cuda":
                    torch.cuda.synchronize()
                if i:
                    fastest = min(fastest, read_clock() - start)
                if check:
                    dtr_alloc.check_invariants()
                idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
        except BaseException:
            job.drop_gradients()
            forget_broken_backward()
            raise
        after = dtr_alloc.stats()
    return Run(
        state=job.state(),
        stats=after,
        idle_bytes=idle,
        added={name: value - before[name] for name, value in after.items() if name != "learning"},
        step_seconds=fastest,
    )


def try_train(name: str, budget: int | str, steps: int, **options: Any) -> Run | None:
    """As `train`; None when the budget is too small. Thrashing passes through."""
    try:
        return train(name, budget, steps, **options)
    except torch.OutOfMemoryError:
        return None


def profile(name: str, steps: int, **options: Any) -> tuple[Profile, Run]:
    """The job's memory with dtr_alloc on and nothing evicted."""
    run = train(name, "unlimited", steps, **options)
    return Profile(run.idle_bytes, run.peak_bytes), run
