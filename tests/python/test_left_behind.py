"""What each step of a log leaves allocated. Needs neither the core nor PyTorch."""

import pytest

from bench.studies.log import Log
from dtr_alloc.advise.left_behind import Left, left_behind
from dtr_alloc.advise.where import Call

OPERATORS = 20
"""Of a step, beside what it leaves."""


def left_by(kept, steps=5, before=0):
    """Of a job that makes a state for each of five parameters in its first step, and keeps so many
    results of 100 bytes of each."""
    log = Log()
    log.program.operator_names.append("op")
    log.constant("w", 1000)
    for i in range(before):
        log.call("w", {f"made{i}": 100})
    for step in range(steps):
        for i in range(OPERATORS):
            log.call("w", {"x": 500})
            if i < kept:
                log.call("x", {f"kept{step}/{i}": 100})
        if step == 0:
            for i in range(5):
                log.call("w", {f"state{i}": 100})
        log.mutate("w x", 0)
        log.mutate("w x", 0)
    log.call("w", {"last": 4000})
    return left_behind(log.program, steps)


@pytest.mark.parametrize("before", [0, 1000], ids=["", "after much else"])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_what_every_step_keeps_is_left_and_not_what_the_first_or_the_last_made(kept, before):
    assert left_by(kept, before=before) == [Left(Call("op", "", ""), kept * 100)] * bool(kept)


@pytest.mark.parametrize("steps", [0, 2])
def test_fewer_than_three_steps_are_too_few_to_know(steps):
    assert left_by(1, steps=steps) == []
