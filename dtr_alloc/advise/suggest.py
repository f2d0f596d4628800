"""Advises a budget from the first steps of a job, with the cost of a step under budgets.

The repeated step of the op log is played by the engine (``simulate.play_step``), under smaller and
smaller budgets, by the rule at the job's beginning and by the learned policy or plan.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from dtr_alloc.advise.at_peak import AtPeak, at_peak
from dtr_alloc.advise.left_behind import Left, left_behind
from dtr_alloc.advise.where import Call, call_of
from dtr_alloc.oplog import Program, computed
from dtr_alloc.simulation import simulate

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Of the activation memory."""
MOVE_BYTES_PER_S = {"cpu": 12e9, "cuda": 200e9}
"""The engine measures it. On the CPU this is the bandwidth of moves in a job of the bench, 36 KiB
in 5 to 6 µs; on CUDA it is the engine's initial estimate (native/policy/move_price.h)."""
CLOSE = 0.005
"""The precision of the smallest budget, relative to it."""
SLOWEST = 4.0
"""A step with more compute, relative to one without a budget, is refused (DTR_ALLOC_THRASH)."""
WORTH = 1.15
"""The smallest budget is advised at which a step has at most so many times the compute: most jobs
accept that."""
GAIN = 0.05
"""A budget that saves less of the peak is not advised."""
REFINED = 3
"""The number of bisections between the advised budget and the next smaller one. Otherwise a cost
that is a percent higher, as on another day, would decide on a tenth of the memory."""
ROOM = 1.05
"""Relative to the smallest budget found: a smaller one is advised only if no other saves GAIN."""
GROWTH = 0.001
"""Of the peak: a job that leaves more behind in each step doubles it in a thousand steps."""
MARGIN = 1.01
"""The smallest budget is taken so much larger than found: a play differs from the job in
details."""
NEAR = (1, 0.99, 1.01)
"""Near the smallest budget a play may fail, or succeed, by chance: so most of these decide."""
REPEAT_SECONDS = 50e-6
"""The most overhead of a recomputed operator, for evictions, searches and its start: 30 µs in the
median of 21 runs of the bench's jobs, and less than this in 14."""
SPREAD = 0.1
"""The difference of step times between processes, even if those that were timed agree."""


@dataclass(frozen=True)
class Outlook:
    """A step under one budget.

    Attributes:
        budget_bytes: of the job.
        share: of the activation memory.
        first: the compute of a step before anything is learned, relative to one without a budget;
            None: it fails, or exceeds SLOWEST.
        later: the same once the step is learned; it works then, if not before.
        is_planned: whether by a plan with addresses.
        seconds: the expected range of a step; None: no step was timed.
    """

    budget_bytes: int
    share: float
    first: float | None
    later: float
    is_planned: bool
    seconds: tuple[float, float] | None


@dataclass(frozen=True)
class Suggestion:
    """The findings, and the advice.

    Attributes:
        peak_bytes: without a budget.
        held_bytes: the memory that is held between two steps, by kind.
        operators: of the step; 0: no step was repeated, and the end of the log represents it.
        outlooks: from the largest budget to the smallest that works; empty if the job grows, or if
            no step was seen, neither of an optimizer nor a repeated one.
        advised: None: none that works saves GAIN of the peak, or the job grows.
        limit: the operator that needs the smallest budget; None: with less the job is too slow.
        left: the memory that each step leaves allocated, the largest first.
    """

    peak_bytes: int
    held_bytes: Mapping[str, int]
    operators: int
    outlooks: Sequence[Outlook]
    advised: Outlook | None
    limit: Call | None
    at_peak: AtPeak | None
    """Of a repeated step."""
    left: Sequence[Left]

    @property
    def activation_bytes(self) -> int:
        return self.peak_bytes - sum(self.held_bytes.values())

    @property
    def growth_bytes(self) -> int:
        """The memory that each step leaves allocated; 0 if it is negligible."""
        left_bytes = sum(each.size_bytes for each in self.left)
        return left_bytes if left_bytes > GROWTH * self.peak_bytes else 0


def suggest(
    program: Program,
    peak_bytes: int,
    held_bytes: Mapping[str, int],
    device: str = "cpu",
    chunk_bytes: int = 0,
    threads: int = 1,
    steps: int = 0,
    step_seconds: Sequence[float] = (),
) -> Suggestion:
    """Plays the step of a job's log.

    Args:
        program: the log of some of its steps.
        peak_bytes: the most that the job had allocated at once. If it had a budget, its larger peak
            without one is played.
        held_bytes: the memory that it holds between two steps, by kind.
        device: "cpu" or "cuda".
        chunk_bytes: the unit in which memory is mapped there; 0: a page.
        threads: that play at the same time.
        steps: in the log; 0: unknown.
        step_seconds: of further steps, each, without a budget.
    """

    def run(budget_bytes: int | None) -> simulate.Run:
        """Plays the log under a budget of the job, until it is slower than SLOWEST."""
        return simulate.run_log(
            program,
            budget_bytes=None if budget_bytes is None else max(0, budget_bytes - unseen_bytes),
            semantics="runtime",
            space="heap",
            chunk_bytes=chunk_bytes,
            outputs=False,
            dealloc="auto",
            move_bytes_per_s=MOVE_BYTES_PER_S[device],
            max_recompute=None if budget_bytes is None else int((SLOWEST - 1) * base.model_cost),
        )

    base = run(None)
    # Memory of the job that the log does not know.
    unseen_bytes = max(0, peak_bytes - base.peak_bytes)
    peak_bytes = max(peak_bytes, base.peak_bytes)
    idle_bytes = sum(held_bytes.values())
    activation_bytes = max(1, peak_bytes - idle_bytes)

    def play(budget_bytes: int, learn: bool) -> simulate.WhatIfPlay:
        return simulate.play_step(
            program,
            max(0, budget_bytes - unseen_bytes),
            learn=learn,
            chunk_bytes=chunk_bytes,
            maps_on=device,
            move_bytes_per_s=MOVE_BYTES_PER_S[device],
        )

    def is_played(budget_bytes: int) -> bool:
        return _bearable(play(budget_bytes, learn=False).usual_repeated) is not None

    def works(budget_bytes: int) -> bool:
        first, second = (is_played(int(share * budget_bytes)) for share in NEAR[:2])
        return first if first == second else is_played(int(NEAR[2] * budget_bytes))

    asked = play(peak_bytes, learn=False)
    peak = None
    if asked.operators:
        peak = at_peak(program, asked.operators, held_bytes, peak_bytes)
    left = left_behind(program, steps)
    seen = Suggestion(peak_bytes, held_bytes, asked.operators, [], None, None, peak, left)
    if seen.growth_bytes or not (asked.operators or steps):
        return seen

    operators = asked.operators or asked.recorded // steps
    # A step that is repeated may have several optimizers, and each ends one here.
    ends = max(1, round(steps * operators / max(1, asked.recorded)))
    whole = range(0, len(step_seconds) - ends + 1, ends)
    times = [sum(step_seconds[at : at + ends]) for at in whole]

    def seconds(costs: Sequence[float]) -> tuple[float, float] | None:
        if not times:
            return None
        # First measurements may be too long.
        own = usual = statistics.median(times)
        if asked.operators:
            own = min(own, asked.step_cost / 1e9)
        again = max(costs) * (own + operators * REPEAT_SECONDS)
        least, most = min(*times, usual * (1 - SPREAD)), max(*times, usual * (1 + SPREAD))
        return least + min(costs) * own, most + again

    def outlook_of(budget_bytes: int, played: simulate.WhatIfPlay) -> Outlook | None:
        """None: it does not work."""
        first, learned = map(_bearable, (played.usual_repeated, played.learned_repeated))
        later = first if learned is None else learned
        if later is None:
            return None
        costs = [
            cost
            for repeated, cost in ((first, played.usual_cost), (learned, played.learned_cost))
            if repeated is not None and cost is not None
        ]
        return Outlook(
            budget_bytes,
            (budget_bytes - idle_bytes) / activation_bytes,
            None if first is None else 1 + first,
            1 + later,
            played.is_planned,
            seconds(costs),
        )

    low, high = idle_bytes, peak_bytes
    while high - low > max(1, CLOSE * high):
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    smallest = min(peak_bytes, math.ceil(high * MARGIN))
    while smallest < peak_bytes and not is_played(smallest):
        smallest = min(peak_bytes, math.ceil(smallest * (1 + CLOSE)))
    budgets = [idle_bytes + int(share * activation_bytes) for share in SHARES]
    budgets = [*(budget for budget in budgets if budget > smallest), smallest]
    with ThreadPoolExecutor(threads) as pool:  # the core plays without python's lock
        found = list(pool.map(partial(play, learn=True), budgets))
    outlooks = [each for each in map(outlook_of, budgets, found) if each is not None]
    noise = max(times) / min(times) if times else 1

    def advise(outlooks: Sequence[Outlook]) -> Outlook | None:
        return _advised(outlooks, peak_bytes, smallest, noise)

    advised = advise(outlooks)
    for _ in range(REFINED):
        below = [each for each in budgets if advised and each < advised.budget_bytes]
        if advised is None or not below:
            break
        budgets.append((advised.budget_bytes + max(below)) // 2)
        between = outlook_of(budgets[-1], play(budgets[-1], learn=True))
        if between:
            advised = advise([*outlooks, advised, between])
    if advised and advised not in outlooks:
        outlooks.append(advised)
    return replace(
        seen,
        outlooks=sorted(outlooks, key=lambda each: each.budget_bytes, reverse=True),
        advised=advised,
        limit=_limit(program, run(low)),
    )


def _advised(
    outlooks: Sequence[Outlook], peak_bytes: int, smallest: int, noise: float
) -> Outlook | None:
    """noise: the time of the slowest step over that of the fastest. Recomputation may take so many
    times as long, and the steps before one is learned must not be refused then."""
    saving = [
        each
        for each in outlooks
        if each.budget_bytes <= (1 - GAIN) * peak_bytes
        and each.first is not None
        and 1 + noise * (each.first - 1) <= SLOWEST
    ]
    with_room = [each for each in saving if each.budget_bytes >= ROOM * smallest]
    cheap = [each for each in with_room or saving if each.later <= WORTH]
    return cheap[-1] if cheap else saving[0] if saving else None


def _bearable(repeated: float | None) -> float | None:
    return None if repeated is None or 1 + repeated > SLOWEST else repeated


def _limit(program: Program, run: simulate.Run) -> Call | None:
    """The failed operator; None: it thrashed, or did not fail."""
    operators = computed(program)
    if run.status != "oom" or run.model_ops >= len(operators):
        return None
    return call_of(program, operators[run.model_ops])
