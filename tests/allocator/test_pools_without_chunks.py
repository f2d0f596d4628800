"""Pools without chunks, beside what test_contract.py has: memory that nobody can touch once it is
freed, and memory that is only counted. Needs the native build."""

import os

import pytest
from commands import python_with_pools
from native_pool import DriverFailed, Invalid, NativePool, OutOfMemory, fill, read

PAGE = os.sysconf("SC_PAGESIZE")
GIB = 2**30
without_sanitizer = pytest.mark.skipif(
    os.environ.get("DTR_ALLOC_BUILD") == "sanitize", reason="a sanitizer handles SIGSEGV itself"
)


def test_blocks_share_no_page_and_keep_their_contents():
    with NativePool("guarded", budget=2**20) as pool:
        blocks = {pool.allocate(size): size for size in (1, 64, PAGE, PAGE + 1, 300_000)}
        for value, (block, size) in enumerate(blocks.items()):
            fill(block, size, value)
        for value, (block, size) in enumerate(blocks.items()):
            assert block % PAGE == 0
            assert read(block, size) == {value}
            assert pool.block_start(block + size - 1) == block
        pool.verify()
        assert pool.stats().allocated_bytes == sum(blocks.values())
        first = next(iter(blocks))
        pool.free(first)
        assert pool.block_start(first) == 0
        pool.verify()


def test_the_budget_counts_what_was_asked_for():
    with NativePool("guarded", budget=100) as pool:
        blocks = [pool.allocate(30) for _ in range(3)]
        with pytest.raises(OutOfMemory, match=r"requested 40 .*budget 100 .*allocated 90"):
            pool.allocate(40)
        pool.free(blocks[0])
        pool.allocate(40)


def test_an_address_is_used_again_when_all_others_were():
    with NativePool("guarded") as pool:
        stays = pool.allocate(10)
        seen = set()
        for _ in range(7):  # untouched, so that no memory is taken
            block = pool.allocate(32 * GIB)
            assert block not in seen
            seen.add(block)
            pool.free(block)
        again = [pool.allocate(32 * GIB) for _ in range(7)]
        assert min(again) < min(seen) + 32 * GIB
        assert all(abs(block - stays) >= PAGE for block in again)
        pool.verify()
        fill(stays, 10, 5)
        assert read(stays, 10) == {5}


def test_no_addresses_are_left():
    with NativePool("guarded") as pool:
        blocks = [pool.allocate(60 * GIB) for _ in range(4)]
        with pytest.raises(DriverFailed, match=r"no gap of 60\.0 GiB"):
            pool.allocate(60 * GIB)
        pool.verify()
        pool.free(blocks[2])
        assert pool.allocate(60 * GIB) == blocks[2]


@without_sanitizer
@pytest.mark.parametrize("access", ["read(block, 8)", "fill(block, 8, 1)"])
def test_who_uses_freed_memory_ends_with_a_line_that_says_so(access: str):
    done = python_with_pools(
        f"""
        from native_pool import *
        pool = NativePool("guarded")
        block = pool.allocate(100)
        fill(block, 100, 1)
        print("before", flush=True)
        pool.free(block)
        {access}
        print("behind")
    """,
        status=-11,
    )
    assert done.stdout == "before\n"
    assert "dtr_alloc: memory was used by a pointer" in done.stderr
    assert 'File "<string>", line 8' in done.stderr


@without_sanitizer
def test_other_faults_are_not_called_ours():
    done = python_with_pools(
        """
        from native_pool import *
        with NativePool("guarded") as pool:
            pool.free(pool.allocate(100))
        read(4096, 8)
    """,
        status=-11,
    )
    assert "Segmentation fault" in done.stderr
    assert "dtr_alloc" not in done.stderr


def test_sizes_are_not_rounded_and_nothing_is_lost_between_blocks():
    with pytest.raises(Invalid, match="budget_bytes is 0"):
        NativePool("counted", budget=0)
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
