"""Memory that is only counted, beside what test_contract.py has. Needs the native build."""

import pytest
from native_pool import Invalid, NativePool, OutOfMemory


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


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(Invalid, match="budget_bytes is 0"):
        NativePool("counted", budget=0)
