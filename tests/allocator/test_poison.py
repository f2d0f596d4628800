"""Freed blocks filled with 0xFF. Needs the native build; CUDA is the stand-in."""

import pytest
from native_pool import MIB, Invalid, NativePool, fill, read

CHUNK = 2 * MIB
A, B = 16, 32


@pytest.mark.parametrize("size", [100, 5000, 3 * MIB])
@pytest.mark.parametrize("where", ["host", "cuda"])
def test_a_freed_block_reads_as_not_a_number(where, size, fake_cuda):
    with NativePool(where, budget=64 * MIB, poison=1) as pool:
        kept = pool.allocate(size)
        block = pool.allocate(size)
        fill(block, size, 7)
        fill(kept, size, 8)
        pool.free(block)
        assert pool.allocate(size) == block
        assert read(block, size) == {0xFF}
        assert read(kept, size) == {8}


def test_the_fill_waits_for_the_work_that_uses_the_block(fake_cuda):
    fake_cuda.hold(1)
    with NativePool("cuda", budget=8 * CHUNK, poison=1) as pool:
        block = pool.allocate(CHUNK, A)
        fill(block, CHUNK, 7)
        fake_cuda.launch(A, block, CHUNK)
        pool.order(B, A)
        fake_cuda.launch(B, block, CHUNK)
        pool.record_stream(block, B)
        pool.free(block)
        fake_cuda.finish(A)
        assert read(block, CHUNK) == {7}
        assert pool.allocate(CHUNK, A) == block
        fake_cuda.launch(A, block, CHUNK)
        fake_cuda.finish(B)
        fake_cuda.finish(A)
        assert read(block, CHUNK) == {0xFF}
        fake_cuda.hold(0)


def test_arenas_are_not_filled(fake_cuda):
    """A fill on a captured stream would be a part of the graph."""
    with NativePool("cuda", budget=8 * CHUNK, poison=1) as pool:
        arena = pool.arena_open()
        block, plain = pool.arena_allocate(arena, CHUNK, A), pool.allocate(CHUNK, A)
        for at in (block, plain):
            fill(at, CHUNK, 7)
        fake_cuda.capture(A, 1)
        pool.free(block)
        pool.free(plain)
        fake_cuda.capture(A, 0)
        assert read(block, CHUNK) == read(plain, CHUNK) == {7}


def test_poison_needs_contents():
    with pytest.raises(Invalid, match="poison is 1; allowed: 0, as driver 'simulated' has no"):
        NativePool("simulated", poison=1)
    with pytest.raises(Invalid, match="poison is 2; allowed: 0, or 1"):
        NativePool("host", poison=2)
