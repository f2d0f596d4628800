"""A process that trains a job in one way, a step whenever it is told to."""

from __future__ import annotations

import tempfile
import time
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import dtr_alloc
from bench.models import digest
from bench.peers.jobs import SUBJECTS
from bench.peers.methods import METHODS
from bench.turns import Budget, Process

WARM_STEPS = 2
"""Before the first step that is told: so many are counted, and as many more fill malloc's heap."""
LEARN_STEPS = 30
"""And so many are enough to learn a step, and to see what came of it."""
FIRST_STEPS = 2 * WARM_STEPS + LEARN_STEPS
COUNTED = (
    "recorded_ops",
    "evictions",
    "rematerializations",
    "search_seconds",
    "mapped_chunks",
    "planned",
)
"""Of stats(), for each step that is told."""


def worker(job: str, method: str | None, budget: Budget | None, scale: float) -> Process:
    """With a budget it trains under dtr_alloc, else with malloc."""
    return Process(_work, job, method, budget, scale, preload=[__name__, "torch._dynamo"])


def _work(
    pipe: Connection, name: str, method: str | None, budget: Budget | None, scale: float
) -> None:
    torch.set_num_threads(1)
    try:
        _train(pipe, name, method, budget, scale)
    except torch.OutOfMemoryError:
        pipe.send("out of memory")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


def _train(
    pipe: Connection, name: str, method: str | None, budget: Budget | None, scale: float
) -> None:
    subject = SUBJECTS[name]
    with tempfile.TemporaryDirectory() as folder:
        # A trace and no budget: dtr_alloc's pool counts bytes, and nobody records operators.
        # With a file of costs a job waits for what is learned: nothing runs beside its steps.
        settings: dict[str, Any] = (
            {"trace": Path(folder) / "trace"}
            if budget is None
            else {"budget": budget, "costs": Path(folder) / "costs.json"}
        )
        dtr_alloc.enable(device="cpu", **settings)
        job = subject.kind(scale=scale)
        if method is not None:
            METHODS[method].edit(subject, job)
        for i in range(WARM_STEPS):
            job.step(i)
        stats = dtr_alloc.stats()
        if budget is None:
            dtr_alloc.disable()
        for i in range(WARM_STEPS, FIRST_STEPS):
            wall = time.perf_counter()
            job.step(i)
        before = dtr_alloc.stats()
        first = {"peak": stats["peak_allocated_bytes"], "idle": stats["allocated_bytes"]}
        pipe.send(first | {"step_seconds": time.perf_counter() - wall})
        for i in count(FIRST_STEPS):
            if not pipe.recv():
                break
            cpu, wall = time.process_time(), time.perf_counter()
            job.step(i)
            pipe.send((time.process_time() - cpu, time.perf_counter() - wall))
        stats = dtr_alloc.stats()
        added = {key: (stats[key] - before[key]) / max(i - FIRST_STEPS, 1) for key in COUNTED}
        if budget is not None:
            dtr_alloc.disable()
    state = {key: digest({key: value}) for key, value in job.state().items()}
    pipe.send({"state": state, "peak": stats["peak_allocated_bytes"], "added": added})
