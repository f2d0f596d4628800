"""Where a job repeats itself, what is needed last goes first (policy/foresight.h)."""

import pytest

from bench.studies.log import Log
from dtr_alloc.simulation import simulate

UNIT = 512
LRU, NEXT = "s=1", "s=1,next=1"
PREAMBLE = 10
"""More operators than a repetition is recognized by."""


def evicted(log, budget, heuristic):
    """What goes for room, in order, by name."""
    run = simulate.run_log(
        log.program, heuristic, budget, semantics="runtime", decisions=True, outputs=False
    )
    assert run.status == "ok"
    return [log.program.names[int(one[1:])] for one in run.decisions.split() if one[0] == "E"]


def step(log, number, *, odd, uses):
    """Makes ``a`` and ``b``, of which one must go for ``c``; then uses them in this order."""
    for i in range(PREAMBLE):
        log.call("x", {f"p{number}-{i}": UNIT + 512 * i}, time=10)
        log.release(f"p{number}-{i}")
    a, b, c = (f"{name}{number}" for name in "abc")
    log.call("x", {a: 16 * UNIT}, time=100)
    log.call("x", {b: 16 * UNIT}, time=100)
    if odd:
        log.call("x", {f"odd{number}": 3 * UNIT}, time=10)
        log.release(f"odd{number}")
    log.call("x", {c: 16 * UNIT}, time=100)
    log.release(c)
    for name in uses:
        log.call(f"{name}{number}", {f"{name}{number}-used": UNIT}, time=10)
        log.release(f"{name}{number}-used")
    log.release(a)
    log.release(b)


def steps(*odd, uses="ab"):
    log = Log()
    log.constant("x", UNIT)
    for number, is_odd in enumerate(odd):
        step(log, number, odd=is_odd, uses=uses)
    return log


BUDGET = (1 + 16 + 16 + 4) * UNIT


def victims(log, heuristic):
    """Of each step the one that goes for ``c``."""
    return "".join(name[0] for name in evicted(log, BUDGET, heuristic))


@pytest.mark.parametrize("uses", ["ab", "a"])
def test_what_is_needed_last_or_never_goes_first_once_a_step_was_seen(uses):
    log = steps(False, False, False, uses=uses)
    # By staleness the older one goes, although it is needed first.
    assert victims(log, LRU) == "aaa"
    assert victims(log, NEXT) == "abb"


def test_an_operator_that_does_not_match_ends_it_at_once_and_the_next_step_is_known_again():
    assert victims(steps(False, False, True, False), NEXT) == "abab"


def test_two_steps_that_take_turns_are_both_known():
    assert victims(steps(False, True, False, True, False), NEXT) == "aabbb"


def test_layers_that_repeat_each_other_are_no_step():
    """What a layer makes stays, so the layer after it is none that the job does again."""
    log = Log()
    log.constant("x", UNIT)
    log.call("x", {"h0": UNIT}, time=10)
    for layer in range(40):
        for i in range(PREAMBLE):
            log.call(f"h{layer}", {f"t{layer}-{i}": UNIT}, time=10)
            log.release(f"t{layer}-{i}")
        log.call(f"h{layer}", {f"h{layer + 1}": 4 * UNIT}, time=10)
    for heuristic in ("c=local,m=size,s=1", "c=marginal,m=size,s=0.5"):
        by_rule, foreseen = (
            evicted(log, 60 * UNIT, f"{heuristic}{more}") for more in ("", ",next=1")
        )
        assert foreseen == by_rule


@pytest.mark.parametrize("cost", ["none", "marginal", "neighborhood", "component"])
def test_the_search_finds_what_has_the_least_score(make_toy, cost):
    """The bounds of the search hold while the next use comes nearer, and when it was foreseen
    wrongly (check_invariants)."""
    toy = make_toy(heuristic=f"c={cost},m=size,s=0.5,next=1,dealloc=lazy")
    x = toy.unseen(64)
    for number in range(6):
        made = [x]
        for i in range(24):
            made.append(toy.one(f"f{i}", made[-1], words=64 + 8 * (i % 5)))
            if i % 6 == 5:
                toy.evict(made[-3])
        toy.verify()
        # The fourth step reads them in another order than those before.
        order = made[1:] if number == 3 else made[:0:-1]
        for i, tensor in enumerate(order):
            toy.one(f"g{i}", tensor, words=8).release()
            if i % 8 == 0:
                toy.verify()
        for tensor in made[1:]:
            tensor.release()
