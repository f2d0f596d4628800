"""Operators with thousands of inputs and results, and jobs of thousands of small tensors: the same
bits, and no more work for each than for a few."""

from typing import Any

import pytest
import torch
from harness import assert_equal, assert_trains_in, checked_session, evicted
from torch import Tensor

import dtr_alloc

MANY = 2000
ELEMENTS = 64


def parts(count: int) -> list[Tensor]:
    """So many tensors, each the result of an operator; what they read is dropped."""
    base = torch.linspace(-1, 1, ELEMENTS)
    return [base * i for i in range(count)]


def since(before: dict[str, Any], *names: str) -> list[int]:
    after = dtr_alloc.stats()
    return [after[name] - before[name] for name in names]


def joined(inputs: list[Tensor]) -> list[Tensor]:
    return [torch.cat(inputs)]


def joined_alone(inputs: list[Tensor]) -> list[Tensor]:
    made = joined(inputs)
    inputs.clear()
    return made


def many_results(inputs: list[Tensor]) -> list[Tensor]:
    results = torch._foreach_add(inputs, 1)
    return [*results, torch.cat(results)]


def overwritten(inputs: list[Tensor]) -> list[Tensor]:
    torch._foreach_mul_(inputs, 3)
    return []


@pytest.mark.parametrize(
    ("use", "repeats"),
    [(joined, 1), (joined_alone, 1), (many_results, 2), (overwritten, 1)],
    ids=["inputs", "dead inputs", "results", "overwritten inputs"],
)
def test_an_operator_with_many_tensors_comes_back(use, repeats):
    """What all were computed from and each input, in its old version, come back once, and the
    operator runs once for all of its results."""

    def run() -> list[Tensor]:
        inputs = parts(MANY)
        made = use(inputs)
        return [*inputs, *made]

    expected = run()
    with checked_session():
        got = run()
        for tensor in got:
            evicted(tensor)
        before = dtr_alloc.stats()
        # The last one is made of all others.
        assert torch.equal(got[-1], expected[-1])
        assert_equal(expected, got)
        assert since(before, "rematerializations", "preemptions") == [1 + MANY + repeats, 0]


def test_inputs_that_are_lost_while_others_are_brought_back_come_back_too():
    """Memory has room for the operator, but not for what else is live: what comes back for it
    pushes out some that were there."""

    def job() -> list[Tensor]:
        inputs = parts(MANY)
        joined = torch.cat(inputs)
        others = [torch.sin(tensor) for tensor in inputs]
        again = (joined * 2).sum()
        return [again + sum(map(torch.sum, inputs)) + sum(map(torch.sum, others))]

    found = assert_trains_in(0.6, job)
    assert MANY < found["rematerializations"] < 6 * MANY
    assert found["evictions"] < 6 * MANY


@pytest.mark.parametrize("heuristic", ["marginal", "dtr-full", "lru"])
def test_the_search_among_many_small_tensors_evaluates_a_few(heuristic):
    """Objects of slabs have no free bytes beside them, and bounds know it: what other objects leave
    free is no reason to ask for exact scores."""
    length = 4000

    def job() -> float:
        x = torch.linspace(0, 1, 40)
        kept = [x := torch.sin(x) for _ in range(length)]
        total = kept.pop()
        while kept:
            total = total + kept.pop()
        return float(total.sum())

    expected = job()
    with dtr_alloc.session(budget=35 * length * 192 // 100, device="cpu", heuristic=heuristic):
        before = dtr_alloc.stats()
        assert job() == expected
        searches, evaluations = since(before, "searches", "evaluations")
    assert searches > length // 2
    assert evaluations < 40 * searches, "a thousand and more could be evicted at any time"
