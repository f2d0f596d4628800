"""What goes first, and what is preempted, where memory is short. They need the native build, no
PyTorch."""

import itertools
from pathlib import Path

import pytest
from native_pool import OutOfMemory, lib
from programs import Model
from toy import WORDS, line

from bench.studies.log import Log
from dtr_alloc import oplog
from dtr_alloc.simulation import simulate

LOGS = sorted((Path(__file__).parents[1] / "data/simrd/synthetic_logs").glob("*.log.xz"))
HEURISTICS = ("dtr-full", "c=ancestors,m=size,s=0.5")


def run_log(log, budget, heuristic="dtr-eqclass", **options):
    options |= {"semantics": "runtime", "decisions": True, "outputs": False}
    program = log.program if isinstance(log, Log) else log
    run = simulate.run_log(program, heuristic, budget, **options)
    Model(program).follow(run.decisions)
    return run


class TestUnneededStorages:
    @pytest.mark.parametrize("needed", [True, False])
    def test_an_unneeded_one_goes_before_the_living(self, make_toy, needed):
        """By the score alone the larger storage, which lives, would go first."""
        toy = make_toy(pages=8, heuristic="largest", room=lib.DTR_ROOM_SINGLE)
        _, y = line(toy, "f")
        z, w = toy.one("g", y, words=2 * WORDS), toy.one("h", y)
        y.release()
        assert toy.evict(z)
        assert toy.evict(w)
        if not needed:
            w.release()
        toy.materialize(z)  # through y
        toy.unseen(5 * WORDS).release()
        assert toy.resident(z) is not needed
        toy.materialize(z)
        assert toy.recomputed == (["f", "g", "g"] if needed else ["f", "g"])

    def test_need_reaches_through_what_is_dead_and_evicted(self, make_toy):
        """x, y, z, of which only z lives and is evicted: it needs all that it begins with."""
        toy = make_toy(pages=8, heuristic="largest")
        _, first = line(toy, "f")
        second, other = toy.one("g", first), toy.one("o", first, words=2 * WORDS)
        z = toy.one("h", second)
        for tensor in (other, z):
            assert toy.evict(tensor)
        first.release()
        second.release()
        toy.materialize(other)  # first is dead, and needed by z through second
        toy.unseen(5 * WORDS).release()
        assert not toy.resident(other)
        toy.materialize(z)
        assert toy.recomputed == ["f", "o", "g", "h"]


@pytest.mark.parametrize("learned", [{}, {"heuristic": "largest", "learn": lib.DTR_LEARN_POLICY}])
def test_before_a_job_ends_dtr_full_has_its_turn_as_it_is_published(make_toy, learned):
    """What has died goes at once then, though something evicted would begin with it. Where policies
    are learned it has its turn after each."""
    options = {"heuristic": "marginal", "dealloc": "lazy", "thrash": 2} | learned
    toy = make_toy(pages=8, price=lambda operator: 10_000_000, **options)
    chain = line(toy, *(f"f{i}" for i in range(30)))
    goes_at_once = []

    def work():
        for i in itertools.count():
            toy.materialize(chain[i * 7 % 30])
            dead = toy.one("g", chain[i * 7 % 30])
            child = toy.one("h", dead)
            assert toy.evict(child)
            before = toy.pool.stats().allocated_bytes
            dead.release()
            goes_at_once.append(toy.pool.stats().allocated_bytes < before)
            child.release()

    with pytest.raises(OutOfMemory, match="the budget is too small"):
        work()
    turn = goes_at_once.index(True)
    assert turn > 0
    assert all(goes_at_once[turn:])


def two_inputs(a_temporary, b_temporary):
    """An operator reads a and b, both of 400 bytes and evicted, through a temporary each."""
    log = Log()
    log.constant("x", 100)
    for name, temporary in (("a", a_temporary), ("b", b_temporary)):
        log.call("x", {f"t{name}": temporary})
        log.call(f"t{name}", {name: 400})
        log.release(f"t{name}")
        log.call("x", {"large": 1400})
        log.release("large")
    return log


class TestWaiting:
    @pytest.mark.parametrize(
        ("a_temporary", "b_temporary", "has_a", "budget", "status", "preemptions"),
        [
            # The input that needs most memory is brought back first: with the other in hand it
            # would not fit.
            (500, 1000, False, 1600, "ok", [0]),
            # a is there and b is not, which needs its temporary's memory besides: a is preempted
            # and comes back.
            (100, 1000, True, 1600, "ok", [1]),
            # What cannot be brought back together is out of memory after a few tries.
            (1000, 1000, False, 2000, "ok", range(9)),
            (1000, 1000, False, 1800, "oom", range(1, 9)),
        ],
    )
    def test_inputs_are_brought_back_where_they_fit_one_after_the_other(
        self, a_temporary, b_temporary, has_a, budget, status, preemptions
    ):
        log = two_inputs(a_temporary, b_temporary)
        if has_a:
            log.call("a", {"c": 100})
            log.release("c")
        log.call("a b", {"end": 100})
        run = run_log(log, budget)
        assert run.status == status
        assert run.preemptions in preemptions

    @pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name.split(".")[0])
    def test_on_the_way_to_the_smallest_budget_nothing_evicted_is_read(self, path):
        program = oplog.compile_log(path)
        base = simulate.baseline(program, "runtime")
        for heuristic in HEURISTICS:
            statuses = [
                run_log(
                    program,
                    base.peak_bytes * percent // 100,
                    heuristic,
                    max_recompute=9 * base.compute,
                ).status
                for percent in range(100, 0, -4)
            ]
            assert statuses[0] == "ok"
            assert statuses[-1] in ("oom", "thrash")
