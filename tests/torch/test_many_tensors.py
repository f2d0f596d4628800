"""Operators with thousands of inputs and results, and jobs of thousands of small tensors: the same
bits, and no more work for each than for a few."""

from typing import Any

import pytest
import torch
from harness import assert_trains_in, checked_session, evicted
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


@pytest.mark.parametrize("dead", [False, True], ids=["live", "dead"])
def test_an_operator_with_many_evicted_inputs_comes_back(dead: bool) -> None:
    """What all were computed from and each input come back once, and the operator runs once."""
    expected = torch.cat(parts(MANY))
    with checked_session():
        inputs = parts(MANY)
        joined = torch.cat(inputs)
        if dead:
            inputs.clear()
        for tensor in inputs:
            evicted(tensor)
        evicted(joined)
        before = dtr_alloc.stats()
        assert torch.equal(joined, expected)
        assert since(before, "rematerializations", "preemptions") == [1 + MANY + 1, 0]


def test_many_results_of_one_operator_come_back_together() -> None:
    expected = torch.cat(torch._foreach_add(parts(MANY), 1))
    with checked_session():
        inputs = parts(MANY)
        results = torch._foreach_add(inputs, 1)
        joined = torch.cat(results)
        for tensor in (*inputs, *results, joined):
            evicted(tensor)
        before = dtr_alloc.stats()
        assert torch.equal(joined, expected)
        assert since(before, "rematerializations") == [1 + MANY + 2]
        assert all(dtr_alloc.is_resident(result) for result in results)


def test_many_overwritten_inputs_are_rebuilt_from_their_old_versions() -> None:
    expected = parts(MANY)
    torch._foreach_mul_(expected, 3)
    with checked_session():
        tensors = parts(MANY)
        torch._foreach_mul_(tensors, 3)
        for tensor in tensors:
            evicted(tensor)
        before = dtr_alloc.stats()
        assert all(map(torch.equal, tensors, expected))
        assert since(before, "rematerializations") == [1 + MANY + 1]


def test_inputs_that_are_lost_while_others_are_brought_back_come_back_too() -> None:
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
def test_the_search_among_many_small_tensors_evaluates_a_few(heuristic: str) -> None:
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
