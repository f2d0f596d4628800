"""A process that trains a job in one way, a step whenever it is told to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import dtr_alloc
from bench.foreign import chains, nets  # noqa: F401
from bench.foreign.job import JOBS, ForeignJob
from bench.models import digest
from bench.peers import methods
from bench.turns import Budget, Process

CHECKPOINT = "checkpoint"
WAYS: dict[str, dict[str, Any] | None] = {
    "default": {},
    "dtr-full": {"heuristic": "dtr-full"},
    "dtr-eqclass": {"heuristic": "dtr-eqclass"},
    CHECKPOINT: None,
}
"""The settings of each; None: the model is edited instead."""
PROFILED_STEPS = 4
CLOCKS = (time.process_time, time.perf_counter, time.thread_time)
"""The last is of the thread that trains: without the search for a plan."""
SHORTEST_SECONDS = 0.5
"""Of a step, for the patience: another job may have the processor for longer than that."""

Checkouts = Mapping[str, Path]


def profile(name: str, checkouts: Checkouts, edited: bool = False) -> dict[str, Any]:
    """What a job holds with nothing evicted. Raises Missing."""
    torch.set_num_threads(1)
    idle = operators = 0
    with dtr_alloc.session("unlimited", device="cpu"):
        job = build(name, checkouts, edited)
        for i in range(PROFILED_STEPS):
            begin, before = time.perf_counter(), dtr_alloc.stats()["recorded_ops"]
            job.step(i)
            seconds, stats = time.perf_counter() - begin, dtr_alloc.stats()
            idle, operators = max(idle, stats["allocated_bytes"]), stats["recorded_ops"] - before
    peak = stats["peak_allocated_bytes"]
    return {"operators": operators, "idle": idle, "peak": peak, "seconds": seconds}


def build(name: str, checkouts: Checkouts, edited: bool) -> ForeignJob:
    """The job, with each of its blocks checkpointed if it is edited. Raises Missing."""
    job = ForeignJob(name, checkouts)
    if edited:
        subject: Any = JOBS[name]
        methods.blocks(subject, job)
    return job


def worker(*arguments: Any) -> Process:
    """A process that trains plain, edited, or with a budget and a method's settings. Takes the
    arguments of _train() after its pipe."""
    return Process(_work, *arguments, preload=[__name__])


def _work(pipe: Connection, *arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        _train(pipe, *arguments)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0])


def _train(
    pipe: Connection,
    name: str,
    checkouts: Checkouts,
    seconds: float,
    method: str | None,
    budget: Budget | None,
) -> None:
    settings = WAYS[method] if method else None
    session = (
        nullcontext
        if settings is None
        else partial(dtr_alloc.session, budget, device="cpu", **settings)
    )
    planned: list[int] = []
    found: dict[str, Any] = {}
    with session():
        job = build(name, checkouts, edited=method == CHECKPOINT)
        pipe.send({"step_seconds": max(seconds, SHORTEST_SECONDS)})
        while pipe.recv():
            i = len(planned)
            begin = [clock() for clock in CLOCKS]
            job.step(i)
            taken = tuple(clock() - at for clock, at in zip(CLOCKS, begin, strict=True))
            planned.append(dtr_alloc.stats()["planned"] if settings is not None else 0)
            pipe.send(taken)
        if settings is not None:
            stats = dtr_alloc.stats()
            for key in ("evictions", "rematerializations", "plan_misses", "search_seconds"):
                found[key] = stats[key]
            found["repeated"] = stats["recompute_cost_seconds"] / stats["total_cost_seconds"]
    served = [i for i, (before, now) in enumerate(pairwise([0, *planned])) if now > before]
    found |= {"planned_since": served[0] if served else None, "planned_steps": len(served)}
    state = {key: digest({key: value}) for key, value in job.state().items()}
    pipe.send(found | {"state": state})
