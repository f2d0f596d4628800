"""Ways to train a job that take turns, a step each, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

PATIENCE = 20
"""A way is ended if a step takes more than so many times as long as a plain one."""
GRACE_SECONDS = 10.0
"""For building a job, beside the patience."""
MOST_SECONDS = 300.0
"""For building a job and its first steps, compiling included."""
# Otherwise glibc gives memory back in each step, and faults it in again in the next.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
}

Budget = int | str
"""In bytes, or "unlimited"."""


class Ended(Exception):
    """A way to train did not go on; says how it ended."""


class Child(ABC):
    """A process that takes a step whenever it is told to, seen from its parent.

    Raises Ended where an answer is an error, or takes longer than the patience.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def answer(self, patience: float = MOST_SECONDS) -> Any:
        if not self._pipe.poll(patience):
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

    @abstractmethod
    def close(self) -> None:
        """Ends the process."""


class Process(Child):
    """A process that begins with work(pipe, *arguments).

    Args:
        preload: modules that all such processes have loaded before they begin.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any, preload: list[str]) -> None:
        os.environ |= KEEP_MEMORY
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(preload)
        pipe, other = processes.Pipe()
        super().__init__(pipe)
        self._process = processes.Process(target=work, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The kinds of what differs in two states by their digests; a name begins with its kind."""
    names = one.keys() | other.keys()
    return sorted({name.split("/")[0] for name in names if one.get(name) != other.get(name)})


class Turns:
    """The ways; the first one is plain PyTorch.

    Args:
        start: begins a way, by a method to edit the job, or None, and by a budget, or None.
        first_steps: how many steps a way takes before its first answer.
        grace: seconds for building a job, beside the patience.
    """

    def __init__(
        self,
        stack: ExitStack,
        job: str,
        start: Callable[[str | None, Budget | None], Child],
        first_steps: int,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._stack, self._start, self._first_steps = stack, start, first_steps
        self._grace = grace
        self._workers: dict[str, Child] = {}
        self._step_seconds = 0.0
        self.ways: dict[str, dict[str, Any]] = {}
        self.add("plain")
        if self.ways["plain"]["outcome"] != "trains":
            raise SystemExit(f"{job} without dtr_alloc: {self.ways['plain']['outcome']}")
        self._step_seconds = self.ways["plain"]["step_seconds"]

    def add(self, way: str, method: str | None = None, budget: Budget | None = None) -> None:
        """Trains the first steps, which say what memory the way needs."""
        worker = self._start(method, budget)
        self._stack.enter_context(closing(worker))
        try:
            patience = PATIENCE * self._step_seconds * self._first_steps + self._grace
            first = worker.answer(*() if budget is None else (patience,))
            self.ways[way] = {"outcome": "trains", **first}
            self._workers[way] = worker
        except Ended as end:
            self._lose(way, end)

    def run(self, rounds: int) -> None:
        """Takes the turns, and then gives each way that trains its ratios and what differs."""
        times: dict[str, list[tuple[float, ...]]] = defaultdict(list)
        for _ in range(rounds):
            for way in list(self._workers):
                try:
                    times[way].append(self._workers[way].step(PATIENCE * self._step_seconds))
                except Ended as end:
                    self._lose(way, end)
        plain = self._workers.pop("plain").finish()
        for way in list(self._workers):
            try:
                found = self._workers[way].finish()
            except Ended as end:
                self._lose(way, end)
                continue
            differs = different(plain["state"], found.pop("state"))
            self.ways[way] |= {**found, "differs": differs}
            pairs = list(zip(times[way], times["plain"], strict=True))
            for key, clock in (("ratio", 0), ("wall_ratio", 1)):
                self.ways[way][key] = median(a[clock] / b[clock] for a, b in pairs)
        self.ways["plain"]["step_seconds"] = median(cpu for cpu, *_ in times["plain"])
        self.times = times

    def _lose(self, way: str, end: Ended) -> None:
        self._workers.pop(way, None)
        self.ways[way] = {"outcome": str(end)}
