"""Where the time of a training step goes, by model and budget.

The study `profile` runs it, and draws it.

Each job trains under budgets that leave fractions of its activation memory. Three runs take turns,
budget by budget and round by round, each with a job of its own whose first step does not count:

- plain: without dtr_alloc. All ratios are to the mean step of these;
- bare: under the budget, with nobody watching;
- watched: under the budget, with every nanosecond of a step given to one of PARTS.

The parts come from the clock of the bridge (native/bridge/phases.h), and of the search from that of
the engine, so they add up to the step. What reading the bridge's clock takes is measured and in no
part. Page faults happen inside operators: their number is the system's, what one costs is
measured beside the runs, and the product is taken off the operators.

Times are of the processor: those of other processes do not count. The clocks that share a step out
among its parts are of the wall; what the thread waits for its processor falls on all parts alike,
and is taken off all alike. ``waited`` says how much of a step it was. A mean is that of the half of
the steps in which it was the least. ``watched_over_bare`` checks that watching did not change what
it looked at. The rows with ``fraction`` null are without a limit, where nothing is ever evicted.

``ours`` is what a budget costs beyond running operators and running them again: the shares of
search, engine, capture, allocator and faults in the watched step.
"""

from __future__ import annotations

import gc
import mmap
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import fmean
from time import perf_counter, thread_time
from typing import Any

import torch

import dtr_alloc
from bench import results
from bench.measure import Thrashing, forget_broken_backward, limited_repeats, profile
from bench.models import JOBS, Job
from dtr_alloc.config import Config
from dtr_alloc.torch import api

FRACTIONS: tuple[float | None, ...] = (None, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2)
MOST_REPEATS = 10_000
"""Of one run: with more a budget is said to thrash."""
COUNTED = ("evictions", "rematerializations", "recorded_ops", "mapped_chunks")

PARTS = {
    "operators": "operators, run for the first time",
    "again": "operators that are run again",
    "search": "the engine, choosing what to evict",
    "engine": "the engine, all else: records, plans, evicting, taking memory back",
    "capture": "seeing operators, keeping what repeats them, rebuilding arguments",
    "allocator": "giving memory, without the room that the engine makes for it",
    "faults": "page faults of memory that is used for the first time, by number",
    "rest": "the job's Python, autograd, and PyTorch's way to an operator",
}
"""What a step's time is made of; each name with its meaning."""
OURS = ("search", "engine", "capture", "allocator", "faults")

Step = dict[str, float]
"""What a step was: seconds of the processor in "total" and, where it was watched, in each of PARTS;
"waited", the part of its wall time without a processor; what it added to each of COUNTED."""


def calm(steps: list[Step]) -> Step:
    """The mean of the half of the steps that waited least for a processor."""
    kept = sorted(steps, key=lambda step: step["waited"])[: (len(steps) + 1) // 2]
    return {key: fmean(step[key] for step in kept) for key in kept[0]}


class Watch:
    """Gives a step's time to the parts."""

    def __init__(self, fault_seconds: float) -> None:
        self._fault_seconds = fault_seconds
        self._before: dict[str, Any] = {}
        self._faults = 0

    def begin(self) -> None:
        self._before = dtr_alloc.stats()
        self._faults = _faults()
        api.active().bridge.phases(True)

    def end(self) -> Step:
        """The seconds of each of PARTS since begin()."""
        phases = api.active().bridge.phases(False)
        after = dtr_alloc.stats()
        search = after["search_seconds"] - self._before["search_seconds"]
        faults = (_faults() - self._faults) * self._fault_seconds
        running = phases["operators"] + phases["again"]
        kept = max(1 - faults / running, 0.0) if running else 1.0
        return {
            "operators": phases["operators"] * kept,
            "again": phases["again"] * kept,
            "search": search,
            "engine": max(phases["engine"] - search, 0.0),
            "capture": phases["capture"],
            "allocator": phases["allocator"],
            "faults": running * (1 - kept),
            "rest": phases["job"],
        }


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def fault_seconds(pages: int = 16384) -> float:
    """What the first use of a page costs here."""
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        begin = thread_time()
        memory[:: mmap.PAGESIZE] = bytes(pages)
        return (thread_time() - begin) / pages


@contextmanager
def watched_session(budget: int | str, cost: float, **settings: Any) -> Iterator[Watch]:
    """``dtr_alloc.session``, and what watches its steps."""
    with dtr_alloc.session(budget=budget, **settings):
        yield Watch(cost)


def run(name: str, steps: int, session: AbstractContextManager[Any], **options: Any) -> list[Step]:
    """Trains a new job in the session for some steps after a first one that does not count.

    Raises torch.OutOfMemoryError and Thrashing.
    """
    gc.collect()
    with session as watch, limited_repeats(MOST_REPEATS if dtr_alloc.is_enabled() else None):
        job = JOBS[name](**options)
        try:
            job.step(0)
            return [one_step(job, i, watch) for i in range(1, steps + 1)]
        except BaseException:
            job.drop_gradients()
            forget_broken_backward()
            raise


def one_step(job: Job, i: int, watch: object) -> Step:
    """Trains one step, watched if there is a Watch."""
    before = dtr_alloc.stats()
    parts: Step = {}
    start, on_processor = perf_counter(), thread_time()
    if isinstance(watch, Watch):
        watch.begin()
        job.step(i)
        parts = watch.end()
    else:
        job.step(i)
    total = thread_time() - on_processor
    running = total / (perf_counter() - start)
    after = dtr_alloc.stats()
    added = {key: float(after[key] - before[key]) for key in COUNTED}
    parts = {part: seconds * running for part, seconds in parts.items()}
    if parts:
        total = sum(parts.values())
    return {"total": total, "waited": 1 - running, **added, **parts}


Sessions = dict[str, Callable[[], AbstractContextManager[Any]]]


def under(budget: int | str, cost: float) -> Sessions:
    """The sessions that are compared under a budget."""
    return {
        "bare": lambda: dtr_alloc.session(budget=budget, device="cpu"),
        "watched": lambda: watched_session(budget, cost, device="cpu"),
    }


def measure(
    name: str, fractions: tuple[float | None, ...], rounds: int, steps: int, **options: Any
) -> list[dict[str, Any]]:
    """A row for each budget."""
    shape, _ = profile(name, 2, **options)
    budgets = {
        fraction: "unlimited" if fraction is None else shape.budget(fraction)
        for fraction in fractions
    }
    outcomes = dict.fromkeys(fractions, "trains")
    taken: dict[tuple[float | None, str], list[Step]] = defaultdict(list)
    plain = []
    cost = fault_seconds()
    for _ in range(rounds):
        for fraction, budget in budgets.items():
            if outcomes[fraction] != "trains":
                continue
            plain += run(name, steps, nullcontext(), **options)
            try:
                for way, session in under(budget, cost).items():
                    taken[fraction, way] += run(name, steps, session(), **options)
            except Thrashing:
                outcomes[fraction] = "thrashes"
            except torch.OutOfMemoryError:
                outcomes[fraction] = "out of memory"
    base = calm(plain)
    rows = []
    for fraction, budget in budgets.items():
        row = {"job": name, "fraction": fraction, "budget_bytes": budget}
        row |= {"outcome": outcomes[fraction]}
        if outcomes[fraction] == "trains":
            row |= compare(base, calm(taken[fraction, "bare"]), calm(taken[fraction, "watched"]))
        rows.append(row)
    return rows


def compare(plain: Step, bare: Step, watched: Step) -> dict[str, Any]:
    """The figures of a row."""
    ratios = {part: watched[part] / plain["total"] for part in ("total", *PARTS)}
    running = watched["operators"] + watched["again"]
    return {
        "plain_seconds": plain["total"],
        "bare_ratio": bare["total"] / plain["total"],
        "watched_ratio": ratios["total"],
        "watched_over_bare": watched["total"] / bare["total"],
        "waited": max(plain["waited"], bare["waited"], watched["waited"]),
        "ours": sum(watched[part] for part in OURS) / watched["total"],
        "operator_seconds": running / (watched["recorded_ops"] + watched["rematerializations"]),
        **{f"{key}_per_step": watched[key] for key in COUNTED},
        "parts": {part: ratios[part] for part in PARTS},
    }


def document(smoke: bool) -> dict[str, Any]:
    """All rows, with what they were measured by."""
    torch.set_num_threads(1)
    names, fractions, rounds, steps, scale = tuple(JOBS), FRACTIONS, 3, 4, 4.0
    if smoke:
        names, fractions, rounds, steps, scale = ("mlp",), (None, 0.5), 1, 2, 1.0
    rows = [
        row
        for name in names
        for row in measure(name, fractions, rounds, steps, scale=scale, seed=0)
    ]
    facts: dict[str, Any] = {"rounds": rounds, "steps": steps, "scale": scale}
    facts |= {"heuristic": str(Config.heuristic), "parts": PARTS, "results": rows}
    return results.environment("cpu", 0) | facts
