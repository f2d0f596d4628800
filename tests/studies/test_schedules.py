"""Schedules: their search, their files, their runs, and a check that shares nothing with it.
Needs the core."""

import json
from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import invoke
from programs import Model

from bench.studies import schedules
from bench.studies.best import commands
from dtr_alloc import oplog
from dtr_alloc.simulation import simulate
from dtr_alloc.simulation.presets import PRESETS

LOGS = Path(__file__).parent.parent / "data" / "simrd" / "synthetic_logs"
NAMES = ("resnet_chain", "unet_skip", "densenet_cat", "lstm_unroll", "fuzz_a", "fuzz_b")
STEPS = 40


def log_of(name):
    return oplog.compile_log(LOGS / f"{name}.log.xz")


def budget_of(program, ratio):
    return int(simulate.baseline(program).peak_bytes * ratio)


@pytest.fixture(scope="module")
def found():
    """A schedule of one log, with the log."""
    program = log_of("unet_skip")
    return program, schedules.search(program, budget_of(program, 0.5), steps=STEPS)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_found_holds_the_budget_and_is_never_worse_than_a_preset(name):
    program = log_of(name)
    for ratio in (0.4, 0.6, 0.9):
        budget = budget_of(program, ratio)
        preset = schedules.best_preset(program, budget)
        best = schedules.search(program, budget, steps=STEPS, among=[preset])
        if best is None:
            continue
        assert preset is None or best.cost <= preset.cost
        run = schedules.run(program, best, decisions=True)
        checked = Model(program, "simrd").follow(run.decisions, budget)
        assert checked.total_cost == run.total_cost == best.cost
        assert checked.remat_cost == run.remat_cost
        assert checked.peak_bytes == run.peak_bytes <= budget


@pytest.mark.parametrize("name", NAMES)
def test_a_policys_run_is_a_schedule(name):
    program = log_of(name)
    budget = budget_of(program, 0.6)
    policy = simulate.run_log(program, "dtr-full", budget, decisions=True)
    if policy.status != "ok":
        pytest.skip("the policy fails at this budget")
    given = schedules.of_policy(program, PRESETS["dtr-full"], budget, None)
    run = schedules.run(program, given, decisions=True)
    assert run.decisions == policy.decisions
    assert Model(program, "simrd").follow(run.decisions, budget).total_cost == given.cost


def test_the_same_steps_and_seed_give_the_same_schedule():
    program = log_of("resnet_chain")
    budget = budget_of(program, 0.3)
    one, two = (schedules.search(program, budget, steps=100, seed=5) for _ in range(2))
    assert one == two


def test_a_file_gives_back_what_was_written(found, tmp_path):
    program, best = found
    path = tmp_path / "unet.schedule.xz"
    other = replace(best, budget_bytes=best.budget_bytes + 1)
    schedules.write(path, [best, other])
    assert schedules.read(path) == [best, other]
    assert schedules.run(program, schedules.read(path)[0]).total_cost == best.cost


def changed(best, pairs):
    return replace(best, evictions=array("q", [number for pair in pairs for number in pair]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pairs: [pairs[0], *pairs], r"eviction 1 evicts storage .* not resident"),
        (lambda pairs: [(pairs[0][0], 0), *pairs], r"eviction 0 evicts storage 0 .* pinned"),
        (lambda pairs: [(pairs[0][0], 10**6), *pairs], r"evicts storage 1000000 .* is none"),
        (lambda pairs: [pairs[0], (pairs[0][0] - 1, pairs[0][1])], "ascending"),
        (lambda pairs: [*pairs, (10**6, 1)], "the run has"),
        (lambda pairs: pairs[:1], "nothing more is evicted"),
    ],
)
def test_evictions_that_cannot_be_are_named(found, change, reason):
    program, best = found
    with pytest.raises(ValueError, match=reason):
        schedules.run(program, changed(best, change(list(best.pairs()))))


def test_a_schedule_of_another_log_and_a_wrong_cost_are_named(found):
    program, best = found
    with pytest.raises(ValueError, match="not for"):
        schedules.run(log_of("resnet_chain"), best)
    with pytest.raises(ValueError, match="it says"):
        schedules.run(program, replace(best, cost=best.cost + 1))


best = partial(invoke, commands)


def test_one_command_finds_schedules_that_another_runs(tmp_path):
    log = LOGS / "unet_skip.log.xz"
    path, results = tmp_path / "a.schedule.gz", tmp_path / "a.jsonl"
    done = best("find", log, "--budget", "0.4,0.6", "--iterations", 5, "--out", path)
    assert done.exit_code == 0, done.output
    done = best("run", log, "--schedule", path, "--json", results)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["ratio"] for row in rows] == [0.4, 0.6]
    assert [row["total_compute"] for row in rows] == [each.cost for each in schedules.read(path)]


def test_the_commands_name_what_they_cannot_do(tmp_path):
    log, other = LOGS / "unet_skip.log.xz", LOGS / "resnet_chain.log.xz"
    path = tmp_path / "a.schedule"
    none = best("find", log, "--budget", "1KiB", "--iterations", 0, "--out", path)
    assert none.exit_code == 1
    assert "no schedule was found" in none.output
    best("find", log, "--budget", "0.6", "--iterations", 0, "--out", path)
    wrong = best("run", other, "--schedule", path)
    assert wrong.exit_code == 2
    assert "which is not given" in wrong.output
