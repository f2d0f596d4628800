"""What every driver's pool promises. Needs the native build; CUDA is the stand-in."""

import random
from functools import partial
from itertools import pairwise

import pytest
from native_fixtures import DRIVERS, on_threads
from native_pool import (
    FREE,
    IN_USE,
    KIB,
    MIB,
    NO_LIMIT,
    Invalid,
    NativePool,
    OutOfMemory,
    WrongState,
    check,
    ffi,
    lib,
)

of_every_kind = pytest.mark.parametrize("driver", [*DRIVERS, "counted", "guarded"], indirect=True)
"""Also pools without chunks."""


def test_a_block_is_aligned_and_at_least_as_large_as_asked_for(make_pool, driver):
    alignment = 256 if driver == "cuda" else 64
    with make_pool() as pool:
        for size in (1, 63, 64, 65, 511, 2048, 2049, 4097, 70_000, MIB + 1):
            address = pool.allocate(size)
            assert address % alignment == 0
            assert pool.block_bytes(address) >= size
            assert pool.contains(address)
            assert pool.contains(address + size - 1)


def test_nothing_is_allocated_for_zero_bytes(pool):
    assert pool.allocate(0) == 0
    out = ffi.new("void **")
    check(lib.dtr_pool_try_allocate(pool.handle, 0, 0, out))
    assert out[0] == ffi.NULL
    assert pool.try_outside(0) == 0
    assert pool.try_at(0, pool.snapshot()[0].address) == (0, [], 0)
    pool.free(0)
    assert pool.stats().live_blocks == 0


def test_fragmentation_costs_remapping_and_not_failure(pool, maps_chunks):
    blocks = [pool.allocate(pool.chunk) for _ in range(8)]
    for block in blocks[::2]:
        pool.free(block)
    assert pool.stats().largest_free_bytes == pool.chunk
    assert lib.dtr_pool_lacking_chunks(pool.handle, 4 * pool.chunk) == 0
    assert lib.dtr_pool_lacking_chunks(pool.handle, 5 * pool.chunk) == 1
    large = pool.allocate(4 * pool.chunk)
    assert large > blocks[-1]
    stats = pool.stats()
    assert stats.remaps == 1
    assert stats.unmapped_chunks == 4
    assert stats.reserved_bytes == stats.budget_bytes


def test_chunks_that_a_block_touches_lack_for_a_remap(pool, maps_chunks):
    for block in [pool.allocate(pool.chunk // 2) for _ in range(16)][::2]:
        pool.free(block)
    assert lib.dtr_pool_lacking_chunks(pool.handle, 2 * pool.chunk) == 2
    with pytest.raises(OutOfMemory):
        pool.allocate(2 * pool.chunk)


def test_largest_free_is_what_can_be_allocated_without_remapping(make_pool):
    with make_pool(chunks=16) as pool:
        blocks = [pool.allocate(pool.chunk + 4 * KIB) for _ in range(8)]
        for block in blocks[1:4]:
            pool.free(block)
        largest = pool.stats().largest_free_bytes
        assert largest > pool.chunk
        pool.allocate(largest)
        assert pool.stats().remaps == 0


def test_out_of_memory_says_what_there_is(pool):
    pool.allocate(5 * pool.chunk, 3)
    with pytest.raises(OutOfMemory) as failure:
        pool.allocate(4 * pool.chunk, 3)
    message = str(failure.value)
    assert f"({4 * pool.chunk} bytes) on stream 3" in message
    for part in ("budget", "allocated", "mapped", "largest free"):
        assert part in message
    assert f"({8 * pool.chunk} bytes)" in message
    assert pool.stats().out_of_memory_errors == 1


@of_every_kind
def test_a_request_above_the_budget_does_not_ask_for_room(pool):
    asked = []
    pool.set_room(lambda size, stream: asked.append(size))
    with pytest.raises(OutOfMemory, match="larger than the budget"):
        pool.allocate(9 * pool.chunk)
    with pytest.raises(OutOfMemory):
        pool.allocate(NO_LIMIT)
    assert asked == []


@of_every_kind
def test_the_room_callback_is_asked_until_the_request_fits(pool):
    blocks = [pool.allocate(pool.chunk) for _ in range(8)]
    asked = []

    def room(size, stream):
        asked.append((size, stream))
        pool.free(blocks.pop())
        return True

    pool.set_room(room)
    pool.allocate(3 * pool.chunk, 5)
    assert asked == [(3 * pool.chunk, 5)] * 3


def test_a_room_callback_that_gives_nothing_ends_the_search(make_pool):
    asked = []
    with make_pool(chunks=4) as pool:
        pool.allocate(4 * pool.chunk)
        for answer in (False, True):
            pool.set_room(lambda size, stream, answer=answer: asked.append(size) or answer)
            with pytest.raises(OutOfMemory):
                pool.allocate(pool.chunk)
        assert 2 <= len(asked) < 100


def test_a_small_request_that_needs_a_slab_asks_for_a_chunk(make_pool, has_slabs):
    """What is missing is a chunk for the slab, so that is what the callback is asked for."""
    with make_pool(chunks=4) as pool:
        blocks = [pool.allocate(2 * pool.chunk) for _ in range(2)]
        asked = []
        pool.set_room(lambda size, stream: asked.append(size) or (pool.free(blocks.pop()) or True))
        assert pool.allocate(100) != 0
        assert asked == [pool.chunk]


def test_small_requests_do_not_pin_chunks_among_large_blocks(make_pool, maps_chunks):
    """Slabs live at the far end: small blocks that stay leave large holes whole."""
    with make_pool(chunks=16) as pool:
        large, small = [], []
        for _ in range(12):
            large.append(pool.allocate(pool.chunk))
            small.append(pool.allocate(64))
        for block in large:
            pool.free(block)
        assert min(small) > max(large)
        assert pool.allocate(15 * pool.chunk) == large[0]


def test_interior_pointers_find_their_block_which_is_freed_by_its_start(pool):
    for size in (100, 1500, 5000, 3 * pool.chunk):
        address = pool.allocate(size)
        assert pool.block_start(address) == address
        assert pool.block_start(address + size - 1) == address
        assert pool.block_bytes(address + 64) == 0
        with pytest.raises(Invalid, match=f"inside the block that starts at {address:#x}"):
            pool.free(address + 64)
        pool.free(address)
        assert pool.block_start(address) == 0
        assert pool.block_bytes(address) == 0
    assert pool.block_start(1) == 0
    assert not pool.contains(1)
    with pytest.raises(Invalid, match="record_stream: address"):
        pool.record_stream(4096, 1)


@of_every_kind
def test_what_is_freed_twice_or_of_another_pool_is_named(pool, make_pool):
    with make_pool() as other:
        for size in (100, 5000):
            block, stranger = pool.allocate(size), other.allocate(size)
            pool.free(block)
            with pytest.raises(Invalid, match="freed twice"):
                pool.free(block)
            with pytest.raises(Invalid, match="not in this pool"):
                pool.free(stranger)


@of_every_kind
def test_lowering_the_budget_asks_for_room_and_else_changes_nothing(pool):
    blocks = [pool.allocate(pool.chunk) for _ in range(8)]
    with pytest.raises(OutOfMemory, match="cannot be lowered"):
        pool.set_budget(2 * pool.chunk)
    assert pool.stats().budget_bytes == 8 * pool.chunk
    pool.set_room(lambda size, stream: pool.free(blocks.pop()) is None)
    pool.set_budget(2 * pool.chunk)
    assert len(blocks) == 2
    assert pool.stats().reserved_bytes == 2 * pool.chunk


def test_trim_returns_every_chunk_that_is_free(make_pool):
    with make_pool(chunks=16) as pool:
        kept = pool.allocate(pool.chunk)
        small = pool.allocate(64)
        for block in [pool.allocate(pool.chunk) for _ in range(6)]:
            pool.free(block)
        pool.free(small)
        assert pool.trim() == 7 * pool.chunk
        assert pool.trim() == 0
        assert pool.stats().reserved_bytes == pool.chunk
        pool.free(kept)


def test_statistics_count_what_happened(make_pool):
    with make_pool(chunks=16) as pool:
        address = pool.allocate(5000, 2)
        small = pool.allocate(70)
        stats = pool.stats()
        assert stats.requested_bytes == 5070
        assert stats.allocated_bytes == pool.block_bytes(address) + pool.block_bytes(small)
        assert (stats.live_blocks, stats.allocations, stats.frees) == (2, 2, 0)
        peak = stats.allocated_bytes
        pool.free(address)
        pool.free(small)
        stats = pool.stats()
        assert (stats.allocated_bytes, stats.requested_bytes, stats.live_blocks) == (0, 0, 0)
        assert stats.peak_allocated_bytes == peak
        pool.trim()
        assert pool.stats().peak_reserved_bytes == (1 if pool.is_fixed else 2) * pool.chunk
        pool.reset_peak()
        stats = pool.stats()
        assert (stats.peak_allocated_bytes, stats.peak_reserved_bytes) == (0, 0)


def test_peaks_say_how_much_was_mapped_for_nothing(make_pool):
    with make_pool(chunks=16) as pool:
        blocks = [pool.allocate(pool.chunk) for _ in range(4)]
        assert pool.stats().peak_unused_bytes == 0
        for block in blocks[:3]:
            pool.free(block)
        stats = pool.stats()
        assert (stats.peak_live_blocks, stats.peak_unused_bytes) == (4, 3 * pool.chunk)
        pool.trim()
        assert pool.stats().peak_unused_bytes == 3 * pool.chunk
        pool.reset_peak()
        stats = pool.stats()
        assert (stats.peak_live_blocks, stats.peak_unused_bytes) == (1, 0)


def test_a_snapshot_tiles_what_has_memory(pool):
    """Blocks follow one another, with what was asked for and by which stream. A gap is of whole
    chunks, where there is no memory.
    """
    large = pool.allocate(5000, 4)
    small = pool.allocate(70, 4)
    gap = pool.allocate(9000)
    pool.allocate(3000)
    pool.free(gap)
    blocks = pool.snapshot()
    for block, following in pairwise(blocks):
        end = block.address + block.size_bytes
        if end != following.address:
            assert (end - blocks[0].address) % pool.chunk == 0
            assert (following.address - end) % pool.chunk == 0
    found = {block.address: block for block in blocks}
    assert found[large].requested_bytes == 5000
    assert (found[large].state, found[large].stream, found[large].is_small) == (IN_USE, 4, 0)
    assert found[small].requested_bytes == 70
    assert (found[small].state, found[small].is_small) == (IN_USE, 0 if pool.is_fixed else 1)
    assert found[gap].state == FREE
    assert found[gap].requested_bytes == 0
    assert sum(block.state == IN_USE for block in blocks) == 3


@of_every_kind
def test_a_pool_with_blocks_in_use_is_not_destroyed(pool):
    address = pool.allocate(5000)
    with pytest.raises(WrongState, match="1 blocks in use"):
        pool.destroy()
    assert pool.block_start(address) == address


def test_no_limit_means_the_reservation(driver, maps_chunks):
    with NativePool(driver, budget=NO_LIMIT, reserve=64 * MIB) as pool:
        assert pool.stats().budget_bytes == NO_LIMIT
        pool.allocate(40 * MIB)
        with pytest.raises(OutOfMemory, match=r"address range|largest free"):
            pool.allocate(40 * MIB)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"budget": 0}, "budget_bytes is 0;"), ({"budget": 100}, "budget_bytes is 100;")),
        ({"chunk": 1000}, "chunk_bytes is 1000;"),
        *(({"reserve": 5}, "reserve_bytes is 5;"), ({"small": 100}, "small_bytes is 100;")),
        *(({"small": 1 << 40}, "small_bytes is 1099511627776;"), ({"device": -1}, "device is -1;")),
        *(({"device": 7}, "device is 7;"), ({"fixed": 2}, "fixed is 2;")),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(driver, options, message):
    with pytest.raises(Invalid, match=f"{message}.*allowed"):
        NativePool(driver, **options)


def test_an_unknown_driver_is_named():
    with pytest.raises(Invalid, match="driver is 'opencl'; allowed: 'host', 'cuda', 'simulated'"):
        NativePool("opencl")
    out = ffi.new("dtr_pool **")
    with pytest.raises(Invalid, match="options is NULL"):
        check(lib.dtr_pool_create(ffi.NULL, out))
    assert out[0] == ffi.NULL


def test_threads_may_share_a_pool(make_pool):
    with make_pool(chunks=256) as pool:

        def work(seed):
            generator = random.Random(seed)
            out = ffi.new("void **")
            mine = []
            for _ in range(2000):
                if generator.random() < 0.5 or not mine:
                    size = int(2 ** generator.uniform(4, 15))
                    check(lib.dtr_pool_allocate(pool.handle, size, 0, out))
                    mine.append(out[0])
                    if pool.has_memory:
                        ffi.cast("uint8_t *", out[0])[0] = seed
                else:
                    address = mine.pop(generator.randrange(len(mine)))
                    if pool.has_memory:
                        assert ffi.cast("uint8_t *", address)[0] == seed, "handed out twice"
                    check(lib.dtr_pool_free(pool.handle, address))
            for address in mine:
                check(lib.dtr_pool_free(pool.handle, address))

        on_threads(*[partial(work, seed) for seed in range(1, 5)])
        assert pool.stats().live_blocks == 0
