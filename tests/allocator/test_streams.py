"""Reuse across streams, on the stand-in for libcuda: needs the native build and g++, no GPU.

The stand-in reports a violation, and the fixture fails, if work on one stream overlaps unfinished
work of another without an event in between.
"""

import pytest
from native_fixtures import held_pool
from native_pool import FREE, IN_USE, MIB, PENDING, NativePool, OutOfMemory

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


def test_a_completed_event_frees_a_block_for_everybody(pool, fake_cuda):
    pool.free(pool.allocate(100, B))
    blocks = [pool.allocate(3 * CHUNK, A) for _ in range(2)]
    for block in blocks:
        fake_cuda.launch(A, block, CHUNK)
        pool.free(block)
    fake_cuda.finish(A)
    waits = fake_cuda.waits()
    assert pool.allocate(6 * CHUNK, B) == blocks[0]
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


def test_events_may_complete_out_of_order(pool, fake_cuda):
    blocks = [pool.allocate(CHUNK, A) for _ in range(2)]
    for block, stream in zip(blocks, (B, C), strict=True):
        fake_cuda.launch(stream, block, CHUNK)
        pool.record_stream(block, stream)
        pool.free(block)
    fake_cuda.finish(C)
    assert [states(pool).get(block) for block in blocks] == [PENDING, FREE]
    fake_cuda.finish(B)
    assert states(pool)[blocks[0]] == FREE


def test_a_use_on_its_own_stream_changes_nothing(pool, fake_cuda):
    address = pool.allocate(CHUNK, A)
    pool.record_stream(address, A)
    pool.free(address)
    assert states(pool)[address] == FREE
    assert fake_cuda.unfinished(A) == 0


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


def fragmented(pool, fake_cuda):
    """Every second chunk is free, and work still runs on all of them."""
    blocks = [pool.allocate(CHUNK, A) for _ in range(8)]
    for block in blocks:
        fake_cuda.launch(A, block, CHUNK)
    for block in blocks[::2]:
        pool.free(block)
    return blocks


def test_memory_moves_to_other_addresses_without_waiting(pool, fake_cuda):
    """It stays at the old ones for the work that is queued there; the stand-in checks that."""
    blocks = fragmented(pool, fake_cuda)
    large = pool.allocate(4 * CHUNK, A)
    assert large > blocks[-1]
    fake_cuda.launch(A, large, 4 * CHUNK)
    assert (pool.stats().remaps, pool.stats().host_waits) == (1, 0)
    assert fake_cuda.unfinished(A) > 8
    assert fake_cuda.physical_bytes() == 8 * CHUNK


def test_addresses_that_memory_has_left_serve_again_once_the_work_there_is_done(pool, fake_cuda):
    blocks = fragmented(pool, fake_cuda)
    large = pool.allocate(4 * CHUNK, A)
    pool.free(large)
    other = pool.allocate(CHUNK, A)
    assert other not in blocks
    pool.free(other)
    fake_cuda.finish(A)
    pool.trim()
    assert [pool.allocate(CHUNK, A) for _ in range(4)] == blocks[::2]
    assert fake_cuda.physical_bytes() == 8 * CHUNK


def test_what_memory_has_left_is_waited_for_before_it_goes_back(pool, fake_cuda):
    """A trim gives the memory back, and so nothing may show it any more."""
    fragmented(pool, fake_cuda)
    pool.free(pool.allocate(4 * CHUNK, A))
    assert pool.trim() == 4 * CHUNK
    assert fake_cuda.physical_bytes() == 4 * CHUNK


def test_slabs_of_one_stream_serve_another_only_behind_an_event(pool, fake_cuda):
    small = [pool.allocate(2048, A) for _ in range(CHUNK // 2048)]  # all slabs of a chunk
    pool.allocate(7 * CHUNK, B)
    for address in small:
        fake_cuda.launch(A, address, 2048)
        pool.free(address)
    moved = pool.allocate(100, B)
    fake_cuda.launch(B, moved, 100)
    assert moved in small


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


def test_host_memory_has_no_streams(fake_cuda):
    with NativePool("host", budget=8 * CHUNK) as pool:
        address = pool.allocate(8 * CHUNK, A)
        pool.record_stream(address, B)
        pool.free(address)
        assert states(pool)[address] == FREE
        assert pool.allocate(8 * CHUNK, C) == address
