"""A place outside of a range, and copies between blocks (allocator/pool_move.cpp)."""

from random import Random

import pytest
from native_pool import KIB, MIB, Invalid, NativePool, WrongState, check, ffi, fill, lib, read

CHUNK = 64 * KIB
A, B = 16, 32


def address_order(pool):
    return [(block.address, block.size_bytes, block.state) for block in pool.snapshot()]


def test_the_room_callback_is_not_asked_and_nothing_changes(make_pool, chunk):
    with make_pool(4, reserve=0) as pool:
        asked = []
        pool.set_room(lambda size, stream: asked.append(size))
        blocks = [pool.allocate(chunk) for _ in range(4)]
        pool.free(blocks[1])
        before = address_order(pool)
        assert pool.try_outside(2 * chunk) == 0
        assert pool.try_outside(chunk, blocks[1], blocks[1] + chunk) == 0
        assert address_order(pool) == before
        assert asked == []
        pool.set_room(None)


def test_a_packed_place_costs_no_chunk():
    """It lies at either end of a hole, in chunks that other blocks touch."""
    with NativePool("simulated", budget=8 * CHUNK, chunk=CHUNK) as pool:
        assert pool.try_outside(CHUNK // 2, packed=True) == 0, "nothing is touched yet"
        low = pool.allocate(CHUNK + CHUNK // 2)
        middle = pool.allocate(2 * CHUNK)
        high = pool.allocate(CHUNK // 2)
        pool.free(middle)
        before = pool.stats().reserved_bytes
        places = [pool.try_outside(CHUNK // 2, packed=True) for _ in range(3)]
        # Behind the first block, before the last one, and none in the chunk between them.
        assert places == [low + CHUNK + CHUNK // 2, high - CHUNK // 2, 0]
        pool.free(places[1])
        assert pool.try_outside(CHUNK // 2, places[1], high, packed=True) == 0
        assert pool.stats().reserved_bytes == before
        pool.verify()


def test_small_requests_and_counted_pools_have_none():
    with NativePool("host") as pool:
        assert pool.try_outside(100) == 0
        assert pool.try_outside(0) == 0
    with NativePool("counted") as pool:
        assert pool.try_outside(MIB) == 0


def test_a_copy_has_the_bytes(pool, chunk):
    source, to = pool.allocate(chunk), pool.allocate(chunk)
    if pool.has_memory:
        fill(source, chunk, 7)
        fill(to, chunk, 1)
    pool.copy(to, source, chunk)
    pool.synchronize(0)
    if pool.has_memory:
        assert read(to, chunk) == {7}
    with pytest.raises(Invalid, match="copy: address"):
        pool.copy(to, 4096, chunk)


def test_a_copy_of_what_another_stream_uses_comes_behind_it_and_is_timed(fake_cuda):
    with NativePool("cuda", budget=16 * MIB) as pool:
        for stream in (A, B):
            pool.free(pool.allocate(MIB, stream))
        source, to = pool.allocate(2 * MIB, A), pool.allocate(2 * MIB, A)
        fake_cuda.hold(1)
        fake_cuda.launch(B, source, 2 * MIB)
        pool.record_stream(source, B)
        timer = pool.copy(to, source, 2 * MIB, A)
        assert timer != 0
        assert pool.times() == {}
        fake_cuda.hold(0)
        assert list(pool.times()) == [timer]
        assert pool.stats().host_waits == 0


def test_on_a_captured_stream_nothing_is_copied(fake_cuda):
    with NativePool("cuda", budget=16 * MIB) as pool:
        pool.free(pool.allocate(MIB, B))
        source, to = pool.allocate(2 * MIB, A), pool.allocate(2 * MIB, A)
        fake_cuda.capture(A, 1)
        with pytest.raises(WrongState, match="captured"):
            pool.copy(to, source, 2 * MIB, A)
        fake_cuda.capture(A, 0)


def openings(pool, capacity=32):
    """What became free since the last call; None: more than there is room for."""
    found, count = ffi.new("dtr_opening[]", capacity), ffi.new("uint64_t *")
    check(lib.dtr_pool_take_openings(pool.handle, found, capacity, count))
    if count[0] > capacity:
        return None
    return [(hole.begin, hole.end) for hole in found[0 : count[0]]]


def test_free_bytes_grow_only_beside_what_is_said_to_be_open(make_pool, chunk):
    random = Random(0)
    sizes = [chunk // 4, chunk // 2, chunk, 2 * chunk]
    blocks, free = [], {}
    with make_pool(32) as pool:
        assert openings(pool) is None
        for _ in range(300):
            for _ in range(random.randrange(1, 6)):
                if len(blocks) < 12:
                    blocks.append(pool.allocate(random.choice(sizes)))
                else:
                    address = blocks.pop(random.randrange(len(blocks)))
                    free.pop(address, None)
                    pool.free(address)
            found = openings(pool)
            for block in blocks:
                beside = lib.dtr_pool_free_beside(pool.handle, ffi.cast("void *", block))
                end = block + pool.block_bytes(block)
                is_near = any(begin <= end and block <= last for begin, last in found)
                assert is_near or beside <= free.get(block, beside)
                free[block] = beside


def test_more_openings_than_there_is_room_for_are_not_told(pool, chunk):
    openings(pool)
    for block in [pool.allocate(chunk) for _ in range(4)]:
        pool.free(block)
    assert openings(pool, 3) is None
    assert openings(pool, 3) == []
