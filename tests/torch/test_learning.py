"""The engine learns a job's step and follows what costs least for it, with a plan of addresses; it
says when a budget is too small, and which would do (native/learn/, native/run/thrash_guard.h)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import MIB, fix_costs

import dtr_alloc
from bench.measure import Profile, in_own_process, profile, train_plain
from bench.models import JOBS, differences
from bench.models.lstm import UnrolledLstm

STEPS = 24
"""More than it takes to hear a few steps of the jobs here, and to follow for a few."""
TIGHT = 0.15
"""Of the activation memory."""


MOST_REPEATS = 300_000
"""Of operators in one job. Where costs are measured, it fails rather than thrashes for hours."""


def train(
    job: str, budget: int, costs: Path | None = None, **settings: Any
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The state that a job ends with, and the counters after each step, from 0."""
    with dtr_alloc.session(budget=budget, device="cpu", costs=costs, **settings):
        dtr_alloc.limit_rematerializations(MOST_REPEATS)
        before = dtr_alloc.stats()
        running = JOBS[job]()
        counters = []
        for step in range(STEPS):
            running.step(step)
            now = dtr_alloc.stats()
            counters.append(
                {name: now[name] - before[name] for name in now if isinstance(now[name], int)}
            )
        running.drop_gradients()
        return running.state(), counters


CHILD = f"""
import json, sys
import torch
import dtr_alloc
from bench.models import JOBS
torch.set_num_threads(1)
name, budget, costs, heuristic, debug = sys.argv[1:]
settings = {{"costs": costs, "debug": debug, "heuristic": heuristic}}
with dtr_alloc.session(budget=int(budget), device="cpu", **settings):
    job = JOBS[name]()
    for step in range({STEPS}):
        if step == {STEPS} - 4:
            before = dtr_alloc.stats()
        job.step(step)
    stats = dtr_alloc.stats()
    job.drop_gradients()
decisions = ("learning", "learned", "evictions", "rematerializations", "recompute_cost_seconds")
found = {{name: stats[name] for name in decisions}}
for name in ("recompute_cost_seconds", "planned", "plan_misses", "remaps"):
    found["last_" + name] = stats[name] - before[name]
print(json.dumps(found))
"""


def told_by(script: str, *arguments: object) -> Any:
    """What a process of its own prints, as JSON."""
    command = (sys.executable, "-W", "ignore", "-c", script, *map(str, arguments))
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def costs_of(script: str, folder: Path) -> Path:
    """A file with what the operators cost that the script runs in three steps without a limit."""
    costs = folder / "costs.json"
    told_by(script, 1 << 30, costs, 3)
    fix_costs(costs)
    return costs


def in_a_child(
    job: str, budget: int, costs: Path, heuristic: str = "adaptive", debug: str = "no-moves"
) -> dict[str, Any]:
    """What a process of its own decides, and what its last four steps add."""
    found: dict[str, Any] = told_by(CHILD, job, budget, costs, heuristic, debug)
    return found


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
def test_why_nothing_was_learned_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
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


@pytest.fixture(scope="module")
def learned(lstm: tuple[Profile, Path]) -> dict[str, Any]:
    """What the job decides that learns its step."""
    shape, costs = lstm
    return in_a_child("lstm", shape.budget(TIGHT), costs)


class TestPolicy:
    def test_it_computes_less_again(
        self, lstm: tuple[Profile, Path], learned: dict[str, Any]
    ) -> None:
        shape, costs = lstm
        rule = in_a_child("lstm", shape.budget(TIGHT), costs, "marginal")
        assert learned["learned"] > 0
        assert re.fullmatch(
            r"following a (plan|policy) since step \d+ \(repeats \.\d\d\)", learned["learning"]
        )
        assert (rule["learned"], rule["learning"]) == (0, "")
        # Near the smallest budget four steps may cost the rule less by chance.
        assert learned["recompute_cost_seconds"] < rule["recompute_cost_seconds"]

    def test_two_runs_with_one_file_of_costs_decide_alike(
        self, lstm: tuple[Profile, Path], learned: dict[str, Any]
    ) -> None:
        shape, costs = lstm
        assert in_a_child("lstm", shape.budget(TIGHT), costs) == learned

    def test_a_job_whose_steps_all_differ_has_no_plan_and_no_cliff(
        self, lstm: tuple[Profile, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
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

    def test_without_a_costs_file_it_is_learned_beside_the_job(
        self, lstm: tuple[Profile, Path]
    ) -> None:
        shape, costs = lstm
        plain, _counters = train("lstm", shape.budget(TIGHT), costs, heuristic="marginal")
        learned, _counters = train("lstm", shape.budget(TIGHT), None, thrash="off")
        assert not differences(plain, learned)

    @pytest.mark.long
    def test_a_better_plan_takes_over_and_the_bits_stay(self) -> None:
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

    def test_a_budget_that_never_binds_has_nothing_learned(self) -> None:
        _state, counters = train("mlp", 1 << 30, None)
        assert counters[-1]["evictions"] == counters[-1]["learned"] == 0

    def test_an_op_log_has_nothing_of_what_was_learned(self, tmp_path: Path) -> None:
        shape, _free = profile("mlp", 2)
        logs = []
        for name in ("first.log", "second.log"):
            train("mlp", shape.budget(0.5), None, thrash="off")
            train("mlp", shape.budget(0.5), None, thrash="off", log=tmp_path / name)
            logs.append(re.sub('"TIME":"[0-9]+"', "", (tmp_path / name).read_text()))
        assert logs[0] == logs[1]


ODD = (26, 27, 33)
"""Steps that are not like the others."""

ODDLY = f"""
import hashlib, json, sys
from contextlib import nullcontext
import torch
import dtr_alloc

torch.set_num_threads(1)
budget, costs, others = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = {{"device": "cpu", "costs": costs, "debug": "no-moves"}}
steps = []
with dtr_alloc.session(budget=budget, **settings) if budget else nullcontext():
    held = [torch.zeros(640) for _ in range(others)]
    for tensor in held:
        dtr_alloc.pin(tensor)
    torch.manual_seed(0)
    layers = []
    for _ in range(8):
        layers += [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(44):
        x = torch.rand(48 if step in {ODD[:2]} else 64, 64)
        if step in {ODD[1:]}:
            with torch.no_grad():
                model.eval()(x)
            model.train()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if budget:
            dtr_alloc.check_invariants()
            now = dtr_alloc.stats()
            steps.append({{name: now[name] for name in ("planned", "plan_misses", "remaps")}})
    content = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(json.dumps({{"parameters": hashlib.sha256(content).hexdigest(), "steps": steps}}))
"""
"""A model with dropout; some steps have another batch, or an evaluation before them."""


KEEPS = f"""
import json, sys
import torch
import dtr_alloc
from bench.models import JOBS

budget, costs, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
with dtr_alloc.session(budget=budget, device="cpu", costs=costs):
    job, kept, added = JOBS["transformer"](), [], []
    for step in range(steps):
        if step % {STEPS} == 0:
            begin = dtr_alloc.stats()
        job.step(step)
        kept.append(torch.zeros(512))
        dtr_alloc.pin(kept[-1])
        if step % {STEPS} == {STEPS} - 1:
            now = dtr_alloc.stats()
            added.append({{n: now[n] - begin[n] for n in ("planned", "plan_misses", "remaps")}})
    dtr_alloc.check_invariants()
print(json.dumps(added))
"""
"""2 KiB more is there after each step; what each so many steps got from a plan."""


GROWS = """
import json, sys
import torch
import dtr_alloc

budget, costs, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
planned = []
with dtr_alloc.session(budget=budget, device="cpu", costs=costs):
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(64, 64), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in range(256, 512, 32):
        for _ in range(steps):
            before = dtr_alloc.stats()["planned"]
            optimizer.zero_grad()
            model(torch.rand(batch, 64)).square().mean().backward()
            optimizer.step()
        planned.append(dtr_alloc.stats()["planned"] - before)
print(json.dumps(planned))
"""
"""The batch grows now and then: what the last step with each size got from a plan."""


READS = """
import json, sys
import torch
import dtr_alloc
from bench.models import JOBS

budget, costs, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
with dtr_alloc.session(budget=budget, device="cpu", costs=costs):
    data = torch.rand(75_000)
    job = JOBS["resnet"]()
    for step in range(steps):
        before = dtr_alloc.stats()
        (data + 1).sum()
        job.step(step)
    now = dtr_alloc.stats()
print(json.dumps({n: now[n] - before[n] for n in ("planned", "plan_misses", "remaps")}))
"""
"""Each step reads data that can be computed again, and what the last one got from a plan."""


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
        self, job: str, fraction: float, tmp_path: Path
    ) -> None:
        costs = tmp_path / "costs.json"
        shape, _free = profile(job, 2, settings={"costs": costs})
        fix_costs(costs)
        found = in_a_child(job, shape.budget(fraction), costs, debug="off")
        assert found["last_planned"] > 0
        assert (found["last_plan_misses"], found["last_remaps"]) == (0, 0)

    @pytest.mark.long
    def test_a_job_that_keeps_something_of_each_step_gets_a_new_plan_in_time(
        self, tmp_path: Path
    ) -> None:
        costs = costs_of(KEEPS, tmp_path)
        shape, _free = profile("transformer", 2)
        _first, *others = told_by(KEEPS, shape.budget(0.4), costs, 6 * STEPS)
        assert all(part["planned"] > 0 for part in others)
        assert sum(part["plan_misses"] for part in others) < STEPS
        # What it keeps takes a page every second step, and remaps are cheap.
        assert sum(part["remaps"] for part in others) < 20 * STEPS

    def test_what_is_evicted_when_a_plan_is_made_has_a_place_in_it(self, tmp_path: Path) -> None:
        costs = costs_of(READS, tmp_path)
        shape, _free = profile("resnet", 2)
        last = told_by(READS, shape.budget(0.3) + 300_000, costs, 40)
        assert last["planned"] > 0
        assert (last["plan_misses"], last["remaps"]) == (0, 0)

    def test_a_job_for_which_nothing_was_found_is_heard_again_when_it_gets_dearer(
        self, tmp_path: Path
    ) -> None:
        planned = told_by(GROWS, 700_000, costs_of(GROWS, tmp_path), 60)
        nothing = planned.index(0)
        assert nothing > 0
        assert any(planned[nothing:])

    BUDGET = 650_000
    OTHER = 2560

    @staticmethod
    def run(budget: int, costs: Path, others: int = 0) -> tuple[str, list[dict[str, int]]]:
        """What the parameters end as, and what each step adds to the counters. The job holds so
        many tensors of OTHER bytes all the time."""
        found = told_by(ODDLY, budget, costs, others)
        steps = found["steps"]
        added = [{name: b[name] - a[name] for name in b} for a, b in pairwise(steps)]
        return found["parameters"], steps[:1] + added

    def test_a_step_that_is_as_it_was_goes_by_the_plan_and_others_do_not(
        self, tmp_path: Path
    ) -> None:
        costs = tmp_path / "costs.json"
        plain, _nothing = self.run(0, costs)
        self.run(1 << 30, costs)
        fix_costs(costs)
        parameters, steps = self.run(self.BUDGET, costs)
        assert parameters == plain
        planned = [step["planned"] for step in steps]
        usual = max(planned)
        assert usual > 50
        for step in range(planned.index(usual), len(planned)):
            if step in ODD:
                assert planned[step] < usual / 2
            elif step - 1 not in ODD:
                assert planned[step] == usual
        for name in ("plan_misses", "remaps"):
            assert sum(step[name] for step in steps[-8:]) == 0

    def test_a_plan_goes_around_all_that_the_job_holds_besides(self, tmp_path: Path) -> None:
        costs = tmp_path / "costs.json"
        self.run(1 << 30, costs)
        fix_costs(costs)
        others = 1500
        _parameters, steps = self.run(self.BUDGET + others * self.OTHER, costs, others)
        assert steps[-1]["planned"] > 50
        assert steps[-1]["plan_misses"] == 0

    def test_what_is_asked_for_in_a_planned_step_is_there(self, tmp_path: Path) -> None:
        """The values of a sort are not used again, and its places are: to know them, the plan
        computes both again, and needs the values no longer."""
        costs = tmp_path / "costs.json"

        def train(budget: int, steps: int) -> tuple[dict[str, Any], list[bool]]:
            """The counters, and whether what was asked for in the last step was there."""
            there = []
            with dtr_alloc.session(budget=budget, device="cpu", costs=costs, debug="no-moves"):
                weights = [torch.rand(256, 256, requires_grad=True) for _ in range(8)]
                x, factor = torch.rand(256, 256), torch.rand(256, 256)
                for step in range(steps):
                    kept, loss = [], torch.zeros(())
                    for weight in weights:
                        weight.grad = None
                        values, _places = torch.sort(torch.tanh(x @ weight), dim=1)
                        kept.append(values.detach())
                        loss = loss + (values * factor).sum()
                        del values, _places
                    if step == steps - 1:
                        for values in kept:
                            dtr_alloc.materialize(values)
                            there.append(dtr_alloc.is_resident(values))
                    loss.backward()
                return dtr_alloc.stats(), there

        free, _there = train(1 << 30, 4)
        fix_costs(costs)
        stats, there = train(int(0.6 * free["peak_allocated_bytes"]), 21)
        assert stats["planned"] > 0
        assert there == [True] * 8


CHAIN = """
import json, sys
import torch
import dtr_alloc

budget, thrash, costs = sys.argv[1:]
torch.set_num_threads(1)
with dtr_alloc.session(
    budget=int(budget), device="cpu", thrash=thrash, costs=costs, debug="no-moves"
):
    x = torch.rand(64, 64, requires_grad=True)

    def step():
        y = x
        for _ in range(300):
            y = torch.tanh(y @ x)
        y.sum().backward()
        x.grad = None

    error = None
    try:
        for _ in range(40):
            step()
    except torch.OutOfMemoryError as raised:
        error = str(raised)
    dtr_alloc.check_invariants()
    ones = float(torch.ones(64, 64).sum())
    stats = dtr_alloc.stats()
print(json.dumps({
    "error": error,
    "ones": ones,
    "times": 1 + stats["recompute_cost_seconds"] / stats["total_cost_seconds"],
}))
"""
"""A long chain of products, kept for its backward pass, and what came of it."""


class TestThrash:
    BUDGET = 2 * 300 * 64 * 64 * 4 // 40
    ADVICE = re.compile(r"a budget of ([0-9.]+) MiB would do")

    def run(self, budget: int, thrash: str, costs: Path) -> tuple[dict[str, Any], list[str]]:
        """What came of the chain, and the lines on stderr."""
        command = (sys.executable, "-W", "ignore", "-c", CHAIN, str(budget), thrash, str(costs))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout), done.stderr.splitlines()

    def test_a_job_that_grinds_ends_with_the_budget_that_would_do(self, tmp_path: Path) -> None:
        costs = tmp_path / "costs.json"
        self.run(1 << 30, "off", costs)
        fix_costs(costs)
        found, said = self.run(self.BUDGET, "off", costs)
        assert found["times"] > 1.5
        assert (found["error"], said) == (None, [])

        found, said = self.run(self.BUDGET, "1.4", costs)
        assert len(said) == 1
        assert found["ones"] == 64 * 64, "the session is usable"
        advice = [self.ADVICE.search(text) for text in (said[0], found["error"])]
        assert all(advice)

        enough = int(max(float(of[1]) for of in advice if of) * MIB)
        found, said = self.run(enough, "1.4", costs)
        assert (found["error"], said) == (None, [])
        assert found["times"] < 1.4


SWAPS = """
import hashlib, json, sys
import torch
import dtr_alloc

budget, costs, steps, *heuristic = sys.argv[1:]
settings = dict(zip(("heuristic",), heuristic))
torch.set_num_threads(1)
with dtr_alloc.session(
    budget=int(budget), device="cpu", swap="1GiB", costs=costs, debug="no-moves", **settings
):
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    data = torch.randn(64, 256)
    for step in range(int(steps)):
        if step == int(steps) - 2:
            begin = dtr_alloc.stats()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    dtr_alloc.check_invariants()
    now = dtr_alloc.stats()
    content = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
found = {name: now[name] - begin[name] for name in ("swap_seconds", "swapped_in_bytes")}
found["learned"] = now["learned"]
print(json.dumps(found | {"parameters": hashlib.sha256(content).hexdigest()}))
"""
"""A model that takes 6 MiB with gradients and Adam's states; what its last two steps swapped."""


class TestSwaps:
    BUDGET = 4 << 20

    def test_a_step_is_learned_of_which_constants_are_swapped(self, tmp_path: Path) -> None:
        costs = costs_of(SWAPS, tmp_path)
        free = told_by(SWAPS, 1 << 30, costs, STEPS)
        rule = told_by(SWAPS, self.BUDGET, costs, STEPS, "marginal")
        learned, again = (told_by(SWAPS, self.BUDGET, costs, STEPS) for _ in range(2))
        assert learned == again
        assert learned["parameters"] == rule["parameters"] == free["parameters"]
        assert (rule["learned"], learned["learned"]) == (0, 1)
        assert 0 < learned["swapped_in_bytes"] < 0.8 * rule["swapped_in_bytes"]
        assert learned["swap_seconds"] < rule["swap_seconds"]
