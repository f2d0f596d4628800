"""Several streams use one storage, and the engine evicts and rematerializes in between.

On the stand-in for libcuda (stream_toy.py). Needs the core and a C++ compiler.
"""

import pytest
from native_pool import OutOfMemory, check, ffi, lib
from stream_toy import LARGE, A, B
from test_costs import known
from toy import MUTATE, WORD, all_right, line, measured


def test_an_evicted_block_waits_for_every_stream_that_used_it(make_stream_toy, fake_cuda):
    """O1: the job holds the tensor while stream B reads it, so it need not record the stream."""
    toy = make_stream_toy(4)
    source, x = toy.on_a_before_b()
    with toy.on(B):
        toy.one("y", x, words=LARGE)
    assert fake_cuda.unfinished(B) > 0
    assert toy.evict(x)
    with toy.on(A):
        # The only room that is left is where x was.
        for i in range(2):
            toy.one("other", source, words=LARGE, parameter=i)
        fake_cuda.finish(B)
        assert toy.content(x) == x.expected()


@pytest.mark.parametrize("moves", [False, True])
def test_a_stream_waits_for_the_one_on_which_content_was_rematerialized_or_moved(
    make_stream_toy, fake_cuda, moves
):
    """O2: the job ordered B behind A's first making of x, and knows of no other."""
    toy = make_stream_toy(12)
    _source, x = toy.on_a_before_b()
    assert moves or toy.evict(x)
    with toy.on(A):
        if moves:
            assert toy.move(x)
        else:
            toy.one("y", x, words=LARGE)  # brings x back, on A
    assert fake_cuda.unfinished(A) > 0
    waits = fake_cuda.waits()
    with toy.on(B):
        toy.one("z", x, words=LARGE)
        assert fake_cuda.waits() > waits
        waits = fake_cuda.waits()
        toy.one("z", x, words=LARGE, parameter=1)
        assert fake_cuda.waits() == waits, "once is enough"


def test_an_input_of_a_step_that_was_rematerialized_elsewhere_is_waited_for(make_stream_toy):
    """O2 for what a step reads."""
    toy = make_stream_toy(8)
    with toy.on(A):
        _, x, y = line(toy, "x", "y", words=LARGE)
    toy.wait(B, A)
    assert toy.evict(x)
    with toy.on(A):
        toy.materialize(x)
    assert toy.evict(y)
    with toy.on(B):
        toy.one("z", y, words=LARGE)  # y is computed again from x, on B


def test_a_new_version_of_a_shared_buffer_waits_too(make_stream_toy, fake_cuda):
    """A buffer that B overwrote is evicted: A may not have it before B is done."""
    toy = make_stream_toy(4)
    source, x = toy.on_a_before_b()
    with toy.on(B):
        toy.run("add_", (x, MUTATE))
    assert toy.evict(x)
    with toy.on(A):
        for i in range(2):
            toy.one("other", source, words=LARGE, parameter=i)


def test_an_overwriting_operator_waits_for_recomputations_that_read_before(make_stream_toy):
    """O3: the job orders A behind the readers that it knows, and not behind B."""
    toy = make_stream_toy(8)
    with toy.on(A):
        _, x, y = line(toy, "x", "y", words=LARGE)
    toy.wait(B, A)
    assert toy.evict(y)
    with toy.on(B):
        toy.materialize(y)
    with toy.on(A):
        toy.run("add_", (x, MUTATE))
        assert toy.content(x) == x.expected()


def test_one_stream_waits_for_nothing(make_stream_toy, fake_cuda):
    toy = make_stream_toy(4, streams=())
    with toy.on(A):
        source = toy.unseen(LARGE)
        made = [source]
        for i in range(6):
            made.append(toy.one("f", made[-1], words=LARGE, parameter=i))
        assert all_right(toy, *reversed(made))
    assert toy.stats().rematerializations > 0
    assert fake_cuda.waits() == 0
    assert toy.pool.stats().host_waits == 0


class TestTimes:
    """What operators cost is read from events, some operators later, without waiting."""

    def test_they_are_what_the_device_says(self, make_stream_toy, fake_cuda):
        toy = make_stream_toy(64, price=measured)
        fake_cuda.hold(0)
        with toy.on(A):
            made = [toy.unseen(LARGE)]
            made += [toy.one("f", made[0], words=LARGE, parameter=i) for i in range(40)]
        ((_, _, readings),) = known(toy).values()
        assert readings >= 8
        assert toy.pool.stats().host_waits == 0

    def test_nothing_is_known_while_the_device_is_late(self, make_stream_toy, fake_cuda):
        """Until then an operator is reckoned to take as long as its bytes take to move."""
        toy = make_stream_toy(64, price=measured)
        with toy.on(A):
            made = [toy.unseen(LARGE)]
            made += [toy.one("f", made[0], words=LARGE, parameter=i) for i in range(40)]
            assert known(toy) == {}
            assert toy.stats().total_cost_ns == 40 * round(2 * LARGE * WORD / 1000)
            fake_cuda.hold(0)
            made += [toy.one("f", made[0], words=LARGE, parameter=i) for i in range(20)]
        assert len(known(toy)) == 1


class TestCapture:
    """While a graph is captured."""

    def test_nothing_live_is_evicted(self, make_stream_toy):
        toy = make_stream_toy(4)
        _, x = line(toy, "x", words=LARGE)
        with toy.capturing():
            assert not toy.evict(x)
            with pytest.raises(OutOfMemory):
                toy.unseen(3 * LARGE)
        toy.unseen(3 * LARGE)
        assert not toy.resident(x)

    def test_what_an_operator_touched_is_never_evicted_nor_computed_from_again(
        self, make_stream_toy
    ):
        toy = make_stream_toy(8)
        _, x, before = line(toy, "x", "before", words=LARGE)
        with toy.capturing():
            inside = toy.one("inside", x, words=LARGE)
        after = toy.one("after", x, words=LARGE)
        beyond = toy.one("beyond", after, words=LARGE)
        for tensor in (x, before, inside, after):
            assert not toy.evict(tensor)
        assert beyond.comes_back()

    def test_what_an_operator_made_from_nothing_stays_too(self, make_stream_toy):
        toy = make_stream_toy(4)
        with toy.capturing():
            made = toy.one("made", words=LARGE)
        assert not toy.evict(made)

    def test_each_owner_ends_its_own_once(self, make_stream_toy):
        toy = make_stream_toy(4)
        _, x = line(toy, "x", words=LARGE)
        owners = [ffi.new("dtr_capture_owner *") for _ in range(2)]
        for owner in owners:
            check(lib.dtr_begin_capture(toy.engine, owner))
        assert lib.dtr_begin_capture(toy.engine, owners[0]) == lib.DTR_STATE
        for _ in range(2):
            check(lib.dtr_end_capture(owners[0]))
        assert not toy.evict(x)
        assert lib.dtr_engine_destroy(toy.engine) == lib.DTR_STATE
        check(lib.dtr_end_capture(owners[1]))
        assert toy.evict(x)
