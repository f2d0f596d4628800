"""The engine learns a job's step and follows what costs least for it; it says when a budget is too
small, and which would do (native/learn/, run/thrash_guard.h)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dtr_alloc
from bench.measure import Profile, profile
from bench.models import JOBS, differences

STEPS = 24
"""More than it takes to hear a few steps of the jobs here, and to follow for a few."""


def train(
    job: str, budget: int, costs: Path | None, **settings: Any
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The state that a job ends with, and the counters after each step, from 0."""
    with dtr_alloc.session(budget=budget, device="cpu", costs=costs, **settings):
        before = dtr_alloc.stats()
        running = JOBS[job]()
        counters = []
        for step in range(STEPS):
            running.step(step)
            now = dtr_alloc.stats()
            counters.append(
                {name: now[name] - before[name] for name in now if now[name] is not None}
            )
        running.drop_gradients()
        return running.state(), counters


DENSENET = f"""
import json, sys
import torch
import dtr_alloc
from bench.models import JOBS

torch.set_num_threads(1)
budget, costs = sys.argv[1:]
with dtr_alloc.session(budget=int(budget), device="cpu", costs=costs, debug="no-moves"):
    job = JOBS["densenet"]()
    for step in range({STEPS}):
        job.step(step)
    stats = dtr_alloc.stats()
    job.drop_gradients()
decisions = ("learned", "evictions", "evicted_bytes", "rematerializations", "recompute_cost_ns")
print(json.dumps({{name: stats[name] for name in decisions}}))
"""


@pytest.fixture(scope="module")
def densenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Path]:
    """The job's shape, and a file with what its operators cost."""
    costs = tmp_path_factory.mktemp("densenet") / "costs.json"
    shape, _free = profile("densenet", 2)
    train("densenet", shape.budget(0.5), costs, heuristic="marginal")
    return shape, costs


class TestPolicy:
    def test_it_computes_less_again_and_keeps_the_bits(
        self, densenet: tuple[Profile, Path]
    ) -> None:
        shape, costs = densenet
        plain, by_rule = train("densenet", shape.budget(0.5), costs, heuristic="marginal")
        learned, adaptive = train("densenet", shape.budget(0.5), costs)
        assert not differences(plain, learned)
        assert adaptive[-1]["learned"] > 0
        assert by_rule[-1]["learned"] == 0

        def again(counters: list[dict[str, Any]]) -> int:
            """Of the last steps."""
            spent: int = counters[-1]["recompute_cost_ns"] - counters[-5]["recompute_cost_ns"]
            return spent

        assert again(adaptive) < 0.7 * again(by_rule)

    def test_two_runs_with_one_file_of_costs_decide_alike(
        self, densenet: tuple[Profile, Path]
    ) -> None:
        shape, costs = densenet
        child = (sys.executable, "-W", "ignore", "-c", DENSENET, str(shape.budget(0.5)), str(costs))
        first, second = (
            json.loads(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout)
            for _ in range(2)
        )
        assert first == second
        assert first["learned"] > 0

    def test_without_a_costs_file_it_is_learned_beside_the_job(
        self, densenet: tuple[Profile, Path]
    ) -> None:
        shape, costs = densenet
        plain, _counters = train("densenet", shape.budget(0.5), costs, heuristic="marginal")
        learned, _counters = train("densenet", shape.budget(0.5), None)
        assert not differences(plain, learned)

    def test_a_budget_that_never_binds_has_nothing_learned(self) -> None:
        _state, counters = train("mlp", 1 << 30, None)
        assert counters[-1]["evictions"] == counters[-1]["learned"] == 0

    def test_an_op_log_has_nothing_of_what_was_learned(self, tmp_path: Path) -> None:
        shape, _free = profile("mlp", 2)
        logs = []
        for name in ("first.log", "second.log"):
            train("mlp", shape.budget(0.5), None)
            train("mlp", shape.budget(0.5), None, log=tmp_path / name)
            logs.append(re.sub('"TIME":"[0-9]+"', "", (tmp_path / name).read_text()))
        assert logs[0] == logs[1]


class Chain:
    """A long chain of products, kept for its backward pass."""

    LINKS = 200

    def __init__(self) -> None:
        self.x = torch.rand(64, 64, requires_grad=True)

    def step(self) -> None:
        y = self.x
        for _ in range(self.LINKS):
            y = torch.tanh(y @ self.x)
        y.sum().backward()
        self.x.grad = None

    ACTIVATIONS = 2 * LINKS * 64 * 64 * 4  # bytes


class TestThrash:
    BUDGET = Chain.ACTIVATIONS // 25

    def run(self, budget: int, **settings: Any) -> float:
        """How many times the operators' compute was spent."""
        with dtr_alloc.session(budget=budget, device="cpu", heuristic="dtr-eqclass", **settings):
            before = dtr_alloc.stats()
            chain = Chain()
            for _ in range(3):
                chain.step()
            after = dtr_alloc.stats()
            del chain
        own, again = (
            after[name] - before[name] for name in ("total_cost_ns", "recompute_cost_ns")
        )
        return 1 + float(again) / float(own)

    def test_a_job_that_grinds_ends_with_the_budget_that_would_do(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(self.BUDGET, thrash="off") > 2
        assert capfd.readouterr().err == ""
        with pytest.raises(torch.OutOfMemoryError, match="the budget is too small") as raised:
            self.run(self.BUDGET, thrash=1.5)
        said = capfd.readouterr().err.splitlines()
        assert len(said) == 1
        advice = re.compile(r"a budget of ([0-9]+) MiB would do")
        for text in (said[0], str(raised.value)):
            found = advice.search(text)
            assert found is not None
        assert self.run(int(found[1]) << 20, thrash=1.5) < 1.5

    def test_a_session_is_usable_after_it(self) -> None:
        with dtr_alloc.session(budget=self.BUDGET, device="cpu", thrash=1.2):
            chain = Chain()
            with pytest.raises(torch.OutOfMemoryError):
                for _ in range(20):
                    chain.step()
            dtr_alloc.check_invariants()
            assert torch.ones(64, 64).sum() == 4096
            del chain

    def test_a_budget_that_has_no_place_for_a_tensor_names_one_that_has(self) -> None:
        with dtr_alloc.session(budget="1MiB", device="cpu"):
            kept = torch.ones(1 << 17)
            with pytest.raises(torch.OutOfMemoryError, match="a budget of 1 MiB would do"):
                torch.ones(1 << 18) + kept
            del kept
