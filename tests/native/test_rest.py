"""The recorder rests while nothing has to be evicted (native/graph/rest.h)."""

import pytest
from native_pool import OutOfMemory, check, ffi, lib
from toy import MUTATE, WORDS, WRITE_ONLY, line

AFTER = 4
PAGES = 32


@pytest.fixture
def resting(make_toy):
    """Makes a toy whose recorder rests, on memory of which most is free."""

    def make(**options):
        toy = make_toy(pages=PAGES, rest_after_ops=AFTER, moving=1, **options)
        x = toy.unseen(WORDS)
        until_rest(toy, x)
        return toy

    return make


def is_resting(toy):
    at_rest = toy.begins_at_rest()
    if at_rest:
        toy.ends_at_rest()
    return at_rest


def until_rest(toy, x):
    for i in range(3 * AFTER):
        toy.one("f", x, parameter=i).release()
    assert is_resting(toy)


def test_at_rest_contents_are_constants_without_records(make_toy):
    toy = make_toy(pages=PAGES, rest_after_ops=AFTER)
    x, y = line(toy, "g")
    until_rest(toy, x)
    stats = toy.stats()
    assert (stats.live_ops, stats.live_storages, stats.rests) == (0, 0, 1)
    toy.run("add_", (x, MUTATE))  # which y was computed from
    z = toy.one("h", y)
    assert toy.stats().recorded_ops == stats.recorded_ops
    assert toy.stats().unrecorded_ops > stats.unrecorded_ops
    assert not toy.evict(y)  # and it is awake
    assert not toy.evict(z)
    later = toy.one("h", y)
    assert later.comes_back()
    assert [tensor.is_right() for tensor in (x, y, z)] == [True] * 3


def capture(toy):
    with toy.capturing():
        pass


def fill(toy):
    for _ in range(3 * PAGES // 4):
        toy.unseen(WORDS)


def too_small_a_budget(toy):
    with pytest.raises(OutOfMemory):
        toy.pool.set_budget(4096)


WAKERS = {
    "a request of a new size": lambda toy: toy.unseen(WORDS // 2),
    "memory above half of the budget": fill,
    "other settings": lambda toy: toy.configure(thrash=4),
    "a budget that does not hold what is there": too_small_a_budget,
    "an eviction by hand": lambda toy: toy.evict(toy.unseen(WORDS)),
    "a graph that is captured": capture,
    "an account of all memory": lambda toy: lib.dtr_engine_keep_account(toy.engine, 1),
    "an op log": lambda toy: lib.dtr_op_log_set(toy.engine, 1),
}


@pytest.mark.parametrize("waker", WAKERS)
def test_the_recorder_is_woken_by(waker, resting):
    toy = resting()
    x = toy.unseen(WORDS)
    assert is_resting(toy)
    WAKERS[waker](toy)
    assert not is_resting(toy)
    recorded = toy.stats().recorded_ops
    y = toy.one("g", x)
    assert toy.stats().recorded_ops == recorded + 1
    assert waker == "a graph that is captured" or y.comes_back()
    toy.verify()


KEEPS_AWAKE = {
    "a live content is evicted": lambda toy: toy.evict(toy.one("g", toy.unseen(WORDS))),
    "contents can be swapped": lambda toy: toy.configure(swap_bytes=1 << 20),
    "more than half of the budget is in use": fill,
}


@pytest.mark.parametrize("state", KEEPS_AWAKE)
def test_the_recorder_does_not_rest_while(state, make_toy):
    toy = make_toy(pages=PAGES, rest_after_ops=AFTER)
    KEEPS_AWAKE[state](toy)
    x = toy.unseen(WORDS)
    for i in range(8 * AFTER):
        toy.one("f", x, parameter=i).release()
    assert toy.stats().rests == 0


def test_it_does_not_rest_while_each_request_has_another_size(make_toy):
    toy = make_toy(pages=PAGES, rest_after_ops=AFTER)
    x = toy.unseen(WORDS)
    for i in range(8 * AFTER):
        toy.one("f", x, words=WORDS + 8 * i).release()
    assert toy.stats().rests == 0


def test_nothing_is_moved_while_an_operator_runs_at_rest(resting):
    toy = resting()
    below = toy.unseen(2 * WORDS)
    x = toy.unseen(2 * WORDS)
    until_rest(toy, toy.unseen(WORDS))
    below.release()
    assert toy.begins_at_rest()  # it reads x, say
    toy.configure()
    toy.one("g", x)
    assert not toy.move(x)
    toy.ends_at_rest()
    assert toy.move(x)
    assert x.is_right()


def test_what_is_known_of_a_storage_beyond_its_content_is_known_after_a_rest(make_toy):
    toy = make_toy(pages=PAGES, rest_after_ops=AFTER, moving=1)
    x = toy.unseen(WORDS)
    pinned, given_away = toy.one("g", x), toy.one("h", x)
    toy.pin(pinned)
    toy.pin(given_away, escaped=True)
    until_rest(toy, x)
    toy.configure()
    for tensor in (pinned, given_away):
        toy.run("fill", (tensor, WRITE_ONLY), x)
        assert not toy.evict(tensor)
        assert not toy.move(tensor)
    assert toy.unpin(pinned)
    assert pinned.comes_back()
    assert not toy.evict(given_away)


def test_what_must_stay_where_it_was_made_is_recorded_at_rest(resting):
    toy = resting()
    x = toy.unseen(WORDS)
    owner = ffi.new("dtr_pin_owner *")
    check(lib.dtr_pin_made(toy.engine, owner))
    assert not is_resting(toy)
    made = toy.one("g", x)
    assert not toy.move(made)
    check(lib.dtr_end_pin(owner))
    assert is_resting(toy)
    assert toy.move(made)
