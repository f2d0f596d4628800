"""Fixed pools: as many addresses as the budget has bytes. The contract suite runs over them."""

import pytest
from native_pool import IN_USE, KIB, NO_LIMIT, NativePool, OutOfMemory

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


def test_all_addresses_can_be_used_and_none_beyond(pool):
    """Small requests are blocks of the same heap, of 256 bytes at least; memory is mapped only
    where it is needed."""
    small = pool.allocate(1)
    assert pool.stats().reserved_bytes == CHUNK
    assert pool.block_bytes(small) == 256
    at = small + 3 * 256
    assert pool.try_at(1, at) == (at, [], 0)
    assert pool.block_bytes(at) == 256
    assert pool.try_at(1, at) == (0, [at], 1)
    pool.free(at)
    rest = pool.allocate(16 * CHUNK - 256)
    assert rest == small + 256
    assert [block.state for block in pool.snapshot()] == [IN_USE, IN_USE]
    with pytest.raises(OutOfMemory):
        pool.allocate(1)


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


def test_what_stands_above_a_lower_budget_must_go(pool):
    """However little it is. Room is asked for until it has gone."""
    blocks = [pool.allocate(4 * CHUNK) for _ in range(4)]
    for block in blocks[:3]:
        pool.free(block)
    with pytest.raises(OutOfMemory, match=r"cannot be lowered to .* it stays 1.0 MiB"):
        pool.set_budget(8 * CHUNK)
    assert pool.allocate(12 * CHUNK) == blocks[0]
    pool.free(blocks[0])
    pool.set_room(lambda size, stream: pool.free(blocks[3]) is None)
    pool.set_budget(8 * CHUNK)
    assert pool.allocate(8 * CHUNK) == blocks[0]
