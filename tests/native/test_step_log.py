"""What a job repeats is found in its op log (native/learn/step_log.h). Needs a C++ compiler."""

from itertools import count
from random import Random
from typing import NamedTuple

import pytest

CONSTANT, CALL, RELEASE = 0, 1, 5  # dtr/op_log.h
BYTES = 1000


class Found(NamedTuple):
    period: int
    end: int
    steps: int
    operators: int
    counted_from: int


class Job:
    """Writes the records of operators."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self._numbers = count(1)

    def constant(self) -> int:
        number = next(self._numbers)
        self.records += [CONSTANT, number, BYTES]
        return number

    def release(self, number: int) -> None:
        self.records += [RELEASE, number, 0]

    def call(self, call: int, *arguments: int, size: int = BYTES) -> int:
        number = next(self._numbers)
        names = [part for argument in arguments for part in (argument, 0)]
        self.records += [CALL, call * 8, 1, len(arguments), *names, 1, number, 0, size, -1]
        return number


@pytest.fixture
def hear(learn):
    ffi, lib = learn

    def found(job: Job) -> Found:
        numbers = ffi.new("uint64_t[5]")
        lib.repetition_of(ffi.new("int64_t[]", job.records), len(job.records), numbers)
        return Found(*numbers)

    return found


def by_definition(kinds: list[int], live: list[int]) -> tuple[int, int, int]:
    """StepLog::Repetition: period, end and steps, from the kinds of operators and the bytes in use
    after them, read backwards."""
    total, most = len(kinds), max(live)
    for period in range(2, total // 2 + 1):
        alike = 0
        while period + alike < total and kinds[alike] == kinds[period + alike]:
            alike += 1
        if alike < period or 4 * (period + alike) < total:
            continue
        if abs(live[1] - live[period + 1]) > 0.005 * most:
            continue
        inside = live[1 : period + 1]
        if max(inside) - min(inside) < 0.05 * most:
            continue
        # The least in use, as near to the end as the step's last point, or as far as may be.
        low = max((i for i in range(1, period) if live[i] == min(inside)), default=0)
        return period, total - low, (period + alike - low) // period
    return 0, 0, 0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_shortest_period_by_definition(hear, seed):
    """What dies at the job's end hides no step. At most four are played, and the first does not
    count."""
    random = Random(seed)
    for _ in range(50):
        job = Job()
        weight = job.constant()
        kinds, live, held = [], [], []
        step = [
            (random.randrange(3), random.randrange(1, 3)) for _ in range(random.randrange(1, 9))
        ]
        plan = [(7, 1)] * random.randrange(4) + step * random.randrange(1, 9)
        plan += step[: random.randrange(len(step))]
        for kind, keeps in plan:
            size = BYTES + kind  # which tells operators apart
            held.append((job.call(0, weight, size=size), size))
            kinds.append(kind)
            while len(held) > keeps:
                job.release(held.pop(0)[0])
            live.append(BYTES + sum(each for _, each in held))
        if random.random() < 0.5:
            job.release(weight)
        found = hear(job)
        assert (found.period, found.end if found.period else 0, found.steps) == by_definition(
            kinds[::-1], live[::-1]
        )
        if found.period:
            assert found.operators == min(found.steps, 4) * found.period
            assert found.counted_from == (found.period if found.steps > 1 else 0)


# ---- Where a step of a plan begins is heard in the calls of a job (native/run/step_plan.h) ----


@pytest.fixture
def begins(learn):
    ffi, lib = learn

    def found(plan: list[int], job: list[int]) -> list[bool]:
        is_beginning = ffi.new("uint8_t[]", len(job))
        numbers = [ffi.new("uint64_t[]", [8 * call for call in calls]) for calls in (plan, job)]
        lib.begins(numbers[0], len(plan), numbers[1], len(job), is_beginning)
        return [bool(begins) for begins in is_beginning]

    return found


def looked_for(plan: list[int], job: list[int]) -> list[bool]:
    """The same by looking at all calls before each, as far as they tell a step's end from all else
    in it."""
    count = len(plan)
    rounds = [plan[end:] + plan[:end] for end in range(1, count)]
    needed = next(
        n for n in range(1, count + 1) if n == count or all(r[-n:] != plan[-n:] for r in rounds)
    )
    at, heard, found = None, [], []
    for call in job:
        if at is not None and plan[at] == call:
            at = (at + 1) % count
        else:
            heard = [call] if at is not None else [*heard, call]
            at = 0 if heard[-needed:] == plan[-needed:] else None
        found.append(at == 0)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_where_calls_repeat_a_step_begins_where_looking_back_finds_it(begins, seed):
    random = Random(seed)
    plan = random.choices(range(1, 4), k=random.randint(1, 12))
    job = []
    while len(job) < 200:
        job += (
            plan if random.random() < 0.6 else random.choices(range(1, 4), k=random.randint(1, 9))
        )
        if random.random() < 0.3:
            del job[-random.randint(1, 5) :]
    assert begins(plan, job) == looked_for(plan, job)
