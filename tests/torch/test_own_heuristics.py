"""Heuristics that are functions of the user's; a wrong one says so."""

import gc
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from harness import assert_same_bits

import dtr_alloc
from bench.measure import profile, train, train_plain
from dtr_alloc import heuristics
from dtr_alloc.heuristics import Candidate

STEPS = 2


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Registers a callable as "mine", which is forgotten after the test."""
    monkeypatch.setattr(heuristics, "_registered", {})

    def register(score: Callable[[Candidate], float]) -> str:
        dtr_alloc.register_heuristic("mine", score)
        return "mine"

    return register


def test_a_registered_callable_chooses(register):
    """Its choices are those of the preset with the same equation, as far as it can see."""
    asked: list[Candidate] = []

    def score(candidate: Candidate) -> float:
        asked.append(candidate)
        cost = candidate.cost_ns + candidate.ancestors_ns + candidate.descendants_ns
        return cost / (candidate.size_bytes * max(candidate.staleness_ns, 1))

    shape, _ = profile("transformer", STEPS)
    settings = {"heuristic": register(score)}
    run = train("transformer", shape.budget(0.6), STEPS, check=True, settings=settings)
    assert_same_bits(train_plain("transformer", STEPS), run.state, "a callable")
    assert run.added["rematerializations"] > 0
    assert run.added["evaluations"] == len(asked)
    assert {candidate.live for candidate in asked} >= {True}


def fails(candidate: Candidate) -> float:
    raise KeyError("no such layer")


@pytest.mark.parametrize(
    ("score", "message", "cause"),
    [
        (fails, r"heuristic 'mine' failed: KeyError: 'no such layer'", KeyError),
        (lambda candidate: math.nan, r"heuristic 'mine' failed: .* is nan; allowed", ValueError),
        (lambda candidate: "low", r"heuristic 'mine' failed: .* is 'low'; allowed", ValueError),
        (lambda candidate: None, r"heuristic 'mine' failed: TypeError", TypeError),
    ],
)
def test_a_callable_that_gives_no_score_fails_the_allocation(register, score, message, cause):
    """The error names the heuristic and has the callable's own error as its cause."""
    gc.collect()  # what another test's error held
    with dtr_alloc.session(budget="8MiB", device="cpu", heuristic=register(score)):
        x = torch.ones(256, 1024)
        results = [x * i for i in range(6)]
        with pytest.raises(RuntimeError, match=message) as caught:
            torch.zeros(512, 1024)
        assert not isinstance(caught.value, torch.OutOfMemoryError)
        assert isinstance(caught.value.__cause__, cause)
        dtr_alloc.check_invariants()
        assert [float(result.sum()) for result in results] == [i * 256 * 1024 for i in range(6)]
