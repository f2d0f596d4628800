"""Memory of a device that cannot map. Needs the native build and g++; the stand-in for libcuda."""

from contextlib import suppress

import pytest
from native_pool import KIB, MIB, DriverFailed, Invalid, NativePool, OutOfMemory

SEGMENT = 4 * MIB
A, B = 16, 32


def make(budget, **options):
    return NativePool("cuda-segments", budget=budget, chunk=SEGMENT, **options)


def test_a_large_request_has_a_segment_of_its_own_size(fake_cuda):
    """Rounded up to 2 MiB; smaller ones share a segment of the least size."""
    with make(64 * MIB) as pool:
        pool.allocate(9 * MIB)
        assert fake_cuda.physical_bytes() == 10 * MIB
        for _ in range(4):
            pool.allocate(MIB)
        assert fake_cuda.physical_bytes() == pool.stats().reserved_bytes == 14 * MIB


def test_small_requests_have_segments_of_their_own(fake_cuda):
    """So that the others' segments can be given back."""
    with make(64 * MIB) as pool:
        small, large = pool.allocate(64), pool.allocate(MIB)
        assert pool.stats().reserved_bytes == 2 * SEGMENT
        pool.free(large)
        assert pool.trim() == SEGMENT
        assert pool.block_start(small + 10) == small


def test_an_empty_segment_goes_back_when_another_is_needed(fake_cuda):
    """Before anybody is asked for room."""
    with make(16 * MIB) as pool:
        for block in [pool.allocate(3 * MIB) for _ in range(4)]:
            pool.free(block)
        asked = []
        pool.set_room(lambda size, stream: bool(asked.append(size)))
        pool.allocate(16 * MIB)
        assert asked == []


def test_the_rest_of_the_budget_is_a_smaller_segment(fake_cuda):
    """The whole budget can be used."""
    with make(6 * MIB) as pool:
        pool.allocate(3 * MIB)
        pool.allocate(2 * MIB)
        assert pool.stats().reserved_bytes == 6 * MIB
        with pytest.raises(OutOfMemory, match="in 2 segments"):
            pool.allocate(MIB + 4 * KIB)


def test_holes_in_several_segments_do_not_make_one(fake_cuda):
    """What is there to evict is asked for; a request that fits nowhere fails."""
    with make(16 * MIB) as pool:
        blocks = [pool.allocate(2 * MIB) for _ in range(8)]
        for block in blocks[::2]:
            pool.free(block)
        with pytest.raises(OutOfMemory, match=r"largest free 2\.0 MiB"):
            pool.allocate(4 * MIB)
        pool.set_room(lambda size, stream: pool.free(blocks.pop()) is None)
        pool.allocate(4 * MIB)


def test_a_full_card_gets_the_smallest_segment_that_will_do(fake_cuda):
    """Others use the card: less than the least size is better than nothing."""
    fake_cuda.set_memory(10 * MIB)
    with make(64 * MIB) as pool:
        blocks = [pool.allocate(3 * MIB) for _ in range(2)]
        pool.allocate(MIB)
        pool.allocate(MIB + 4 * KIB)
        assert pool.stats().reserved_bytes == 10 * MIB
        with pytest.raises(OutOfMemory, match="the driver refused memory within the budget"):
            pool.allocate(3 * MIB)
        pool.set_room(lambda size, stream: bool(blocks) and pool.free(blocks.pop()) is None)
        pool.allocate(3 * MIB)


def test_an_address_says_which_pool_it_is_of(fake_cuda):
    """Though the segments of two pools may lie between one another."""
    with make(64 * MIB) as pool, make(64 * MIB) as other:
        for _ in range(4):
            mine, theirs = pool.allocate(3 * MIB), other.allocate(3 * MIB)
            assert pool.contains(mine + 3 * MIB - 1)
            assert not pool.contains(theirs)
            with pytest.raises(Invalid, match="not in this pool"):
                pool.free(theirs)


def test_a_segment_does_not_go_back_under_unfinished_work(fake_cuda):
    """Nor one that an open arena has memory in: the stand-in checks the first."""
    fake_cuda.hold(1)
    with make(16 * MIB) as pool:
        block = pool.allocate(3 * MIB, A)
        fake_cuda.launch(A, block, 100)
        arena = pool.arena_open()
        kept = pool.arena_allocate(arena, 7 * MIB, B)
        pool.free(block)
        pool.free(kept)
        assert pool.trim() == SEGMENT
        pool.arena_close(arena)
        assert pool.trim() == 8 * MIB
        fake_cuda.hold(0)


def test_a_segment_that_cannot_go_back_serves_arenas_again(fake_cuda):
    """Found by the model: a refused cuMemFree left the segment with an arena closed inside."""
    with make(32 * MIB) as pool:
        block, arena = pool.allocate(MIB), pool.arena_open()
        kept = pool.arena_allocate(arena, SEGMENT)
        pool.free(block)
        for n in range(1, 12):
            fake_cuda.fail_call(n, 999)
            with suppress(DriverFailed):
                pool.trim()
            fake_cuda.fail_call(0, 0)
            pool.free(pool.arena_allocate(arena, MIB))
            pool.verify()
        pool.free(kept)
        pool.arena_close(arena)


def test_an_arena_spans_segments_while_its_stream_is_captured(fake_cuda):
    """New segments come during the capture; what is freed stays the arena's."""
    with make(32 * MIB) as pool:
        pool.free(pool.allocate(MIB, A))
        arena = pool.arena_open()
        fake_cuda.capture(B, 1)
        blocks = [pool.arena_allocate(arena, 3 * MIB, B) for _ in range(3)]
        for block in blocks:
            pool.free(block)
        taken = [pool.allocate(3 * MIB, A) for _ in range(2)]
        assert not set(taken) & set(blocks)
        assert {pool.arena_allocate(arena, 3 * MIB, B) for _ in range(3)} == set(blocks)
        fake_cuda.capture(B, 0)
