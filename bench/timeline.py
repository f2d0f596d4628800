"""Where the time of a training step goes: every nanosecond belongs to one part.

A session that is watched runs under a recorder and a replayer that say when they begin and end,
and under operators that do. At each such switch the time since the last one is given to the part
that was running; what the engine counted as its own meanwhile (``bookkeeping_ns``, a C++ clock)
goes to the engine instead, wherever it was called from: by the recorder, by an allocation that
needs room in the middle of an operator, or by a tensor that dies. So nothing is counted twice,
and the parts add up to the step by construction. What the switches themselves take is a part of
its own, which a job that nobody watches does not have: what they measure of themselves, and for
each what it costs beyond that, which is measured once (``calibrate``).

One thread only: on the CPU, autograd runs the backward pass on the thread that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

import dtr_alloc
from dtr_alloc.core import ffi, lib
from dtr_alloc.purity import Rule, rule_for
from dtr_alloc.recorder import Recorder
from dtr_alloc.replay import Replayer
from dtr_alloc.runtime import Runtime, time_bookkeeping

_JOB, _RECORDER, _OPERATOR, _REPLAY, _AGAIN = range(5)

PARTS = {
    "operators": "operators, run for the first time, with their allocations",
    "again": "operators that are run again",
    "replay": "around those: the Python that rebuilds their arguments",
    "search": "the engine, choosing what to evict",
    "bookkeeping": "the engine, all else: records, plans, evicting, taking memory back",
    "recorder": "the Python that sees every operator",
    "rest": "the job's Python, autograd, and PyTorch's way from an operator to the recorder",
}
"""What a step's time is made of; each name with its meaning."""


class Timeline:
    """Gives the time of one thread to the parts, in nanoseconds."""

    def __init__(self) -> None:
        self._stats = ffi.new("dtr_engine_stats *")
        self._engine: Any = None
        self._ns = [0] * 5
        self._stretches = [0] * 5
        self._own_ns = 0
        self._unseen_ns = 0.0
        self._running = _JOB
        self._since_ns = 0
        self._engine_ns = 0
        self._begin = (0, 0)

    def watch(self, engine: Any) -> None:
        """From now on it is this engine whose time is set apart."""
        self._engine = engine
        self.calibrate()

    def calibrate(self, rounds: int = 9, switches: int = 200) -> None:
        """Measures what a switch costs beyond what it measures of itself: a call, and from the
        clock's reading to its return. The least of some rounds."""
        least = float("inf")
        for _ in range(rounds):
            self.begin()
            for _ in range(switches):
                self.switch(_JOB)
            least = min(least, self._ns[_JOB] / switches)
        self._unseen_ns = least

    def switch(self, part: int) -> int:
        """Another part runs from now on; returns the one that did."""
        now = perf_counter_ns()
        lib.dtr_engine_get_stats(self._engine, self._stats)
        engine_ns = self._stats.bookkeeping_ns
        before = self._running
        self._ns[before] += now - self._since_ns - (engine_ns - self._engine_ns)
        self._stretches[before] += 1
        self._engine_ns = engine_ns
        self._running = part
        self._since_ns = perf_counter_ns()
        self._own_ns += self._since_ns - now
        return before

    def in_operator(self) -> int:
        """As `switch`, to the operator that the running part calls."""
        return self.switch(_AGAIN if self._running == _REPLAY else _OPERATOR)

    def begin(self) -> None:
        """A step begins."""
        self.switch(_JOB)
        self._ns = [0] * 5
        self._stretches = [0] * 5
        self._own_ns = 0
        self._begin = (self._stats.bookkeeping_ns, self._stats.search_ns)

    def end(self) -> dict[str, float]:
        """The step is over: the seconds of each of PARTS, and of ``watching`` it."""
        self.switch(_JOB)
        bookkeeping_ns, search_ns = self._begin
        search_ns = self._stats.search_ns - search_ns
        bookkeeping_ns = self._stats.bookkeeping_ns - bookkeeping_ns - search_ns
        # Half of a switch's unseen cost lies before it, half behind it: a stretch has one whole.
        unseen = [stretches * self._unseen_ns for stretches in self._stretches]
        net = [ns - of for ns, of in zip(self._ns, unseen, strict=True)]
        found = {
            "operators": net[_OPERATOR],
            "again": net[_AGAIN],
            "replay": net[_REPLAY],
            "search": search_ns,
            "bookkeeping": bookkeeping_ns,
            "recorder": net[_RECORDER],
            "rest": net[_JOB],
            "watching": self._own_ns + sum(unseen),
        }
        return {part: ns / 1e9 for part, ns in found.items()}


class _TimedOperator:
    """An operator as the recorder and the replayer call it."""

    __slots__ = ("_call", "_timeline", "overload")

    def __init__(self, overload: Any, timeline: Timeline) -> None:
        self.overload = overload
        self._call = overload._op
        self._timeline = timeline

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        timeline = self._timeline
        before = timeline.in_operator()
        try:
            return self._call(*args, **kwargs)
        finally:
            timeline.switch(before)

    # The recorder calls this, which is all that calling an overload does (recorder.py).
    _op = __call__

    def __str__(self) -> str:
        return str(self.overload)


class _TimedRecorder(Recorder):
    def __init__(self, runtime: Runtime, timeline: Timeline) -> None:
        super().__init__(runtime)
        self._timeline = timeline
        self._operators: dict[int, _TimedOperator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._timeline.switch(_RECORDER)
        try:
            operator = self._operators.get(id(func))
            if operator is None:
                operator = self._operators[id(func)] = _TimedOperator(func, self._timeline)
            return Recorder.__torch_dispatch__(self, operator, types, args, kwargs)
        finally:
            self._timeline.switch(before)

    def rule(self, func: Any) -> Rule:
        rule = self._rules.get(id(func))
        if rule is None:
            rule = self._rules[id(func)] = rule_for(func.overload)
        return rule


@contextmanager
def watched_session(budget: object, **settings: object) -> Iterator[Timeline]:
    """``dtr_alloc.session`` on this thread, with the timeline that watches it."""
    timeline = Timeline()
    run: Callable[[Replayer, Any], None] = Replayer._run

    def new_recorder(runtime: Runtime) -> Recorder:
        timeline.watch(runtime.engine)
        return _TimedRecorder(runtime, timeline)

    def timed_run(replayer: Replayer, frame: Any) -> None:
        before = timeline.switch(_REPLAY)
        try:
            run(replayer, frame)
        finally:
            timeline.switch(before)

    with (
        patch.object(Runtime, "new_recorder", new_recorder),
        patch.object(Replayer, "_run", timed_run),
        dtr_alloc.session(budget=budget, **settings),
    ):
        time_bookkeeping(True)
        yield timeline
