"""A process that trains a job of a framework, and says so:

    python -m bench.frameworks.worker JOB STEPS FIRST PIPE

as it is, or by `python -m dtr_alloc.cli run`. Of two that are one job, the second only says what
went wrong.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import keystr, tree_flatten_with_path

import dtr_alloc
from bench.frameworks.jobs import JOBS
from bench.models import digest

SEED = 0
COUNTED = ("recorded_ops", "evictions", "rematerializations", "planned")
"""Of stats(), for each step that is told."""


class Teller:
    """What a job calls after each step: from the first steps' last one on it tells the parent, who
    says when to go on."""

    def __init__(self, pipe: Connection | None, steps: int, first: int) -> None:
        self._pipe, self._steps, self._first = pipe, steps, first
        self._step, self._idle_bytes = 0, 0
        self._begin = self._clocks()
        self._before: dict[str, Any] = {}
        self._backward = torch.autograd.backward
        self._kept: Counter[tuple[str, str, str]] = Counter()

    def __call__(self) -> None:
        taken = [now - begin for now, begin in zip(self._clocks(), self._begin, strict=True)]
        self._step += 1
        stats = _stats()
        self._idle_bytes = max(self._idle_bytes, stats.get("allocated_bytes", 0))
        if self._step == self._first - 1 and stats.get("recorded_ops"):
            self._kept.subtract(kept_now())
            torch.autograd.backward = self._look_and_go_back
        if self._step == self._first:
            self._before = stats
            peak = stats.get("peak_allocated_bytes", 0)
            self._tell({"peak": peak, "idle": self._idle_bytes, "step_seconds": taken[0]})
        elif self._step > self._first:
            self._tell(tuple(taken))
        if self._pipe and self._first <= self._step < self._steps:
            self._pipe.recv()
        self._begin = self._clocks()

    def end(self, found: dict[str, Any]) -> None:
        """The job has ended."""
        stats = _stats()
        told = max(self._steps - self._first, 1)
        added = {key: (stats[key] - self._before[key]) / told for key in COUNTED if stats}
        state = {key: digest({key: value}) for key, value in _tensors(found)}
        if self._pipe:
            self._pipe.recv()
        peak = stats.get("peak_allocated_bytes", 0)
        kept = [(size_bytes, *of) for of, size_bytes in self._kept.most_common() if size_bytes > 0]
        self._tell({"state": state, "peak": peak, "added": added, "kept": kept})

    def _look_and_go_back(self, *args: Any, **options: Any) -> None:
        """Most is in memory as a backward pass begins: the first one of a step."""
        torch.autograd.backward = self._backward
        self._kept.update(kept_now())
        self._backward(*args, **options)

    def _tell(self, what: Any) -> None:
        if self._pipe:
            self._pipe.send(what)

    def _clocks(self) -> tuple[float, float]:
        return time.process_time(), time.perf_counter()


def kept_now() -> Counter[tuple[str, str, str]]:
    """What is kept, in bytes, by operator, reason and line."""
    sizes: Counter[tuple[str, str, str]] = Counter()
    for each in dtr_alloc.kept():
        sizes[each.operator, each.why, each.line] += each.size_bytes
    return sizes


def _stats() -> dict[str, Any]:
    return dtr_alloc.stats() if dtr_alloc.is_enabled() else {}


def _tensors(found: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """All that has bits, by names that begin with their kind."""
    for kind, value in (found | {"rng": torch.get_rng_state()}).items():
        for path, leaf in tree_flatten_with_path(value)[0]:
            yield from _parts(f"{kind}/{keystr(path)}", leaf)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if is_traceable_wrapper_subclass(value):
        for each in value.__tensor_flatten__()[0]:
            yield from _parts(f"{name}.{each}", getattr(value, each))
    elif isinstance(value, Tensor | int | float):
        yield name, torch.as_tensor(value)


def main(job: str, steps: int, first: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    leads = os.environ.get("RANK", "0") == "0"
    teller = Teller(pipe if leads else None, steps, first)
    try:
        teller.end(JOBS[job](steps, teller))
    except torch.OutOfMemoryError:
        pipe.send("out of memory")
    except Exception as error:
        if os.environ.get("BENCH_RAISES"):
            raise
        pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Connection(int(sys.argv[4])))
