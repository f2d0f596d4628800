"""What fills the memory when it is fullest, and what runs again, by the place of the operators."""

from collections import Counter
from functools import partial

import pytest
from native_pool import check, ffi, lib
from toy import MUTATE, WORD, WORDS, release

from dtr_alloc.core import listed


@pytest.fixture
def place():
    """Says where in the job the operators of this thread stand."""
    yield lib.dtr_place
    lib.dtr_place(0)


def repeats(toy):
    """How many operators ran again, by place."""
    ask = partial(lib.dtr_engine_repeats, toy.engine)
    times: Counter[int] = Counter()
    for each in listed("dtr_repeats", ask):
        times[each.place] += each.times
    return dict(times)


def fullest(toy):
    """Bytes by place."""
    ask = partial(lib.dtr_engine_holders, toy.engine, lib.DTR_HOLDERS_FULLEST)
    return {holder.place: holder.size_bytes for holder in listed("dtr_holder", ask)}


def test_what_runs_again_is_counted_where_it_stands(make_toy, place):
    toy = make_toy(pages=8)
    check(lib.dtr_engine_keep_account(toy.engine, 1))
    x = toy.unseen(WORDS)
    results = []
    for number in (1, 2, 2):
        place(number)
        results.append(toy.one("f", x, parameter=len(results)))
    place(7)  # where they run again is no matter
    for result in results:
        assert result.comes_back()
    assert repeats(toy) == {1: 1, 2: 2}
    assert toy.evict(results[0])
    check(lib.dtr_engine_keep_account(toy.engine, 0))
    assert toy.content(results[0]) == results[0].expected()
    assert repeats(toy) == {1: 1, 2: 2}  # no account is kept any more
    check(lib.dtr_engine_keep_account(toy.engine, 1))
    assert repeats(toy) == {}


def test_the_fullest_moment_stays_known_when_it_is_over(make_toy, place):
    toy = make_toy(pages=64)
    check(lib.dtr_engine_keep_account(toy.engine, 1))
    x = toy.unseen(WORDS)
    place(1)
    toy.one("f", x, words=512)
    place(2)
    large = [toy.one("f", x, words=2048, parameter=i) for i in range(4)]
    release(*large)
    place(3)
    toy.one("f", x, words=512)
    found = fullest(toy)
    assert found[1] == 512 * WORD
    assert found[2] == 4 * 2048 * WORD
    assert 3 not in found
    check(lib.dtr_engine_reset_peak(toy.engine))
    toy.one("f", x, words=512)
    assert 2 not in fullest(toy)


def test_an_overwritten_content_is_of_the_place_that_wrote_it(make_toy, place):
    toy = make_toy(pages=64)
    check(lib.dtr_engine_keep_account(toy.engine, 1))
    x = toy.unseen(WORDS)
    place(1)
    y = toy.one("f", x)
    place(2)
    toy.run("add_", (y, MUTATE), parameter=1)
    check(lib.dtr_engine_reset_peak(toy.engine))
    place(3)
    toy.one("f", x)
    assert {2, 3} <= set(fullest(toy))
    assert 1 not in fullest(toy)


def test_no_other_time_is_known(make_toy):
    toy = make_toy(pages=8)
    assert lib.dtr_engine_holders(toy.engine, 3, ffi.new("dtr_holder[]", 1), 1) == 0
    assert ffi.string(lib.dtr_last_error()).decode() == "when is 3; allowed: 0 to 2"
