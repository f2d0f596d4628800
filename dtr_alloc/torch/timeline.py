"""The course of a session: counters at the ends of its optimizer's steps and, for the page of a run
(dtr_alloc/advise/page.py), at moments in between.

Counters are totals, so every second row can be left out when there are many: a session keeps at
most MOST rows of a kind.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dtr_alloc.core import check, ffi, lib, listed
from dtr_alloc.live import Live
from dtr_alloc.records import Moment, Rows, Span
from dtr_alloc.torch.kept import fullest, repeats
from dtr_alloc.torch.session import Session

MOST = 1024
_FIRST_INTERVAL = 0.01
"""Seconds between two moments, at first."""
_PAUSE = 256
"""The session lasts at least so many times as long as the processor time of the sampling thread."""
_IN_USE = 1
"""The state of a block in use (dtr_block)."""
_OF_ENGINE = Moment._fields[Moment._fields.index("evictions") :]
"""The fields of a moment that are counters of the engine."""
_SCATTERED = 1 / 64
"""The heap is recorded again when the free bytes outside of its largest free block grow by so
much."""


def _recent(before: Moment, now: Moment) -> dict[str, Any]:
    """The display of a running job: its first device's pool, and the steps since the last
    display."""
    return {
        "steps": now.steps,
        "step_seconds": now.seconds_a_step(before) if now.steps > before.steps else 0.0,
        "budget_bytes": now.budget_bytes,
        "allocated_bytes": now.allocated_bytes,
        "recompute_share": now.recompute_share(before),
        "evictions": now.evictions - before.evictions,
        "is_planned": now.is_planned(before),
    }


class Timeline(Rows):
    """The rows of one session, and its display.

    Args:
        samples: whether a thread takes moments between steps, and accounts are kept of memory and
            recomputation.
        progress: whether lines on stderr show it (dtr_alloc/live.py).
    """

    def __init__(self, runtime: Session, samples: bool, progress: bool) -> None:
        super().__init__()
        self._runtime = runtime
        self._engine = ffi.new("dtr_engine_stats *")
        self._pools = ffi.new("dtr_pool_stats []", len(runtime.pools.handles))
        self._lock = threading.Lock()
        self._begin = time.perf_counter()
        self._end: float | None = None
        self._stride = 1
        self._ended = threading.Event()
        self.step_count = 0
        self._worst_bytes = 0
        self._samples = samples
        self._live = Live(progress)
        self._shown = self._moment()
        self._hook: Any = None
        self._thread = threading.Thread(target=self._sample, daemon=True, name="dtr_alloc timeline")

    def start(self) -> None:
        """Begins the rows. After an error, stop() undoes it."""
        self._live.open()
        self._hook = register_optimizer_step_post_hook(lambda *_: self._step_ended())
        self._show(self._shown)
        if self._samples:
            self._thread.start()

    def stop(self) -> None:
        """Ends the rows, which stay. It may be called again, and without a start()."""
        self.abandon()
        self._live.close()
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        if self._end is None:
            self._end = time.perf_counter()
            if self._samples:
                self.fullest, self.repeats = fullest(self._runtime), repeats(self._runtime)

    def abandon(self) -> None:
        """In a forked child, which has no sampling thread."""
        if self._hook is not None:
            self._hook.remove()

    @property
    def seconds(self) -> float:
        """Since the session began, until it ended."""
        return (self._end or time.perf_counter()) - self._begin

    @property
    def step_seconds(self) -> float:
        """The median of the time between the ends of two steps; 0 before there are two."""
        times = [after.seconds_a_step(before) for before, after in pairwise(self.steps)]
        return statistics.median(times) if times else 0.0

    def _step_ended(self) -> None:
        # Not in a graph: a step that is compiled is not counted.
        if torch.compiler.is_compiling():
            return
        with self._lock:  # steps may end on several threads at once
            self.step_count += 1
            is_kept, is_shown = self.step_count % self._stride == 0, self._live.is_due()
            if not (is_kept or is_shown):
                return
            moment = self._moment()
            if is_kept:
                self.steps.append(moment)
                if len(self.steps) >= MOST:
                    self.steps = self.steps[1::2]  # multiples of the new stride
                    self._stride *= 2
            if is_shown:
                self._show(moment)

    def _show(self, moment: Moment) -> None:
        before, self._shown = self._shown, moment
        peak = {"peak_allocated_bytes": self._pools[0].peak_allocated_bytes}
        self._live.show(_recent(before, moment) | peak)

    def _sample(self) -> None:
        interval = _FIRST_INTERVAL
        pause = interval
        while not self._ended.wait(pause):
            with self._lock:
                moment = self._moment()
            self.samples.append(moment)
            least = self._worst_bytes + _SCATTERED * moment.reserved_bytes
            if moment.scattered_bytes > least:
                self._worst_bytes = moment.scattered_bytes
                self.worst_heap = heap(self._runtime)
            if len(self.samples) >= MOST:
                del self.samples[1::2]
                interval *= 2
            pause = max(interval, _PAUSE * time.thread_time() - self.seconds)

    def _moment(self) -> Moment:
        engine, pools = self._engine, self._pools
        lib.dtr_engine_get_stats(self._runtime.engine, engine, pools, len(pools))
        allocated = reserved = scattered = budget = 0
        for pool in pools:
            allocated += pool.allocated_bytes
            reserved += pool.reserved_bytes
            free = pool.reserved_bytes - min(pool.reserved_bytes, pool.allocated_bytes)
            scattered += free - min(free, pool.largest_free_bytes)
            budget = max(budget, pool.budget_bytes)
        seconds = time.perf_counter() - self._begin
        counters = (getattr(engine, name) for name in _OF_ENGINE)
        return Moment(seconds, self.step_count, budget, allocated, reserved, scattered, *counters)


def heap(runtime: Session) -> list[Span]:
    """The blocks in use of the first device's heap, by address."""
    count = ffi.new("uint64_t *")

    def ask(blocks: Any, capacity: int) -> int:
        check(lib.dtr_pool_snapshot(runtime.pools.handles[0], blocks, capacity, count))
        return int(count[0])

    spans: list[Span] = []
    for block in listed("dtr_block", ask):
        if block.state != _IN_USE:
            continue
        address, size_bytes = block.address, block.size_bytes
        if spans and sum(spans[-1]) == address:
            address, before = spans.pop()
            size_bytes += before
        spans.append(Span(address, size_bytes))
    return spans
