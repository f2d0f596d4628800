"""Fixed pools: as many addresses as the budget has bytes. The contract suite runs over them."""

import pytest
from native_pool import KIB, NO_LIMIT, NativePool, OutOfMemory

CHUNK = 64 * KIB


@pytest.fixture
def pool():
    with NativePool("host-fixed", budget=16 * CHUNK, chunk=CHUNK) as pool:
        yield pool


def test_two_holes_do_not_make_one(pool):
    """What fails here is a remapping in a mapped pool, once nobody else gives room."""
    for fixed in (1, 0):
        with NativePool("host", budget=16 * CHUNK, chunk=CHUNK, fixed=fixed) as either:
            blocks = [either.allocate(4 * CHUNK) for _ in range(4)]
            either.free(blocks[0])
            either.free(blocks[2])
            asked: list[int] = []
            either.set_room(lambda size, stream, asked=asked: bool(asked.append(size)))
            if fixed:
                with pytest.raises(OutOfMemory, match=r"largest free 256.0 KiB"):
                    either.allocate(8 * CHUNK)
                assert (asked, either.stats().remaps) == ([8 * CHUNK], 0)
            else:
                either.allocate(8 * CHUNK)
                assert (asked, either.stats().remaps) == ([8 * CHUNK], 1)


def test_a_budget_that_is_no_whole_number_of_chunks_is_cut(pool):
    pool.set_budget(8 * CHUNK + 5)
    pool.allocate(8 * CHUNK)
    assert pool.stats().largest_free_bytes == 0


def test_addresses_grow_and_shrink_with_the_budget(pool):
    """Also where the last block is in use, and to no limit and back."""
    first = pool.allocate(12 * CHUNK)
    pool.set_budget(12 * CHUNK)
    with pytest.raises(OutOfMemory):
        pool.allocate(512)
    pool.set_budget(20 * CHUNK)
    second = pool.allocate(8 * CHUNK)
    pool.set_budget(NO_LIMIT)
    third = pool.allocate(4 * CHUNK)
    assert (second, third) == (first + 12 * CHUNK, first + 20 * CHUNK)
    pool.free(second)
    pool.free(third)
    pool.verify()
    pool.set_budget(16 * CHUNK)
    pool.verify()
    assert pool.stats().reserved_bytes == 16 * CHUNK
    with pytest.raises(OutOfMemory):
        pool.allocate(5 * CHUNK)
