"""Memory that is only counted. Needs the native build."""

import pytest
from native_pool import NO_LIMIT, Invalid, NativePool, OutOfMemory, WrongState


def test_sizes_are_not_rounded_and_nothing_is_lost_between_blocks():
    with NativePool("counted", budget=1000) as pool:
        sizes = [1, 7, 300, 692]
        blocks = [pool.allocate(size) for size in sizes]
        assert len(set(blocks)) == 4
        assert pool.stats().allocated_bytes == 1000
        assert pool.stats().largest_free_bytes == 0
        with pytest.raises(OutOfMemory, match=r"requested 1 .*budget 1000 "):
            pool.allocate(1)
        pool.free(blocks[0])
        pool.free(blocks[2])
        assert pool.stats().largest_free_bytes == 301
        pool.allocate(301)  # no hole is as large
        assert pool.stats().peak_allocated_bytes == 1000


def test_an_address_is_never_handed_out_twice():
    with NativePool("counted", budget=10) as pool:
        seen = set()
        for _ in range(100):
            block = pool.allocate(10)
            assert block not in seen
            seen.add(block)
            pool.free(block)


def test_what_is_freed_twice_or_of_another_pool_is_named():
    with NativePool("counted") as pool, NativePool("counted") as other:
        block, stranger = pool.allocate(8), other.allocate(8)
        pool.free(block)
        with pytest.raises(Invalid, match="freed twice"):
            pool.free(block)
        with pytest.raises(Invalid, match="not in this pool"):
            pool.free(stranger)


def test_room_is_asked_for_until_the_request_fits():
    with NativePool("counted", budget=100) as pool:
        blocks = [pool.allocate(30) for _ in range(3)]
        asked = []

        def room(size, stream):
            asked.append(size)
            pool.free(blocks.pop())
            return 1

        pool.set_room(room)
        pool.allocate(70)
        assert asked == [70, 70]


def test_a_request_larger_than_the_budget_asks_nobody():
    with NativePool("counted", budget=100) as pool:
        asked = []
        pool.set_room(lambda size, stream: asked.append(size) or 1)
        with pytest.raises(OutOfMemory, match="larger than the budget"):
            pool.allocate(101)
        assert asked == []


def test_lowering_the_budget_asks_for_room_and_keeps_the_old_one_if_there_is_none():
    with NativePool("counted", budget=100) as pool:
        blocks = [pool.allocate(40), pool.allocate(40)]
        with pytest.raises(OutOfMemory, match="it stays 100"):
            pool.set_budget(50)
        assert pool.stats().budget_bytes == 100
        pool.set_room(lambda size, stream: pool.free(blocks.pop()) or 1)
        pool.set_budget(50)
        assert pool.stats().budget_bytes == 50
        assert pool.stats().allocated_bytes == 40


def test_blocks_in_use_keep_the_pool():
    pool = NativePool("counted", budget=NO_LIMIT)
    block = pool.allocate(2**40)
    with pytest.raises(WrongState, match="1 blocks in use"):
        pool.destroy()
    pool.free(block)
    pool.destroy()


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(Invalid, match="budget_bytes is 0"):
        NativePool("counted", budget=0)
