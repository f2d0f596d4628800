"""Memory whose addresses stay its own. Needs the native build; CUDA is the stand-in."""

import pytest
from native_fixtures import held_pool
from native_pool import FREE, IN_USE, MIB, Invalid, NativePool, OutOfMemory, WrongState

CHUNK = 2 * MIB
A, B, C = 16, 32, 48


pool = pytest.fixture(held_pool)


def test_a_closed_arena_gives_its_memory_to_everybody(make_pool):
    with make_pool(chunks=8) as pool:
        arena = pool.arena_open()
        freed, kept = (pool.arena_allocate(arena, 4 * pool.chunk) for _ in range(2))
        pool.free(freed)
        with pytest.raises(OutOfMemory, match="kept for graphs and memory pools"):
            pool.allocate(pool.chunk)
        pool.arena_close(arena)
        asked = []
        pool.set_room(lambda size, stream: bool(asked.append(size)))
        assert pool.allocate(4 * pool.chunk) == freed
        assert asked == []
        pool.free(freed)
        pool.free(kept)
        assert pool.allocate(8 * pool.chunk) != 0


def test_an_arena_takes_idle_memory_and_remaps_for_it(make_pool, maps_chunks):
    with make_pool(chunks=8) as pool:
        blocks = [pool.allocate(pool.chunk) for _ in range(8)]
        for block in blocks[::2]:
            pool.free(block)
        arena = pool.arena_open()
        large = pool.arena_allocate(arena, 4 * pool.chunk)
        assert large > blocks[-1]
        assert pool.stats().remaps == 1
        asked = []

        def room(size, stream):
            asked.append((size, stream))
            pool.free(blocks.pop())
            return True

        pool.set_room(room)
        pool.arena_allocate(arena, 64, 9)
        assert asked == [(256, 9)]


def test_an_arena_has_its_blocks_again_where_a_snapshot_had_them(make_pool):
    with make_pool(chunks=8) as pool:
        arena, other = pool.arena_open(), pool.arena_open()
        sizes = [pool.chunk, 100, 3 * pool.chunk - 300, 5000]
        blocks = [pool.arena_allocate(arena, size) for size in sizes]
        pool.arena_allocate(other, 100)
        plain = pool.allocate(pool.chunk)
        before = pool.snapshot()
        for block in blocks:
            pool.free(block)
        assert {b.state for b in pool.snapshot() if b.arena == arena} == {FREE}
        larger = pool.arena_allocate(arena, 4 * pool.chunk)
        pool.free(larger)
        for block in before:
            if block.arena == arena and block.state == IN_USE:
                size = block.requested_bytes
                pool.arena_allocate_at(arena, block.address, size, block.stream)
                pool.verify()
        after = [block for block in pool.snapshot() if block.state == IN_USE]
        assert after == [block for block in before if block.state == IN_USE]
        for at, size in [(blocks[0], 1), (plain, 1), (0, 1), (blocks[0] + 1, 1), (1 << 63, 1)]:
            with pytest.raises(Invalid, match="allowed: where the arena has enough free memory"):
                pool.arena_allocate_at(arena, at, size, 0)
        pool.free(blocks[0])
        for owner, size in [(other, 1), (arena, 0), (arena, 2**64 - 1), (arena, 9 * pool.chunk)]:
            with pytest.raises(Invalid, match="address is"):
                pool.arena_allocate_at(owner, blocks[0], size, 0)
        pool.arena_allocate_at(arena, blocks[0], 1, 0)


def test_an_arena_that_is_not_open_is_refused(make_pool):
    with make_pool() as pool:
        arena = pool.arena_open()
        pool.arena_close(arena)
        for wrong in (0, arena, arena + 1):
            with pytest.raises(Invalid, match=f"arena is {wrong}; allowed: an arena of this pool"):
                pool.arena_allocate(wrong, 100)
            with pytest.raises(Invalid, match=f"arena is {wrong}"):
                pool.arena_close(wrong)
            with pytest.raises(Invalid, match=f"arena is {wrong}"):
                pool.arena_allocate_at(wrong, 0, 100, 0)


def test_counted_memory_has_arenas_too():
    """No address is handed out twice there, so nothing is needed."""
    with NativePool("counted") as pool:
        arena = pool.arena_open()
        block = pool.arena_allocate(arena, 100)
        pool.free(block)
        assert pool.arena_allocate(arena, 100) != block
        with pytest.raises(Invalid, match="address is"):
            pool.arena_allocate_at(arena, block, 100, 0)
        pool.arena_close(arena)
        with pytest.raises(Invalid, match="arena is"):
            pool.arena_allocate(arena, 1)


def capture(pool, fake_cuda, stream):
    """An arena whose stream is being captured."""
    arena = pool.arena_open()
    fake_cuda.capture(stream, 1)
    return arena


def test_a_captured_stream_allocates_frees_and_maps(pool, fake_cuda):
    """No event, no wait, and no call that would break the capture: the stand-in checks that."""
    plain = pool.allocate(CHUNK, A)
    fake_cuda.launch(A, plain, CHUNK)
    pool.free(plain)
    arena = capture(pool, fake_cuda, B)
    blocks = [pool.arena_allocate(arena, CHUNK, B) for _ in range(3)]
    for block in blocks:
        pool.free(block)
    assert pool.arena_allocate(arena, 3 * CHUNK, B) == blocks[0]
    pool.free(pool.allocate(CHUNK, A))
    fake_cuda.capture(B, 0)


def test_an_arena_never_takes_memory_that_another_streams_work_still_uses(pool, fake_cuda):
    """A captured stream cannot wait, so only memory that is idle by now will do."""
    for stream in (A, B):
        pool.free(pool.allocate(100, stream))
    arena = capture(pool, fake_cuda, C)
    blocks = [pool.allocate(CHUNK, A) for _ in range(3)]
    for block in blocks:
        fake_cuda.launch(A, block, CHUNK)
        pool.free(block)
    taken = pool.arena_allocate(arena, CHUNK, C)
    assert taken not in blocks
    assert fake_cuda.unfinished(A) > 0
    # Before it gives up it waits on the host for work that is not captured.
    pool.arena_allocate(arena, 6 * CHUNK, C)
    assert fake_cuda.unfinished(A) == 0
    fake_cuda.capture(C, 0)


def test_a_block_that_others_use_waits_for_the_arena_to_close(pool, fake_cuda):
    """No event could say when a captured stream is done with it."""
    arena = capture(pool, fake_cuda, A)
    block = pool.arena_allocate(arena, CHUNK, A)
    pool.record_stream(block, A)
    pool.free(block)
    assert pool.arena_allocate(arena, CHUNK, A) == block
    pool.record_stream(block, B)
    pool.free(block)
    assert pool.arena_allocate(arena, CHUNK, A) != block
    fake_cuda.capture(A, 0)
    pool.arena_close(arena)
    pool.trim()
    assert pool.allocate(CHUNK, B) == block


def test_an_arena_may_close_while_a_stream_is_captured(pool, fake_cuda):
    """Its memory is settled when the capture is over; until then nothing waits for the device."""
    arena = capture(pool, fake_cuda, A)
    block = pool.arena_allocate(arena, 5 * CHUNK, A)
    pool.free(block)
    pool.arena_close(arena)
    pool.trim()
    with pytest.raises(OutOfMemory, match="kept for graphs"):
        pool.allocate(4 * CHUNK, B)
    with pytest.raises(WrongState, match="being captured into a graph"):
        pool.destroy()
    fake_cuda.capture(A, 0)
    fake_cuda.launch(A, block, CHUNK)  # the graph's last replay
    taken = pool.allocate(8 * CHUNK, B)
    fake_cuda.launch(B, taken, CHUNK)


def test_what_a_captured_stream_frees_outside_of_the_arena_is_kept_too(pool, fake_cuda):
    pool.free(pool.allocate(100, B))
    own, lent = pool.allocate(2 * CHUNK, A), pool.allocate(2 * CHUNK, B)
    pool.record_stream(lent, A)
    fake_cuda.capture(A, 1)
    pool.free(own)
    pool.free(lent)
    for _ in range(3):
        assert pool.allocate(CHUNK, B) not in (own, lent)
    fake_cuda.capture(A, 0)
    pool.allocate(4 * CHUNK, B)


def test_a_stream_that_is_captured_may_be_the_second_one(pool, fake_cuda):
    """It cannot wait for the first one's work on the device, so the host does."""
    block = pool.allocate(8 * CHUNK, A)
    fake_cuda.launch(A, block, 8 * CHUNK)
    pool.free(block)
    fake_cuda.capture(B, 1)
    pool.allocate(8 * CHUNK, B)
    assert fake_cuda.unfinished(A) == 0
    fake_cuda.capture(B, 0)


def test_the_only_stream_cannot_be_captured_before_an_arena_is_opened(pool, fake_cuda):
    """What it freed without an event would have to be waited for."""
    pool.free(pool.allocate(CHUNK, A))
    fake_cuda.capture(A, 1)
    with pytest.raises(WrongState, match=f"stream {A} is being captured"):
        pool.arena_open()
    fake_cuda.capture(A, 0)
    pool.arena_close(pool.arena_open())


def test_no_timer_runs_on_a_captured_stream(pool, fake_cuda):
    """Its events would be a part of the graph."""
    fake_cuda.capture(A, 1)
    assert pool.time_begin(A) == 0
    fake_cuda.capture(A, 0)
