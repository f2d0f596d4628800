"""Interleaved runs: ways to train a job, each in a process of its own, that take a step in turn."""

from __future__ import annotations

import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import psutil
import torch

import dtr_alloc
from bench.demo.worker import peak_resident_bytes
from bench.measure import Profile
from bench.models import Job, digest

PATIENCE = 20
"""A way is ended if a step takes more than so many times as long as a plain one."""
SHORTEST_SECONDS = 0.5
"""Of a step, for the patience: the search for a plan takes longer than a short one."""
LOOK_SECONDS = 0.5
"""Between two looks at what a process has used."""
GRACE_SECONDS = 10.0
"""For building a job, beside the patience."""
MOST_SECONDS = 300.0
"""For building a job and its first steps, compiling included."""
WARM_STEPS = 2
"""That may compile."""
PROFILED_STEPS = 4
# Otherwise glibc gives memory back in each step, and faults it in again in the next.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
}
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter, "thread": time.thread_time}
"""The last is of the thread that trains: without the search for a plan."""
COUNTED = (
    *("recorded_ops", "unrecorded_ops", "evictions", "rematerializations"),
    *("remaps", "mapped_chunks"),
    *("search_seconds", "planned", "plan_misses", "learned", "swapped_out_bytes"),
    *("swapped_in_bytes", "total_cost_seconds", "recompute_cost_seconds"),
)
"""Of stats(), after each step."""

Budget = int | str
"""In bytes, or "unlimited"."""
Counters = list[dict[str, Any]]


class Ended(Exception):
    """A way to train did not go on; says how it ended."""


@dataclass(frozen=True)
class Way:
    """How a job is trained.

    Attributes:
        settings: of the session; None: without dtr_alloc.
        unlimited_steps: so many steps come before the session's budget holds.
        declared: operators that are declared first, by the declaration: ``trust``, ``distrust``.
    """

    settings: dict[str, Any] | None = None
    unlimited_steps: int = 0
    declared: dict[str, str] = field(default_factory=dict)


class Child(ABC):
    """A process that takes a step whenever it is told to, seen from its parent.

    Raises Ended where an answer is an error, or takes longer than the patience, which is time of
    the processor: other programs do not use it up.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def answer(self, patience: float = MOST_SECONDS) -> Any:
        begin = self._processor_seconds()
        while not self._pipe.poll(LOOK_SECONDS):
            if self._processor_seconds() - begin > patience:
                raise Ended("thrashes")
        try:
            found = self._pipe.recv()
        except EOFError:
            raise Ended("died") from None
        if isinstance(found, str):
            raise Ended(found)
        return found

    def step(self, patience: float = MOST_SECONDS) -> tuple[float, ...]:
        """Seconds of the processor, of the wall clock, and of what else the work measures."""
        self._pipe.send(True)
        return self.answer(patience)

    def finish(self) -> dict[str, Any]:
        """What the way left behind: its memory, and digests of all that a user could compare."""
        self._pipe.send(False)
        return self.answer()

    def _processor_seconds(self) -> float:
        try:
            return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids())
        except psutil.NoSuchProcess:
            return 0.0  # the pipe tells

    @abstractmethod
    def pids(self) -> list[int]:
        """Of the process, and of others that train with it."""

    @abstractmethod
    def close(self) -> None:
        """Ends the process."""


class Process(Child):
    """A process that builds a job and trains it in a way.

    Args:
        make: builds the job, edited or not; it can be pickled.
        preload: modules that all such processes have loaded before they begin.
    """

    def __init__(self, make: Callable[[], Job], preload: list[str], way: Way) -> None:
        os.environ |= KEEP_MEMORY
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__, *preload])
        pipe, other = processes.Pipe()
        super().__init__(pipe)
        self._process = processes.Process(target=_work, args=(other, make, way), daemon=True)
        self._process.start()
        other.close()

    def pids(self) -> list[int]:
        return [self._process.pid or 0]

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _work(pipe: Connection, make: Callable[[], Job], way: Way) -> None:
    torch.set_num_threads(1)
    try:
        _train(pipe, make, way)
    except torch.OutOfMemoryError as error:
        pipe.send("thrashes" if "is too small" in str(error) else "out of memory")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0])


def _train(pipe: Connection, make: Callable[[], Job], way: Way) -> None:
    for declaration, operators in way.declared.items():
        getattr(dtr_alloc, declaration)(operators)
    is_on = way.settings is not None
    session: Any = nullcontext()
    if way.settings is not None:
        first = {"budget": "unlimited"} if way.unlimited_steps else {}
        session = dtr_alloc.session(device="cpu", **way.settings | first)
    counters: Counters = []
    idle = 0
    with session:
        job = make()
        pipe.send({})
        for i in count():
            if not pipe.recv():
                break
            if way.settings is not None and 0 < i == way.unlimited_steps:
                dtr_alloc.set_budget(way.settings["budget"])
            begin = [clock() for clock in CLOCKS.values()]
            job.step(i)
            ends = zip(CLOCKS.values(), begin, strict=True)
            taken = tuple(clock() - at for clock, at in ends)
            stats = dtr_alloc.stats() if is_on else {}
            counters.append({key: stats[key] for key in COUNTED if is_on})
            idle = max(idle, stats["allocated_bytes"] if is_on else 0)
            pipe.send(taken)
        peak = dtr_alloc.stats()["peak_allocated_bytes"] if is_on else 0
        resident = peak_resident_bytes()
    state = {key: digest({key: value}) for key, value in job.state().items()}
    held = {"idle": idle, "peak": peak, "resident_bytes": resident}
    pipe.send(held | {"state": state, "counters": counters})


def profile(
    make: Callable[[], Job],
    preload: list[str],
    steps: int = PROFILED_STEPS,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a job holds with nothing evicted, and the seconds and operators of a step.

    settings: of the session instead of no limit: a trace alone only counts bytes.

    Raises Ended.
    """
    way = Way({"budget": "unlimited"} if settings is None else settings)
    with closing(Process(make, preload, way)) as child:
        child.answer()
        seconds = [child.step()[1] for _ in range(steps)][-1]
        found = child.finish()
    last = added(found["counters"], 1)
    operators = last["recorded_ops"] + last["unrecorded_ops"]
    held = {key: found[key] for key in ("idle", "peak")}
    return held | {"operators": round(operators), "seconds": seconds}


def shape_of(found: dict[str, Any]) -> Profile:
    return Profile(found["idle"], found["peak"])


def added(counters: Counters, last: int) -> dict[str, float]:
    """What each of the last steps added to the counters, on average."""
    before = counters[-1 - last] if last < len(counters) else {}
    return {key: (end - before.get(key, 0)) / last for key, end in counters[-1].items()}


def different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The kinds of what differs in two states by their digests; a name begins with its kind."""
    names = one.keys() | other.keys()
    return sorted({name.split("/")[0] for name in names if one.get(name) != other.get(name)})


class Interleaved:
    """The ways; the first one is plain PyTorch.

    Args:
        start: begins a way.
        plain: the way without dtr_alloc.
        step_seconds: of a plain step, where it is known beforehand.
        first_steps: how many steps a way takes before its first answer.
        grace: seconds for building a job, beside the patience.
    """

    def __init__(
        self,
        stack: ExitStack,
        job: str,
        start: Callable[[Any], Child],
        plain: Any,
        *,
        step_seconds: float = 0.0,
        first_steps: int = 0,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._stack, self._start, self._first_steps = stack, start, first_steps
        self._grace = grace
        self._children: dict[str, Child] = {}
        self._step_seconds = max(step_seconds, SHORTEST_SECONDS)
        self.ways: dict[str, dict[str, Any]] = {}
        self.times: dict[str, list[tuple[float, ...]]] = defaultdict(list)
        self._add("plain", plain, MOST_SECONDS)
        if self.ways["plain"]["outcome"] != "trains":
            raise SystemExit(f"{job} without dtr_alloc: {self.ways['plain']['outcome']}")
        if "step_seconds" in self.ways["plain"]:
            self._step_seconds = max(self.ways["plain"]["step_seconds"], SHORTEST_SECONDS)

    def add(self, name: str, way: Any) -> None:
        """Begins a way, with its first steps."""
        self._add(name, way, self._patience(self._first_steps) + self._grace)

    def _add(self, name: str, way: Any, patience: float) -> None:
        child = self._start(way)
        self._stack.enter_context(closing(child))
        try:
            self.ways[name] = {"outcome": "trains", **child.answer(patience)}
            self._children[name] = child
        except Ended as end:
            self._lose(name, end)

    def _patience(self, steps: int) -> float:
        return PATIENCE * self._step_seconds * steps

    def run(self, steps: int, *, untold: int = 0, together: bool = True) -> None:
        """Trains the steps, and then gives each way that trains its ratios and what differs.

        Args:
            untold: so many steps come before, whose times are not kept.
            together: the ways take turns, a step each; else one after the other.
        """
        for names in [list(self._children)] if together else [[name] for name in self._children]:
            for i in range(untold + steps):
                for name in [each for each in names if each in self._children]:
                    # The first steps may compile.
                    patience = MOST_SECONDS if i < WARM_STEPS else self._patience(1)
                    try:
                        taken = self._children[name].step(patience)
                    except Ended as end:
                        self._lose(name, end)
                        continue
                    if i >= untold:
                        self.times[name].append(taken)
        if "plain" not in self._children:
            raise SystemExit(f"plain PyTorch did not go on: {self.ways['plain']['outcome']}")
        plain = self._children.pop("plain").finish()
        for name in list(self._children):
            try:
                found = self._children[name].finish()
            except Ended as end:
                self._lose(name, end)
                continue
            differs = different(plain["state"], found.pop("state"))
            self.ways[name] |= {**found, "differs": differs}
            pairs = list(zip(self.times[name], self.times["plain"], strict=True))
            for key, clock in (("ratio", 0), ("wall_ratio", 1)):
                self.ways[name][key] = median(a[clock] / b[clock] for a, b in pairs)
        self.ways["plain"]["step_seconds"] = median(cpu for cpu, *_ in self.times["plain"])

    def _lose(self, name: str, end: Ended) -> None:
        self._children.pop(name, None)
        self.ways[name] = {"outcome": str(end)}
