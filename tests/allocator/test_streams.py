"""Reuse across streams, on the stand-in for libcuda: needs the native build and g++, no GPU.

The stand-in reports a violation, and the fixture fails, if work on one stream overlaps unfinished
work of another without an event in between.
"""

import pytest
from native_fixtures import held_pool
from native_pool import FREE, IN_USE, MIB, PENDING, OutOfMemory

CHUNK = 2 * MIB
A, B, C = 16, 32, 48


pool = pytest.fixture(held_pool)


def states(pool):
    return {block.address: block.state for block in pool.snapshot()}


def test_a_block_is_reused_at_once_on_its_own_stream(pool, fake_cuda):
    address = pool.allocate(CHUNK, A)
    fake_cuda.launch(A, address, CHUNK)
    pool.free(address)
    assert pool.allocate(CHUNK, A) == address
    fake_cuda.launch(A, address, CHUNK)
    assert fake_cuda.waits() == 0
    assert fake_cuda.unfinished(A) == 2


def test_a_block_is_reused_on_another_stream_behind_an_event(pool, fake_cuda):
    pool.free(pool.allocate(100, B))
    address = pool.allocate(8 * CHUNK - 2 * CHUNK, A)
    fake_cuda.launch(A, address, 6 * CHUNK)
    pool.free(address)
    assert pool.allocate(6 * CHUNK, B) == address
    fake_cuda.launch(B, address, 6 * CHUNK)
    assert fake_cuda.waits() >= 1
    assert fake_cuda.unfinished(A) > 0


def test_another_stream_takes_untouched_memory_first(pool, fake_cuda):
    """While the budget lasts, a fresh block is better than a wait."""
    pool.free(pool.allocate(100, B))
    address = pool.allocate(CHUNK, A)
    pool.free(address)
    waits = fake_cuda.waits()
    assert pool.allocate(CHUNK, B) != address
    assert fake_cuda.waits() == waits


@pytest.mark.parametrize("size", [CHUNK, 100])
def test_a_recorded_use_keeps_a_block_pending(pool, fake_cuda, size):
    address = pool.allocate(size, A)
    fake_cuda.launch(B, address, size)
    pool.record_stream(address, B)
    pool.free(address)
    assert states(pool)[address] == PENDING
    assert pool.stats().live_blocks == 0
    other = pool.allocate(size, A)
    assert other != address
    fake_cuda.finish(B)
    assert states(pool)[address] == FREE
    assert pool.allocate(size, A) == address


def test_pending_blocks_are_waited_for_and_merge_before_room_is_asked_for(pool, fake_cuda):
    pool.set_room(lambda size, stream: pytest.fail("room was asked for"))
    blocks = [pool.allocate(4 * CHUNK, A) for _ in range(2)]
    for block, stream in zip(blocks, (B, C), strict=True):
        fake_cuda.launch(stream, block, CHUNK)
        pool.record_stream(block, stream)
        pool.free(block)
    large = pool.allocate(8 * CHUNK, A)
    fake_cuda.launch(A, large, 8 * CHUNK)
    assert large == blocks[0]
    assert fake_cuda.unfinished(B) > 0
    assert pool.stats().host_waits == 0


def test_out_of_memory_waits_and_then_counts_what_is_in_use(pool, fake_cuda):
    kept = pool.allocate(5 * CHUNK, A)
    pool.free(pool.allocate(3 * CHUNK, B))
    with pytest.raises(OutOfMemory, match=r"largest free 6\.0 MiB"):
        pool.allocate(4 * CHUNK, C)
    assert states(pool)[kept] == IN_USE


def test_neighbors_that_several_streams_freed_serve_behind_events(pool, fake_cuda):
    pool.set_room(lambda size, stream: pytest.fail("room was asked for"))
    blocks = [pool.allocate(CHUNK, stream) for stream in (A, B, C) * 2]
    for block, stream in zip(blocks, (A, B, C) * 2, strict=True):
        fake_cuda.launch(stream, block, CHUNK)
    for block in blocks[1:]:
        pool.free(block)
    for size, stream in ((6 * CHUNK, B), (7 * CHUNK, A)):
        large = pool.allocate(size, stream)
        assert large == blocks[1]
        fake_cuda.launch(stream, large, size)
        pool.free(large)
    pool.check_invariants()
    assert fake_cuda.unfinished(C) > 0
    assert pool.stats().host_waits == 0


def scattered(pool, fake_cuda):
    """Every second chunk is free, and three streams still work on all of them."""
    blocks = [pool.allocate(CHUNK, stream) for stream in (A, B, C, A, B, C, A, B)]
    for block, stream in zip(blocks, (A, B, C, A, B, C, A, B), strict=True):
        fake_cuda.launch(stream, block, CHUNK)
    for block in blocks[::2]:
        pool.free(block)
    return blocks


def test_the_last_search_waits_for_streams_that_complete_in_any_order(pool, fake_cuda):
    """Room is asked for before anything is waited for, and then all that is free is found."""
    scattered(pool, fake_cuda)
    fake_cuda.step(C)
    waits = []
    pool.set_room(lambda size, stream: bool(waits.append(pool.stats().host_waits)))
    pool.allocate(4 * CHUNK, A)
    assert waits == [0]
    assert pool.stats().host_waits > 0
    assert [fake_cuda.unfinished(stream) for stream in (A, B, C)] == [0, 0, 0]


def test_room_that_is_made_without_end_ends_in_a_wait(pool, fake_cuda):
    """Chunks are not remapped while several streams work on them, and every answer frees one."""
    moved = scattered(pool, fake_cuda)[1]
    moves = []

    def move(size, stream):
        moves.append(moved)
        pool.free(moved)
        return len(moves) < 2000 and pool.allocate(CHUNK, B) == moved

    pool.set_room(move)
    pool.allocate(4 * CHUNK, A)
    assert 0 < len(moves) < 2000


def test_in_the_steady_state_the_host_waits_for_nothing(pool, fake_cuda):

    def step():
        blocks = [pool.allocate(CHUNK, stream) for stream in (A, B, A)]
        small = [pool.allocate(100, stream) for stream in (A, B)]
        for block, stream in zip(blocks, (A, B, A), strict=True):
            fake_cuda.launch(stream, block, CHUNK)
        for block in [*blocks, *small]:
            pool.free(block)
        for stream in (A, B):
            fake_cuda.step(stream)

    for _ in range(30):
        step()
    assert pool.stats().host_waits == 0
    assert pool.stats().unmapped_chunks == 0
