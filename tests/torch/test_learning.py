"""The engine learns a job's step and follows what costs least for it, with a plan of addresses; it
says when a budget is too small, and which would do (native/learn/, native/run/thrash_guard.h)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import MIB, call, fix_costs, told_by
from torch import nn

import dtr_alloc
from bench.measure import Profile, in_own_process, profile, train_plain
from bench.models import JOBS, differences
from bench.models.lstm import UnrolledLstm
from dtr_alloc import heuristics

STEPS = 24
"""More than it takes to hear a few steps of the jobs here, and to follow for a few."""
TIGHT = 0.15
"""Of the activation memory."""
ODD = (26, 27, 33)
"""Steps that are not like the others."""
NO_MOVES = {"debug": "no-moves"}
"""What moves cost is measured."""
MOST_REPEATS = 300_000
"""Of operators in one job. Where costs are measured, it fails rather than thrashes for hours."""


def train(
    job: str, budget: int, costs: Path | None = None, **settings: Any
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The state that a job ends with, and the counters after each step."""
    with dtr_alloc.session(budget=budget, device="cpu", costs=costs, **settings):
        dtr_alloc.limit_rematerializations(MOST_REPEATS)
        running = JOBS[job]()
        counters = []
        for step in range(STEPS):
            running.step(step)
            counters.append({**dtr_alloc.stats()})
        running.drop_gradients()
        return running.state(), counters


Step = Callable[[int], object]


def net(layers: int, width: int, *others: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU(), *others))
    )


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def keeping(held: list[torch.Tensor]) -> Step:
    """A job that has 2 KiB more after each step."""
    job = JOBS["transformer"]()

    def step(i: int) -> None:
        job.step(i)
        held.append(torch.zeros(512))
        dtr_alloc.pin(held[-1])

    return step


def growing(held: list[torch.Tensor], steps: int) -> Step:
    """The batch grows after each so many steps."""
    model = net(6, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return lambda i: trained(model, optimizer, torch.rand(256 + 32 * (i // steps), 64))


def reading(held: list[torch.Tensor]) -> Step:
    """Each step reads data that can be computed again."""
    data = torch.rand(75_000)
    job = JOBS["resnet"]()

    def step(i: int) -> None:
        (data + 1).sum()
        job.step(i)

    return step


def odd(held: list[torch.Tensor]) -> Step:
    """A model with dropout; some steps have another batch, or an evaluation before them."""
    model = net(8, 64, nn.Dropout(0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    held += model.parameters()

    def step(i: int) -> None:
        x = torch.rand(48 if i in ODD[:2] else 64, 64)
        if i in ODD[1:]:
            with torch.no_grad():
                model.eval()(x)
            model.train()
        trained(model, optimizer, x)

    return step


def crowded(held: list[torch.Tensor]) -> Step:
    """Once there is a plan, memory in its places is taken for good."""
    model = net(8, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held += model.parameters()

    def step(i: int) -> None:
        if i == STEPS:
            held.append(torch.zeros(17_500))
            dtr_alloc.pin(held[-1])
        trained(model, optimizer, torch.rand(512, 64))

    return step


def swapping(held: list[torch.Tensor]) -> Step:
    """A model that takes 6 MiB with gradients and Adam's states."""
    model = net(6, 256)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    data = torch.randn(64, 256)
    held += model.parameters()
    return lambda i: trained(model, optimizer, data)


def adapting(held: list[torch.Tensor]) -> Step:
    """Steps of gradient descent within a step. The data has a history from before all steps, and
    the first layer has no gradient of it."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(16, 16 if i else 2, 3, 3) * 0.1) for i in range(4)]
    gains = [nn.Parameter(torch.ones(16)) for _ in weights]
    data = torch.randn(8, 2, 20, 20) + 1
    optimizer = torch.optim.SGD([*weights, *gains], lr=0.01)

    def loss(weights: list[torch.Tensor], gains: list[torch.Tensor]) -> torch.Tensor:
        y = data
        for weight, gain in zip(weights, gains, strict=True):
            y = torch.relu(nn.functional.conv2d(y, weight) * gain[:, None, None])
        return y.square().mean()

    def step(i: int) -> None:
        optimizer.zero_grad()
        fast: list[torch.Tensor] = [*weights, *gains]
        for _ in range(6):
            gradients = torch.autograd.grad(loss(fast[:4], fast[4:]), fast, create_graph=True)
            fast = [a - 0.1 * b for a, b in zip(fast, gradients, strict=True)]
        loss(fast[:4], fast[4:]).backward()
        optimizer.step()

    return step


def integrating(held: list[torch.Tensor]) -> Step:
    """A differential equation, whose solution is written into a buffer, a part at a time."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, steps = torch.rand(128, 64) + 1, 24

    def step(i: int) -> None:
        optimizer.zero_grad()
        y, solution = data, torch.empty(steps + 1, 128, 64)
        solution[0] = y
        for k in range(steps):
            a = model(y)
            b = model(y + a / (2 * steps))
            c = model(y + b / (2 * steps))
            y = y + (a + 2 * b + 2 * c + model(y + c / steps)) / (6 * steps)
            solution[k + 1] = y
        solution[-1].square().mean().backward()
        optimizer.step()

    return step


def filling(held: list[torch.Tensor]) -> Step:
    """A buffer is written in two parts, and a model runs in between. A sum goes on from step to
    step."""
    layers = [nn.Linear(64, 64) for _ in range(12)]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    data, total = torch.rand(512, 64), [torch.zeros(1024)]

    def step(i: int) -> None:
        optimizer.zero_grad()
        buffer, y = torch.empty(6, 512, 64), data.clone()
        buffer[0] = y
        for layer in layers:
            y = layer(y).tanh()
        buffer[1:] = y
        (buffer[0] * buffer[1]).mean().backward()
        total[0] = total[0] * 0.9 + data[i % 8].repeat(16)
        optimizer.step()

    return step


def handing(held: list[torch.Tensor]) -> Step:
    """Results that are used once, and names for them: of an operator that fills memory, and of one
    without its first result. `held` tells which of them are there before the step ends."""
    data, others = torch.rand(128, 128), [torch.rand(128, 128) for _ in range(8)]
    gradient, x, weight = (torch.rand(1, 1, n, n) for n in (4, 131, 128))
    convolution = [1], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]

    def step(i: int) -> None:
        made = []
        for other in others:
            product = torch.mul(data, other, out=torch.empty(128, 128))
            _, a, _ = torch.ops.aten.convolution_backward(gradient, x, weight, *convolution)
            made.append((product, a, product.exp() + a[0, 0]))
        held[:] = [torch.tensor([dtr_alloc.is_resident(each[k]) for each in made]) for k in (0, 1)]
        sum(y.sum() for _, _, y in reversed(made))

    return step


def sorting(held: list[torch.Tensor], asked: int = 0) -> Step:
    """The values of a sort are not used again, and its places are: to know them, a plan computes
    both again, and needs the values no longer. `held` tells which values are there when they were
    asked for, in one step."""
    weights = [torch.rand(256, 256, requires_grad=True) for _ in range(8)]
    x, factor = torch.rand(256, 256), torch.rand(256, 256)

    def step(i: int) -> None:
        kept, loss = [], torch.zeros(())
        for weight in weights:
            weight.grad = None
            values, _places = torch.sort(torch.tanh(x @ weight), dim=1)
            kept.append(values.detach())
            loss = loss + (values * factor).sum()
            del values, _places
        if i == asked:
            for values in kept:
                dtr_alloc.materialize(values)
                held.append(torch.tensor([dtr_alloc.is_resident(values)]))
        loss.backward()

    return step


def follow(
    job: str, budget: int, costs: str, steps: int, settings: dict[str, Any], *arguments: Any
) -> dict[str, Any]:
    """What each step of a job adds to the counters, what was learned at the end, and a digest of
    the parameters. Without a budget there is no session."""
    held: list[torch.Tensor] = []
    counters, learned = [], {}
    with ExitStack() as stack:
        if budget:
            settings = {"costs": costs, **settings}
            if dealloc := settings.pop("dealloc", ""):
                settings["heuristic"] = replace(heuristics.parse("adaptive"), dealloc=dealloc)
            stack.enter_context(dtr_alloc.session(budget=budget, device="cpu", **settings))
            counters.append({**dtr_alloc.stats()})
        step = JOBS[job]().step if job in JOBS else globals()[job](held, *arguments)
        for i in range(steps):
            step(i)
            if budget:
                counters.append({**dtr_alloc.stats()})
                learned = {name: counters[-1][name] for name in ("learned", "learning")}
        if budget:
            dtr_alloc.check_invariants()
        content = b"".join(tensor.detach().numpy().tobytes() for tensor in held)
    added = [
        {name: b[name] - a[name] for name in a if isinstance(a[name], int | float)}
        for a, b in pairwise(counters)
    ]
    return {"added": added, "digest": hashlib.sha256(content).hexdigest(), **learned}


def costs_of(job: str, folder: Path, **settings: Any) -> Path:
    """A file with what a job's operators cost, of three steps without a limit."""
    costs = folder / "costs.json"
    told_by(follow, job, 1 << 30, costs, 3, settings)
    fix_costs(costs)
    return costs


def total(found: dict[str, Any], name: str, last: int = 0) -> int:
    """What all steps added to a counter, or the last so many."""
    return sum(added[name] for added in found["added"][-last:])


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Path]:
    """The shape of the job in a process of its own, and a file of its operators' costs."""
    costs = tmp_path_factory.mktemp("lstm") / "costs.json"
    shape, _free = in_own_process(profile, "lstm", 2)
    train("lstm", 1 << 30, costs)
    fix_costs(costs)
    return shape, costs


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": "64MiB"}, "recording: no step has been repeated three times yet"),
        ({"budget": "64MiB", "log": "job.log"}, "off: a job that writes an op log"),
        ({"budget": "64MiB", "heuristic": "marginal"}, ""),
        ({"budget": "unlimited"}, ""),
    ],
)
def test_why_nothing_was_learned_is_said(tmp_path, monkeypatch, settings, said):
    monkeypatch.chdir(tmp_path)
    with dtr_alloc.session(device="cpu", **settings):
        torch.ones(1000).add(1)
        during = dtr_alloc.stats()["learning"]
    assert during.startswith(said)
    assert bool(during) == bool(said)


class RaggedLstm(UnrolledLstm):
    """Over another number of steps each time."""

    def train(self, i: int) -> torch.Tensor:
        whole = self.x
        self.x = whole[: self.STEPS - (7 * i * i + 3 * i) % 11]
        try:
            return super().train(i)
        finally:
            self.x = whole


class TestPolicy:
    def test_a_job_costs_less(self, lstm):
        shape, costs = lstm

        def told(heuristic: str) -> Any:
            settings = {"heuristic": heuristic, **NO_MOVES}
            return told_by(follow, "lstm", shape.budget(TIGHT), costs, STEPS, settings)

        learned, rule = told("adaptive"), told("marginal")
        assert learned["learned"] > 0
        assert re.fullmatch(
            r"following a (plan|policy) since step \d+ \(repeats \.\d\d\)", learned["learning"]
        )
        assert (rule["learned"], rule["learning"]) == (0, "")

        def cost(found: dict[str, Any]) -> float:
            """Seconds, with remaps and searches at the prices of native/policy/room_price.h."""
            room = 50e-6 * total(found, "remaps") + 5e-6 * total(found, "searches")
            return room + total(found, "recompute_cost_seconds")

        # Near the smallest budget the rule may compute less again, but it remaps and searches.
        assert cost(learned) < cost(rule)

    def test_a_job_whose_steps_all_differ_has_no_plan_and_no_cliff(self, lstm, monkeypatch):
        """What it did in its first 49,152 operators stands for the others."""
        shape, costs = lstm
        monkeypatch.setitem(JOBS, "ragged", RaggedLstm)
        free, _counters = train("ragged", 1 << 30, costs)
        # What the first run leaves in memory counts in all others.
        (_found, _counters), (_found, preset), (found, counters) = (
            train("ragged", shape.budget(TIGHT), costs, heuristic=heuristic, debug="no-moves")
            for heuristic in ("dtr-full", "dtr-full", "adaptive")
        )
        assert counters[-1]["recompute_cost_seconds"] < 1.5 * preset[-1]["recompute_cost_seconds"]
        assert counters[-1]["planned"] == 0
        assert not differences(free, found)

    @pytest.mark.long
    def test_a_better_plan_takes_over_and_the_bits_stay(self):
        """How many steps that takes depends on the machine: it is beside the job. Where none was
        found in time, the bits are those of the first plan."""
        shape, _free = profile("unet", 3)
        steps, until = 0, 300
        with dtr_alloc.session(budget=shape.budget(0.3), device="cpu"):
            job = JOBS["unet"]()
            while steps < until:
                job.step(steps)
                steps += 1
                if dtr_alloc.stats()["learned"] == 2:
                    until = min(until, steps + 8)
            state = job.state()
        assert not differences(train_plain("unet", steps), state)

    def test_a_budget_that_never_binds_has_nothing_learned(self):
        _state, counters = train("mlp", 1 << 30, None)
        assert counters[-1]["evictions"] == counters[-1]["learned"] == 0


class TestPlan:
    @pytest.mark.parametrize(
        ("job", "fraction"),
        [
            ("densenet", 0.5),
            pytest.param("resnet", 0.3, marks=pytest.mark.long),
            ("transformer", 0.2),
            pytest.param("unrolled_gan", 0.2, marks=pytest.mark.long),
        ],
    )
    def test_a_job_ends_with_a_plan_and_all_it_asks_for_has_its_place(
        self, job, fraction, tmp_path
    ):
        costs = tmp_path / "costs.json"
        shape, _free = profile(job, 2, settings={"costs": costs})
        fix_costs(costs)
        found = told_by(follow, job, shape.budget(fraction), costs, STEPS, {})
        assert total(found, "planned", 4) > 0
        assert (total(found, "plan_misses", 4), total(found, "remaps", 4)) == (0, 0)

    @pytest.mark.parametrize("dealloc", ["eager", "lazy"])
    @pytest.mark.parametrize(
        ("job", "budget"),
        [("adapting", 2_360_000), ("integrating", 3_000_000), ("filling", 2_220_000)],
    )
    def test_a_planned_step_does_what_was_played(self, job, budget, dealloc, tmp_path):
        """Whatever becomes of dead contents without a plan. Most results are dropped right after
        their last use, and need no eviction."""
        costs = costs_of(job, tmp_path)
        found = told_by(follow, job, budget, costs, STEPS // 2, {"dealloc": dealloc})
        promised = re.search(r"following a plan .*\(repeats (.*)\)", found["learning"])
        assert promised
        own, again = (total(found, f"{of}_cost_seconds", 4) for of in ("total", "recompute"))
        assert again / own == pytest.approx(float(promised[1]), abs=0.006)
        assert total(found, "plan_misses", 4) == 0
        assert total(found, "evictions", 4) < 0.5 * total(found, "planned", 4)

    def test_what_goes_on_from_step_to_step_has_no_history_without_end(self, tmp_path):
        costs = costs_of("filling", tmp_path)
        found = told_by(follow, "filling", 2_220_000, costs, 2 * STEPS, {})
        assert total(found, "planned", 1) > 0
        assert total(found, "live_records", STEPS) == 0

    def test_a_plan_evicts_what_it_has_used_for_the_last_time(self, tmp_path):
        costs = costs_of("handing", tmp_path)
        found = told_by(follow, "handing", 2_415_000, costs, STEPS, {})
        assert total(found, "planned", 1) > 0
        assert found["digest"] == hashlib.sha256(bytes(16)).hexdigest()

    @pytest.mark.long
    def test_a_job_that_keeps_something_of_each_step_gets_a_new_plan_in_time(self, tmp_path):
        costs = costs_of("keeping", tmp_path)
        shape, _free = profile("transformer", 2)
        found = told_by(follow, "keeping", shape.budget(0.4), costs, 6 * STEPS, {})
        others = found["added"][STEPS:]
        for part in range(0, len(others), STEPS):
            assert any(added["planned"] for added in others[part : part + STEPS])
        assert total(found, "plan_misses", 5 * STEPS) < STEPS
        # What it keeps takes a page every second step, and remaps are cheap.
        assert total(found, "remaps", 5 * STEPS) < 20 * STEPS

    def test_what_is_evicted_when_a_plan_is_made_has_a_place_in_it(self, tmp_path):
        costs = costs_of("reading", tmp_path)
        shape, _free = profile("resnet", 2)
        found = told_by(follow, "reading", shape.budget(0.3) + 300_000, costs, 40, {})
        assert total(found, "planned", 1) > 0
        assert (total(found, "plan_misses", 1), total(found, "remaps", 1)) == (0, 0)

    def test_a_job_for_which_nothing_was_found_is_heard_again_when_it_gets_dearer(self, tmp_path):
        costs = tmp_path / "costs.json"
        # Of each size of the batch.
        told_by(follow, "growing", 1 << 30, costs, 8 * 3, {}, 3)
        fix_costs(costs)
        steps = 60
        found = told_by(follow, "growing", 700_000, costs, 8 * steps, {}, steps)
        planned = [added["planned"] for added in found["added"][steps - 1 :: steps]]
        nothing = planned.index(0, planned.index(max(planned[:2])))
        assert any(planned[:nothing])
        assert any(planned[nothing:])

    def test_a_step_that_is_as_it_was_goes_by_the_plan_and_others_do_not(self, tmp_path):
        costs = tmp_path / "costs.json"

        def run_odd(budget: int) -> Any:
            return told_by(follow, "odd", budget, costs, 44, NO_MOVES)

        plain = run_odd(0)
        run_odd(1 << 30)
        fix_costs(costs)
        found = run_odd(650_000)
        assert found["digest"] == plain["digest"]
        planned = [step["planned"] for step in found["added"]]
        usual = max(planned)
        assert usual > 50
        for step in range(planned.index(usual), len(planned)):
            if step in ODD:
                assert planned[step] < usual / 2
            elif step - 1 not in ODD:
                assert planned[step] == usual
        assert (total(found, "plan_misses", 8), total(found, "remaps", 8)) == (0, 0)

    def test_what_is_asked_for_in_a_planned_step_is_there(self, tmp_path):
        costs = costs_of("sorting", tmp_path)
        found = told_by(follow, "sorting", 6_920_000, costs, 21, NO_MOVES, 20)
        assert total(found, "planned") > 0
        assert found["digest"] == hashlib.sha256(bytes([1] * 8)).hexdigest()


def grind(
    budget: int, thrash: str, costs: str, heuristic: str = "adaptive", steps: int = 40
) -> dict[str, Any]:
    """What came of a long chain of products, kept for its backward pass."""
    error = None
    settings: dict[str, Any] = {"thrash": thrash, "costs": costs, "debug": "no-moves"}
    settings["heuristic"] = heuristic
    if heuristic == "callable":
        settings["heuristic"] = dtr_alloc.Heuristic(
            "oldest", select="callback", score=lambda candidate: candidate.staleness_ns
        )
    with dtr_alloc.session(budget=budget, device="cpu", **settings):
        x = torch.rand(64, 64, requires_grad=True)

        def step() -> None:
            y = x
            for _ in range(300):
                y = torch.tanh(y @ x)
            y.sum().backward()
            x.grad = None

        try:
            for _ in range(steps):
                step()
        except torch.OutOfMemoryError as raised:
            error = str(raised)
        dtr_alloc.check_invariants()
        ones = float(torch.ones(64, 64).sum())
        stats = dtr_alloc.stats()
    times = 1 + stats["recompute_cost_seconds"] / stats["total_cost_seconds"]
    return {"error": error, "ones": ones, "times": times}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what the chain's operators cost."""
    costs = tmp_path_factory.mktemp("chain") / "costs.json"
    call(grind, 1 << 30, "off", costs)
    fix_costs(costs)
    return costs


class TestThrash:
    BUDGET = 2 * 300 * 64 * 64 * 4 // 40
    ADVICE = re.compile(r"a budget of ([0-9.]+) MiB would do, with ([0-9.]+) times the compute")
    NONE = "No play of what ran so far confirms a budget that would do."

    def run(self, *arguments: object) -> tuple[dict[str, Any], list[str]]:
        """What came of the chain, and the lines on stderr."""
        done = call(grind, *arguments)
        return json.loads(done.stdout), done.stderr.splitlines()

    def test_a_job_that_grinds_ends_with_the_budget_that_would_do(self, costs):
        found, said = self.run(self.BUDGET, "off", costs)
        assert found["times"] > 1.5
        assert (found["error"], said) == (None, [])

        found, said = self.run(self.BUDGET, "1.4", costs)
        assert len(said) == 1
        assert found["ones"] == 64 * 64, "the session is usable"
        advice = [self.ADVICE.search(text) for text in (said[0], found["error"])]
        assert all(advice)

        budgets = [float(of[1]) * MIB for of in advice if of]
        assert [budget % (1 << 16) for budget in budgets] == [0, 0], "the very budgets played"
        assert all(1 < float(of[2]) < (1 + 1.4) / 2 for of in advice if of)
        # The line knows less of the job than the error.
        found, said = self.run(int(max(budgets)), "1.4", costs)
        assert (found["error"], said) == (None, [])
        assert found["times"] < 1.4

    def test_a_plan_that_thrashes_goes_before_the_job_ends(self, tmp_path):
        costs = costs_of("crowded", tmp_path)
        found = told_by(follow, "crowded", 1_000_000, costs, 4 * STEPS, {"thrash": 1.1})
        repeated = [step["recompute_cost_seconds"] for step in found["added"]]
        assert max(repeated[STEPS:]) > 3 * repeated[STEPS - 1], "the plan thrashes"
        assert repeated[-1] < 2 * repeated[STEPS - 1]

    def test_a_budget_is_advised_for_the_heuristic_of_the_job_alone(self, costs):
        """Without a plan, and with the room that the heuristic has."""
        found, _said = self.run(self.BUDGET, "1.4", costs, "dtr-full")
        of = self.ADVICE.search(found["error"])
        assert of
        found, said = self.run(int(float(of[1]) * MIB), "off", costs, "dtr-full", 2)
        assert said == []
        assert found["times"] == pytest.approx(float(of[2]), abs=0.05)

    def test_where_no_play_confirms_a_budget_it_is_said(self, costs):
        """A callable heuristic cannot be played; this one keeps what was used longest ago."""
        found, said = self.run(4 * self.BUDGET, "1.4", costs, "callable", 1)
        assert [self.NONE in text for text in (said[0], found["error"])] == [True, True]


class TestSwaps:
    BUDGET = 4 << 20

    def test_a_step_is_learned_of_which_constants_are_swapped(self, tmp_path):
        settings = {"swap": "1GiB", **NO_MOVES}
        costs = costs_of("swapping", tmp_path, **settings)
        free = told_by(follow, "swapping", 1 << 30, costs, STEPS, settings)
        rule = told_by(
            follow, "swapping", self.BUDGET, costs, STEPS, {**settings, "heuristic": "marginal"}
        )
        learned, again = (
            told_by(follow, "swapping", self.BUDGET, costs, STEPS, settings) for _ in range(2)
        )
        assert learned["digest"] == again["digest"] == rule["digest"] == free["digest"]
        assert (rule["learned"], learned["learned"]) == (0, 1)
        by_rule, by_plan, by_plan_again = (
            {name: total(found, name, 2) for name in ("swap_seconds", "swapped_in_bytes")}
            for found in (rule, learned, again)
        )
        assert by_plan == by_plan_again
        assert 0 < by_plan["swapped_in_bytes"] < 0.8 * by_rule["swapped_in_bytes"]
        assert by_plan["swap_seconds"] < by_rule["swap_seconds"]
