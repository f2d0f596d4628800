"""What a job would learn, from its op log (native/learn). Needs the native build, no PyTorch."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from stream_toy import LARGE
from toy import WORDS

from bench.studies.log import Log
from bench.studies.repeated import repeated
from dtr_alloc import oplog
from dtr_alloc.advise.suggest import Outlook, _advised
from dtr_alloc.heuristics import Heuristic
from dtr_alloc.simulation import simulate

LOGS = Path(__file__).parents[1] / "data/simrd/synthetic_logs"
STEPS = 5


@pytest.fixture(scope="module")
def steps():
    """Of a U-Net."""
    return repeated(oplog.compile_log(LOGS / "unet_skip.log.xz"), STEPS)


def peak_of(program):
    return simulate.run_log(program, semantics="runtime", outputs=False).peak_bytes


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log.xz")), ids=lambda path: path.name)
def test_a_repeated_log_does_as_much_each_time_and_holds_no_more(path):
    once = oplog.compile_log(path)
    one, many = (
        simulate.run_log(program, semantics="runtime", outputs=False)
        for program in (once, repeated(once, STEPS))
    )
    assert many.model_cost == STEPS * one.model_cost
    assert many.model_ops == STEPS * one.model_ops
    assert many.peak_bytes == one.peak_bytes


def test_what_has_a_name_at_the_end_of_a_repeated_log_is_there_once_and_the_rest_loaded():
    log = Log()
    log.constant("loaded", 1000)
    log.copy("parameter", "loaded")
    log.release("loaded")
    log.constant("batch", 500)
    log.call("parameter batch", {"y": 100})
    log.release("batch")
    program = repeated(log.program, 3)
    code = list(program.code)
    assert (code.count(1000), code.count(500)) == (1, 3)
    assert program.operator_count == 6
    assert simulate.run_log(program, semantics="runtime", outputs=False).end_bytes == 1000


def test_a_name_may_stand_for_something_new_or_for_what_it_stood_for():
    log = Log()
    log.constant("x", 1000)
    for _ in range(STEPS):
        log.call("x", {"y": 1000}, time=7)
        log.copy_from("y", "y")
        log.call("x y", {"y": 2000}, time=7)
        log.copy("z", "y")
        log.release("y")
        log.copy_from("z", "x")
    found = simulate.play_step(log.program, 1 << 20)
    assert (found.operators, found.step_cost) == (2, 14)
    assert found.usual_cost == found.learned_cost == 0


def test_a_log_is_repeated_once_at_least():
    with pytest.raises(ValueError, match="times is 0; allowed: 1 and more"):
        repeated(Log().program, 0)


def test_the_step_is_found_and_what_is_learned_costs_less(steps):
    budget = peak_of(steps) // 2
    found = simulate.play_step(steps, budget)
    one = simulate.run_log(steps, semantics="runtime", outputs=False)
    assert found.operators * STEPS == one.model_ops
    assert found.step_cost * STEPS == one.model_cost
    assert found.is_planned
    assert 0 < found.learned_cost < found.usual_cost < 1
    assert found == simulate.play_step(steps, budget)


def test_local_search_finds_a_plan_that_costs_less_than_any_policy(steps):
    budget = int(0.3 * peak_of(steps))
    policies = [
        f"c={cost},m=size,s={staleness},next={foresight}"
        for cost in ("marginal", "neighborhood", "component", "ancestors")
        for staleness in (0.5, 1)
        for foresight in (0, 1)
    ]
    runs = [
        simulate.run_log(steps, policy, budget, semantics="runtime", dealloc="lazy", outputs=False)
        for policy in policies
    ]
    first, found = (simulate.play_step(steps, budget, search=search) for search in (False, True))
    assert found.is_planned
    assert found.learned_cost < first.learned_cost
    assert found.learned_cost < min(run.remat_cost / run.model_cost for run in runs)


SCORE = "c=local,m=size,s=0,room=single"
PRICES = {"small": 10_000, "large": 200_000}
"""Of two contents, one four times as large: by cost and size the small one goes, unless the host's
time for a replay is added to both costs."""


@pytest.mark.parametrize(("device", "goes"), [("cpu", "small"), ("cuda", "large")])
def test_a_play_of_a_devices_step_chooses_and_reports_by_the_hosts_price_of_a_replay(device, goes):
    log, page = Log(), 4096
    log.constant("x", page)
    for _ in range(STEPS):
        log.call("x", {"small": 4 * page}, time=PRICES["small"])
        log.call("x", {"large": 16 * page}, time=PRICES["large"])
        log.call("x", {"pressing": 4 * page}, time=1000)
        log.release("pressing")
        log.call("small large", {"y": page}, time=1000)
        for name in ("small", "large", "y"):
            log.release(name)
    found = simulate.play_step(log.program, 24 * page, SCORE, learn=False, maps_on=device)
    own = sum(PRICES.values()) + 2000
    assert found.step_cost == own
    assert found.usual_repeated == pytest.approx(PRICES[goes] / own)
    host = 100_000 if device == "cuda" else 0
    assert found.usual_cost == pytest.approx((PRICES[goes] + host) / own)


@pytest.mark.parametrize(("device", "goes"), [("cpu", "small"), ("cuda", "large")])
def test_the_engine_of_a_device_chooses_what_a_play_does(device, goes, make_toy, make_stream_toy):
    price = lambda operator: PRICES.get(operator.name, 1000)  # noqa: E731
    if device == "cpu":
        unit, toy = WORDS, make_toy(pages=24, heuristic=SCORE, price=price)
    else:
        unit, toy = LARGE // 4, make_stream_toy(chunks=7, heuristic=SCORE, price=price)
    x = toy.unseen(unit)
    made = {name: toy.one(name, x, words=n * unit) for name, n in (("small", 4), ("large", 16))}
    toy.one("pressing", x, words=4 * unit)
    assert [name for name, tensor in made.items() if tensor.evicted] == [goes]


def recurrent(cells, steps=STEPS):
    """A chain of which each cell needs the one before, and its parts again on the way back."""
    log = Log()
    log.constant("w", 256_000)
    for _ in range(steps):
        log.constant("h0", 64_000)
        for i in range(cells):
            log.call(f"w h{i}", {f"g{i}": 256_000}, time=40_000)
            log.call(f"g{i}", {f"s{i}": 256_000}, time=10_000)
            log.call(f"s{i} h{i}", {f"h{i + 1}": 64_000}, time=10_000)
        log.call(f"h{cells}", {f"d{cells}": 64_000}, time=10_000)
        for i in reversed(range(cells)):
            log.call(f"s{i} h{i} d{i + 1}", {f"e{i}": 256_000}, time=20_000)
            log.call(f"w g{i} e{i}", {f"d{i}": 64_000}, time=80_000)
            for name in (f"d{i + 1}", f"e{i}", f"g{i}", f"s{i}", f"h{i + 1}"):
                log.release(name)
        log.release("d0")
        log.release("h0")
    return log.program


@pytest.mark.parametrize("cells", [40, 400, 1600])
def test_the_first_search_of_a_chain_takes_work_in_proportion_to_its_operators(cells):
    """Policies that thrash there are not played to the end."""
    program = recurrent(cells)
    budget = int(0.4 * peak_of(program))
    found = simulate.play_step(program, budget)
    assert found.first_work < 1.01 * (10_000_000 + 2000 * program.operator_count)
    published = [
        simulate.run_log(program, name, budget, semantics="runtime", space="heap", outputs=False)
        for name in ("dtr-full", "dtr-eqclass")
    ]
    assert found.learned_cost < 1.02 * min(run.remat_cost / run.model_cost for run in published)


def test_a_recurrent_net_has_a_plan_that_costs_less_than_half_of_the_rule():
    program = repeated(oplog.compile_log(LOGS / "lstm_unroll.log.xz"), STEPS)
    found = simulate.play_step(program, int(0.6 * peak_of(program)), maps_on="cpu")
    assert found.is_planned
    assert found.learned_cost < found.usual_cost / 2
    assert found.first_work < 17_000_000


def test_without_learning_it_is_the_usual_policy_alone(steps):
    budget = peak_of(steps) // 2
    learned, usual = (simulate.play_step(steps, budget, learn=learn) for learn in (True, False))
    assert usual.learned_cost == usual.usual_cost == learned.usual_cost
    assert not usual.is_planned


def test_with_memory_enough_nothing_costs_anything_and_with_too_little_nothing_works(steps):
    enough = simulate.play_step(steps, 2 * peak_of(steps))
    assert enough.usual_cost == enough.learned_cost == 0
    short = simulate.play_step(steps, peak_of(steps) // 20)
    assert (short.usual_cost, short.learned_cost) == (None, None)


def test_the_end_of_a_log_without_steps_stands_for_one():
    log = oplog.compile_log(LOGS / "plain_chain.log.xz")
    found = simulate.play_step(log, peak_of(log))
    assert found.operators == 0
    assert found.step_cost > 0


def test_what_cannot_be_played_is_named(steps):
    mine = Heuristic("mine", select="callback", score=lambda candidate: math.inf)
    with pytest.raises(ValueError, match="the heuristic is a callable; allowed in a what-if play"):
        simulate.play_step(steps, 1 << 30, mine)
    with pytest.raises(ValueError, match="chunk_bytes is 5; allowed"):
        simulate.play_step(steps, 1 << 30, chunk_bytes=5)


MIB = 1 << 20


def larger_than_memory(layers=16, width=MIB, steps=STEPS):
    """Forward, backward, and an update of parameters by momentum."""
    log = Log()
    for i in range(layers):
        log.constant(f"p{i}", width)
        log.constant(f"m{i}", width)
    for _ in range(steps):
        log.constant("y0", width // 4)
        for i in range(layers):
            log.call(f"p{i} y{i}", {f"y{i + 1}": width // 4}, time=200_000)
        log.call(f"y{layers}", {f"d{layers}": width // 4}, time=200_000)
        for i in reversed(range(layers)):
            log.call(f"p{i} y{i} d{i + 1}", {f"d{i}": width // 4, f"g{i}": width}, time=400_000)
            log.release(f"y{i + 1}")
            log.release(f"d{i + 1}")
        for i in range(layers):
            log.mutate(f"m{i} g{i}", 0, time=100_000)
            log.mutate(f"p{i} m{i}", 0, time=100_000)
            log.release(f"g{i}")
        log.release("y0")
        log.release("d0")
    return log.program


SWAP = {"swap_bytes": 1 << 30, "swap_bytes_per_s": 4e9}


class TestSwaps:
    def test_a_policy_is_learned_where_constants_do_not_fit(self):
        steps = larger_than_memory()
        assert simulate.play_step(steps, 24 * MIB).usual_cost is None
        found = simulate.play_step(steps, 24 * MIB, **SWAP)
        assert not found.is_planned
        assert 0 < found.learned_cost < 0.85 * found.usual_cost
        assert found == simulate.play_step(steps, 24 * MIB, **SWAP)

    def test_a_plan_computes_again_where_that_costs_less_than_swaps(self, steps):
        budget = peak_of(steps) // 2
        slow, fast = (SWAP | {"swap_bytes_per_s": rate} for rate in (1, 1e15))
        unswapped, slowly, at_once = (
            simulate.play_step(steps, budget, **swap) for swap in ({}, slow, fast)
        )
        assert slowly.is_planned
        assert replace(slowly, first_work=unswapped.first_work) == unswapped
        assert not at_once.is_planned
        assert at_once.learned_cost < unswapped.learned_cost

    def test_a_rate_is_needed(self):
        with pytest.raises(ValueError, match=r"swap_out_bytes_per_s is 0\.000000; allowed: 1 and"):
            simulate.play_step(larger_than_memory(), 12 * MIB, swap_bytes=1 << 30)


# ---- Which of the budgets that were played is advised (dtr_alloc/advise/suggest.py) ----


PEAK = 1000


def outlook(budget_bytes, first, later=None):
    return Outlook(budget_bytes, 0.5, first, later or first, False, None)


OUTLOOKS = [outlook(960, 1.0), outlook(800, 1.05), outlook(700, 1.1), outlook(600, 2.5, 1.12)]


def advised(outlooks, smallest=500, noise=1.0):
    found = _advised(outlooks, PEAK, smallest, noise)
    return found and found.budget_bytes


@pytest.mark.parametrize(
    ("outlooks", "options", "budget"),
    [
        (OUTLOOKS, {}, 600),
        (OUTLOOKS, {"noise": 2.1}, 700),
        ([*OUTLOOKS, outlook(550, None, 1.1)], {}, 600),
        (OUTLOOKS, {"smallest": 600}, 700),
        (OUTLOOKS[-1:], {"smallest": 600}, 600),
        (OUTLOOKS[:1], {}, None),
    ],
    ids=[
        *("the smallest bearable one", "noise would end the first steps"),
        *("it fails before the step is learned", "with room above the smallest"),
        *("there is no other", "it saves next to nothing"),
    ],
)
def test_a_budget_is_advised(outlooks, options, budget):
    assert advised(outlooks, **options) == budget
