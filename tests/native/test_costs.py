"""Costs per signature (native/policy/costs.h) and the engine's clock. Needs g++ and the core."""

from random import Random

import pytest
from native_fixtures import SANITIZERS, cpp_program
from native_pool import Invalid, check, ffi, lib
from stream_toy import LARGE, A, StreamToy
from toy import MUTATE, WORDS, Failure, fail, measured, op_key

CPU, CUDA = 0, 1
SETTLED = ["add 5 1000"] * 40


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Runs commands on a new table and returns their answers."""
    sources = ("tests/native/cost_table.cpp", "native/policy/costs.cpp")
    program = cpp_program(tmp_path_factory.mktemp("costs"), *sources, flags=SANITIZERS)
    return lambda *commands: [*map(int, program(text="\n".join(commands)).split())]


class TestTheTable:
    @pytest.mark.parametrize(
        ("commands", "answers"),
        [
            # Before the first reading a call takes the time to move its bytes.
            ([f"estimate 5 1000000 {CPU}", f"estimate 5 1000000 {CUDA}"], [100_000, 1000]),
            ([f"estimate 5 0 {CPU}"], [1]),
            (["add 5 300", f"estimate 5 1000000 {CPU}"], [300, 300]),
            # A lower reading is the cost at once, and a higher one raises it a little.
            (["add 5 90000", "add 5 5000", "add 5 1000", "add 5 2600", "add 5 800"],
             [90_000, 5000, 1000, 1100, 800]),
            # An outlier counts as eight times the cost; the sum is rounded.
            ([*SETTLED, "add 5 1000000000"], [1000, 1000 + (8000 - 1000) // 16 + 1]),
            ([*SETTLED, "add 5 8000"], [1000, 1000 + (8000 - 1000) // 16 + 1]),
            # What others took from the thread is not the operator's own; it waited a little for
            # other threads that had their share of it.
            (["own 9000000 2000000 0", "own 2000000 2100000 0"], [2_000_000, 2_000_000]),
            (["own 9000000 2000000 3"], [2_000_000]),
            # An operator that sleeps takes the time on the clock. Others had the processor all the
            # time, or it counts in ticks and saw none.
            (["own 9000000 100000 1"], [9_000_000]),
            (["own 9000000 100000 0", "own 9000000 0 0"], [100_000, 9_000_000]),
            # A cost is at least a nanosecond, and at most 18 minutes.
            (["add 5 0", "add 5 0"], [1, 1]),
            ([f"add 5 {2**50}", f"add 5 {2**60}"], [2**40, 2**40]),
            # A fixed cost does not move, and a signature is fixed once.
            (["fix 5 700 3", "add 5 1", "add 5 1", "readings 5"], [1, 700, 700, 3]),
            (["fix 5 700 3", "fix 5 800 3", "fix 0 1 1", f"estimate 5 1 {CPU}"], [1, 0, 0, 700]),
            # What does not fit costs what it took.
            (["fill 1 65536 100", "add 70000 40", "add 70000 60", "size", "add 1 100"],
             [65_536, 40, 60, 65_536, 100]),
            (["fill 1 65536 100", "fix 70000 1 1", "clear", "fix 70000 1 1"], [65_536, 0, 0, 1]),
        ],
    )  # fmt: skip
    def test_the_last_answers_are(self, table, commands, answers):
        assert table(*commands)[-len(answers) :] == answers

    def test_a_cost_that_rose_for_good_is_reached_all_the_same(self, table):
        answers = table(*["add 5 1000"] * 40, *["add 5 1000000"] * 100)
        assert answers[39] == 1000
        assert 990_000 < answers[-1] <= 1_000_000

    @pytest.mark.parametrize("seed", range(5))
    def test_a_busy_machine_says_the_same_within_5_percent(self, table, seed):
        """A third of the readings of a thread's clock has a time slice of others in it."""
        random = Random(seed)
        for cost_ns in (5_000, 100_000, 20_000_000):
            slices = [random.choice((0, 0, 3_000_000)) for _ in range(8)]
            slices[random.randrange(8)] = 0
            own = [int(cost_ns * random.uniform(1, 1.02)) for _ in slices]
            busy = [f"own {took + lost} {took} 0" for took, lost in zip(own, slices, strict=True)]
            readings = table(*busy)
            found = table(*(f"add 5 {reading}" for reading in readings))[-1]
            assert found == pytest.approx(cost_ns, rel=0.05)


def known(toy):
    """Cost and readings by signature, as the engine knows them."""
    costs = ffi.new("dtr_cost[100]")
    count = lib.dtr_engine_get_costs(toy.engine, costs, 100)
    assert count <= 100
    return {
        costs[i].signature: (costs[i].op_key, costs[i].cost_ns, costs[i].readings)
        for i in range(count)
    }


def set_costs(toy, *rows):
    costs = ffi.new("dtr_cost[]", list(rows))
    check(lib.dtr_engine_set_costs(toy.engine, costs, len(rows)))


class TestSignatures:
    @pytest.fixture
    def toy(self, make_toy):
        return make_toy(price=measured)

    def test_the_same_call_on_other_tensors_has_the_same_signature(self, toy):
        x, y = toy.unseen(WORDS), toy.unseen(WORDS)
        for tensor in (x, y, x):
            toy.one("f", tensor)
        ((key, cost_ns, readings),) = known(toy).values()
        assert key == op_key("f")
        assert cost_ns >= 1
        assert readings == 3

    def test_operator_shape_and_size_of_the_result_tell_calls_apart(self, toy):
        x, wide = toy.unseen(WORDS), toy.unseen(2 * WORDS)
        half = toy.view(wide, 0, WORDS)  # a view is what its shape says
        for argument in (x, half, wide):
            toy.one("f", argument)
        toy.one("f", x, words=2 * WORDS), toy.one("f", x, x), toy.one("f"), toy.one("g", x)
        assert sorted(readings for _, _, readings in known(toy).values()) == [1, 1, 1, 1, 1, 2]

    def test_operators_without_a_record_are_read_too(self, toy):
        x = toy.unseen(WORDS)
        toy.run("look", x)
        toy.run("send", x, recomputable=False)
        assert len(known(toy)) == 2
        assert toy.stats().live_ops == 0
        assert toy.stats().total_cost_ns == sum(cost for _, cost, _ in known(toy).values())

    def test_of_many_calls_the_first_eight_are_read_and_then_one_in_64(self, toy):
        x = toy.unseen(WORDS)
        for _ in range(65):
            toy.one("f", x).release()
        ((_, _, readings),) = known(toy).values()
        assert readings == 9

    def test_a_result_of_a_new_size_is_read_once_even_then(self, toy):
        for words in (*[WORDS] * 8, 2 * WORDS, 2 * WORDS):
            toy.one("f", words=words).release()
        assert sorted(readings for _, _, readings in known(toy).values()) == [1, 8]

    def test_an_operator_that_failed_is_no_reading(self, toy):
        x = toy.unseen(WORDS)
        with pytest.raises(Failure):
            toy.one("f", x, fails=fail)
        assert known(toy) == {}
        assert toy.stats().clock_ns == 1

    def test_fixed_costs_are_what_the_clock_counts(self, toy):
        x = toy.unseen(WORDS)
        toy.one("f", x).release()
        (signature,) = known(toy)
        set_costs(toy, (signature, op_key("f"), 12_345, 7))
        before = toy.stats().clock_ns
        y = toy.one("f", x)
        assert toy.stats().clock_ns == before + 12_345
        toy.evict(y)
        toy.materialize(y)
        assert toy.stats().clock_ns == before + 2 * 12_345
        assert known(toy) == {signature: (op_key("f"), 12_345, 7)}

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([(0, 1, 1, 1)], r"costs\[0\].signature is 0; allowed"),
            ([(5, 1, 1, 1), (6, 1, 0, 1)], r"costs\[1\].cost_ns is 0; allowed: 1 to 10995"),
            ([(5, 1, 2**40 + 1, 1)], r"costs\[0\].cost_ns is 1099511627777; allowed"),
            ([(5, 1, 1, 1), (5, 1, 1, 1)], r"costs\[1\].signature is 5, which stands there"),
            ([(i + 1, 1, 1, 1) for i in range(65_537)], r"costs\[65536\] is one too many"),
        ],
    )
    def test_a_wrong_cost_is_refused_and_nothing_is_known(self, toy, rows, message):
        with pytest.raises(Invalid, match=message):
            set_costs(toy, *rows)
        assert known(toy) == {}


class TestTheClock:
    def test_it_starts_at_1_and_moves_by_the_costs_of_what_runs(self, toy):
        assert toy.stats().clock_ns == 1
        x = toy.unseen(WORDS)
        assert toy.stats().clock_ns == 1  # nobody saw it
        y = toy.one("f", x)
        toy.run("add_", (y, MUTATE))
        first = 40 * (100 + 2 * WORDS) + 40 * (100 + WORDS)
        assert (toy.stats().total_cost_ns, toy.stats().recompute_cost_ns) == (first, 0)
        assert toy.evict(y)
        toy.materialize(y)
        assert (toy.stats().total_cost_ns, toy.stats().recompute_cost_ns) == (first, first)
        assert toy.stats().clock_ns == 1 + 2 * first
        assert known(toy) == {}  # what was given is no reading


class TestReadingsOfADevice:
    def read(self, toy: StreamToy, work_ns: int) -> int:
        """What f costs after one more call whose work takes so long, once timers are looked at."""
        toy.fake.set_work_ns(work_ns)
        toy.one("f", self.source, words=LARGE).release()
        for _ in range(16):
            toy.run("look", self.source)
        return next(cost for key, cost, _ in known(toy).values() if key == op_key("f"))

    def test_room_that_the_device_waits_for_is_no_work_of_the_operator(self, make_stream_toy):
        toy = make_stream_toy(3, streams=(A,), price=measured)
        toy.fake.hold(0)
        with toy.on(A):
            self.source = toy.unseen(LARGE)
            first = self.read(toy, 1000)
            assert self.read(toy, 2000) > first, "a reading above raises the cost"
            known_ns = self.read(toy, 900)
            kept = [toy.one("g", self.source, words=LARGE) for _ in range(2)]
            evictions = toy.stats().evictions
            assert self.read(toy, 4000) == known_ns
            assert toy.stats().evictions > evictions
            kept += [toy.one("g", self.source, words=LARGE) for _ in range(2)]
            assert self.read(toy, 500) < known_ns, "a reading below holds all the same"
