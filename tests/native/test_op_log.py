"""The op log tells what a program does, whatever the engine decides meanwhile."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from native_pool import ffi, lib
from test_choice import Program
from toy import CONSTANT, MUTATE, READ, SCRATCH, WRITE_ONLY, Failure, Store, Tensor, fail, release

MAKE, CALL, OVERWRITE, RELEASE, MEMORY, EFFECT = 0, 1, 2, 5, 6, 7
PAGE_WORDS = 512


class OpLog:
    """The op log of a toy's engine, as tuples; operators are named by number."""

    def __init__(self, toy, mode=lib.DTR_OP_LOG_WRITING):
        self.toy = toy
        self.set(mode)

    def set(self, mode):
        lib.dtr_op_log_set(self.toy.engine, mode)

    def _drain(self, drain):
        count = drain(self.toy.engine, ffi.NULL, 0)
        numbers = ffi.new("int64_t[]", max(count, 1))
        assert drain(self.toy.engine, numbers, count) == count
        assert drain(self.toy.engine, numbers, count) == 0
        return [numbers[i] for i in range(count)]

    def take(self, times=False):
        """What was written since the last call: one tuple a record, times left out."""
        flat = iter(self._drain(lib.dtr_op_log_drain))

        def some(count):
            return [next(flat) for _ in range(count)]

        def names(count):
            return [tuple(some(2)) for _ in range(count)]

        records = []
        for kind in flat:
            if kind == MAKE:
                records.append((MAKE, *some(2)))
            elif kind == RELEASE:
                records.append((RELEASE, *names(1)))
            elif kind == MEMORY:
                records.append((MEMORY, names(*some(1))))
            else:
                operator, time = some(2)
                assert time >= 0
                head = (kind, operator, time) if times else (kind, operator)
                inputs = names(*some(1))
                if kind == CALL:
                    made = [tuple(some(4)) for _ in range(*some(1))]
                    records.append((*head, inputs, made))
                elif kind == EFFECT:
                    records.append((*head, inputs, *some(1)))
                else:
                    assert kind == OVERWRITE
                    records.append((*head, inputs, some(*some(1))))
        return records

    def decisions(self):
        flat = self._drain(lib.dtr_decisions_drain)
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def name(self, number):
        self.toy.core.op_log_name(self.toy.frame, number)


@pytest.fixture
def log(toy):
    return OpLog(toy)


def test_a_chain_is_a_constant_two_calls_and_their_releases(toy, log):
    x = toy.unseen(PAGE_WORDS)
    log.name(7)
    y = toy.one("f", x)
    z = toy.one("g", y, x)
    release(y, x, z)
    assert log.take() == [
        *((MAKE, 1, 4096), (CALL, 7, [(1, 0)], [(2, 0, 4096, -1)])),
        *((CALL, 7, [(2, 0), (1, 0)], [(3, 0, 4096, -1)]), (RELEASE, (2, 0)), (RELEASE, (1, 0))),
        (RELEASE, (3, 0)),
    ]


def test_overwriting_keeps_the_name(toy, log):
    x = toy.unseen(PAGE_WORDS)
    y = toy.one("f", x)
    toy.run("add_", (y, MUTATE), x)
    toy.run("two_", x, (y, MUTATE), (y, MUTATE))
    assert log.take()[2:] == [
        (OVERWRITE, -1, [(2, 0), (1, 0)], [0]),
        (OVERWRITE, -1, [(1, 0), (2, 0), (2, 0)], [1]),
    ]


def test_a_constant_that_is_overwritten_is_overwritten(toy, log):
    weight, gradient = toy.unseen(PAGE_WORDS), toy.unseen(PAGE_WORDS, 1)
    toy.run("step_", (weight, MUTATE | CONSTANT), gradient)
    toy.run("step_", (weight, MUTATE | CONSTANT), gradient)
    step = (OVERWRITE, -1, [(1, 0), (2, 0)], [0])
    assert log.take() == [(MAKE, 1, 4096), (MAKE, 2, 4096), step, step]


def test_new_memory_that_an_operator_fills_is_its_result(toy, log):
    x, buffer = toy.unseen(PAGE_WORDS), toy.unseen(PAGE_WORDS)
    toy.run("copy_", (buffer, WRITE_ONLY), x)
    toy.run("copy_", (buffer, WRITE_ONLY), x)
    assert log.take() == [
        (MAKE, 1, 4096),
        (CALL, -1, [(1, 0)], [(2, 0, 4096, -1)]),
        (OVERWRITE, -1, [(2, 0), (1, 0)], [-1]),  # not [0]: its old content is not read
    ]


def test_a_parameter_is_a_constant_also_when_it_is_filled(toy, log):
    weight = toy.unseen(PAGE_WORDS)
    toy.run("uniform_", (weight, WRITE_ONLY | CONSTANT))
    assert log.take() == [(EFFECT, -1, [], 1), (MAKE, 1, 4096)]


def test_a_result_that_becomes_a_parameter_becomes_a_constant(toy, log):
    weight = toy.one("f")
    toy.one("g", (weight, READ | CONSTANT))
    toy.one("g", (weight, READ | CONSTANT))
    assert log.take() == [
        *((CALL, -1, [], [(1, 0, 4096, -1)]), (RELEASE, (1, 0)), (MAKE, 2, 4096)),
        *((CALL, -1, [(2, 0)], [(3, 0, 4096, -1)]), (CALL, -1, [(2, 0)], [(4, 0, 4096, -1)])),
    ]


def test_what_cannot_be_repeated_gives_constants(toy, log):
    x = toy.unseen(PAGE_WORDS)
    _tiny, large = toy.run("f", x, results=[8, PAGE_WORDS])
    toy.one("file", x, recomputable=False)
    toy.run("file_", (large, MUTATE), recomputable=False)
    toy.run("item", x, results=[], recomputable=False)
    toy.run("mark", results=[])
    assert log.take()[1:] == [
        *((CALL, -1, [(1, 0)], [(2, 0, 64, -1), (3, 0, 4096, -1)]), (EFFECT, -1, [(1, 0)], 1)),
        *((MAKE, 4, 4096), (EFFECT, -1, [(3, 0)], 0), (MAKE, 5, 4096), (RELEASE, (3, 0))),
        *((EFFECT, -1, [(1, 0)], 0), (EFFECT, -1, [], 0)),
    ]


def test_hidden_state_is_no_argument(toy, log):
    x, running = toy.unseen(PAGE_WORDS), toy.unseen(PAGE_WORDS, 1)
    toy.one("norm", x, (running, SCRATCH))
    assert log.take() == [(MAKE, 1, 4096), (CALL, -1, [(1, 0)], [(2, 0, 4096, -1)])]


def test_a_view_has_a_name_until_its_storage_is_overwritten(toy, log):
    x = toy.one("f")
    half = toy.view(x, 0, 256)
    buffer = toy.buffer(2)
    buffer[0], buffer[1] = x.number, half.number
    toy.core.op_log_view(toy.frame, 1, 1, 9, 5)
    toy.core.op_log_view(toy.frame, 1, 1, 9, 5)  # known by now
    toy.one("g", half)
    toy.run("add_", (half, MUTATE))
    toy.one("g", half)
    release(half, x)
    records = log.take(times=True)
    assert records[1] == (CALL, 9, 5, [(1, 0)], [(1, 1, 4096, 0)])
    without_times = [
        record[:2] + record[3:] if record[0] in (CALL, OVERWRITE) else record for record in records
    ]
    assert without_times[2:] == [
        *((CALL, -1, [(1, 1)], [(2, 0, 4096, -1)]), (OVERWRITE, -1, [(1, 0)], [0])),
        *((RELEASE, (1, 1)), (CALL, -1, [(1, 0)], [(1, 2, 4096, 0)])),
        *((CALL, -1, [(1, 2)], [(3, 0, 4096, -1)]), (RELEASE, (1, 2)), (RELEASE, (1, 0))),
    ]
    assert records[5][2] == 0, "a view that nobody recorded costs nothing"


def test_an_operator_that_fails_leaves_no_line(toy, log):
    x = toy.one("f")
    log.take()
    with pytest.raises(Failure):
        toy.one("g", x, fails=fail)
    with pytest.raises(Failure):
        toy.run("g_", (x, MUTATE), fails=fail)
    assert log.take() == []
    release(x)
    assert log.take() == [(RELEASE, (1, 0))]


class TestMemory:
    def test_temporaries_stand_before_their_operator(self, toy, log):

        def temporaries(operator):
            first, second = toy._new(16, None), toy._new(24, None)
            first.release()
            third = toy._new(32, None)
            release(third, second)

        x = toy.run("f", results=[PAGE_WORDS, 64], fails=temporaries)
        toy.run("f_", (x[0], MUTATE), fails=temporaries)
        parts = [(0, 128), (0, 192), (1, 0), (0, 256), (1, 2), (1, 1)]
        first, _, second, _ = log.take()
        assert first == (MEMORY, [(2, 0), (2, 1), *parts])
        assert second == (MEMORY, parts)

    def test_what_a_rematerialization_allocates_is_not_the_operators(self, toy, log):
        x = toy.one("f")
        y = toy.one("g", x)
        log.take()
        assert lib.dtr_evict(toy.engine, x.handle) == 1
        assert lib.dtr_evict(toy.engine, y.handle) == 1
        toy.one("h", y)
        assert [record[0] for record in log.take()] == [CALL]


def test_following_gives_the_same_names_as_writing(toy):
    log = OpLog(toy, lib.DTR_OP_LOG_FOLLOWING)
    x = toy.unseen(PAGE_WORDS)
    y, dead = toy.one("f", x), toy.one("f", x)
    dead.release()
    assert log.take() == []
    log.set(lib.DTR_OP_LOG_WRITING)
    z = toy.one("g", y)
    log.set(lib.DTR_OP_LOG_FOLLOWING)
    z.release()
    log.set(lib.DTR_OP_LOG_WRITING)
    y.release()
    log.set(lib.DTR_OP_LOG_OFF)
    x.release()
    constants = [(MAKE, 1, 4096), (MAKE, 2, 4096)]
    assert log.take() == [
        *constants,
        (CALL, -1, [(2, 0)], [(4, 0, 4096, -1)]),
        *constants,
        (RELEASE, (2, 0)),
    ]


def test_memory_of_others_has_no_size_and_is_released_when_it_is_found_dead(toy, log):
    memory = ffi.new("int64_t[]", 512)
    other = Tensor(toy, toy.foreign(memory, 512), Store(512, bytes(4096)), 0, 512)
    y = toy.one("f", other)
    y.release()  # our own record of it goes, the storage does not
    z = toy.one("f", other)
    other.release()
    z.release()
    log.set(lib.DTR_OP_LOG_OFF)
    assert log.take() == [
        *((MAKE, 1, 0), (CALL, -1, [(1, 0)], [(2, 0, 4096, -1)]), (RELEASE, (2, 0))),
        *((CALL, -1, [(1, 0)], [(3, 0, 4096, -1)]), (RELEASE, (3, 0)), (RELEASE, (1, 0))),
    ]


ROOM, BY_USER, GONE, RECOMPUTED = range(4)


def test_decisions_are_told_in_the_names_of_the_op_log(make_toy):
    toy = make_toy(pages=3)
    log = OpLog(toy)
    lib.dtr_decisions_set(toy.engine, 1)
    x = toy.one("f")
    y = toy.one("g", x)
    assert lib.dtr_evict(toy.engine, y.handle) == 1
    toy.materialize(y)
    toy.run("add_", (y, MUTATE))
    z = toy.run("h", y, results=[1024])[0]
    # The operator with index 1 is g; y's first content went when it was overwritten.
    assert log.decisions() == [(BY_USER, 2, 0), (RECOMPUTED, 1, 0), (GONE, 2, 0), (ROOM, 1, 0)]
    lib.dtr_decisions_set(toy.engine, 0)
    release(x, y, z)
    assert log.decisions() == []


def test_versions_of_a_storage_are_told_apart_in_decisions(toy, log):
    x = toy.one("f")
    toy.run("add_", (x, MUTATE))
    toy.run("mul_", (x, MUTATE))
    lib.dtr_decisions_set(toy.engine, 1)
    assert lib.dtr_evict(toy.engine, x.handle) == 1
    toy.materialize(x)
    # Rematerializing overwrites the older contents in turn.
    assert log.decisions() == [
        *((BY_USER, 1, 2), (RECOMPUTED, 0, 0), (GONE, 1, 0), (RECOMPUTED, 1, 0), (GONE, 1, 1)),
        (RECOMPUTED, 2, 0),
    ]


class Evicting(Program):
    """Evicts by hand in between."""

    def check(self):
        whom = random.Random(self.steps)
        for tensor in self.tensors:
            if whom.random() < 0.4:
                self.toy.evict(tensor)


@pytest.mark.parametrize("seed", range(20))
def test_the_op_log_does_not_depend_on_evictions(make_toy, seed):
    found = []
    for kind in (Program, Evicting):
        toy = make_toy(pages=256)
        log = OpLog(toy)
        kind(toy, seed).run(150).end()
        found.append(log.take())
    assert toy.stats().rematerializations > 10
    assert found[0] == found[1]


def test_memory_of_a_thread_whose_operator_ended_on_another_one_is_no_operators(toy):
    x = toy.unseen(PAGE_WORDS)
    log = OpLog(toy)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(toy.core.op_begin, toy.frame, 0, 0, 0).result() == 0
        assert toy.core.op_end(toy.frame, 0, 0, 1, ffi.NULL) == 0
        log.take()
        elsewhere = thread.submit
        toy.one("f", x, fails=lambda _: elsewhere(toy.unseen, PAGE_WORDS).result().release())
    assert [record[0] for record in log.take()] == [MAKE, CALL]
