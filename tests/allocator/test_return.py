"""When memory goes back to the driver by itself. Needs the native build; CUDA is the stand-in."""

import pytest
from native_pool import MIB, NativePool

CHUNK = 2 * MIB
A, B = 16, 32


@pytest.mark.parametrize("keep", [0, 1 << 30, 2**64 - 1])
def test_memory_below_the_limit_stays_mapped(make_pool, keep):
    with make_pool(chunks=64, keep=keep) as pool:
        mapped = set()
        for _ in range(50):
            for block in [pool.allocate(5 * pool.chunk) for _ in range(4)]:
                pool.free(block)
            mapped.add(pool.stats().mapped_chunks)
        assert len(mapped) == 1
        assert pool.stats().unmapped_chunks == 0
        assert pool.trim() == 20 * pool.chunk


def test_memory_above_the_limit_goes_back_in_batches(make_pool, chunk):
    """Down to the limit, as soon as it is above by a quarter of it."""
    with make_pool(chunks=64, keep=8 * chunk) as pool:
        blocks = [pool.allocate(chunk) for _ in range(20)]
        idle = []
        for still in reversed(range(20)):
            pool.free(blocks.pop())
            idle.append(pool.stats().reserved_bytes // chunk - still)
        assert idle[:9] == list(range(1, 10))
        assert {8} <= set(idle[9:]) <= {8, 9}
        pool.verify()


def test_no_free_waits_for_the_device(fake_cuda):
    fake_cuda.hold(1)
    with NativePool("cuda", budget=8 * CHUNK, keep=1) as pool:
        block = pool.allocate(4 * CHUNK, A)
        fake_cuda.launch(A, block, CHUNK)
        pool.free(block)
        assert pool.stats().reserved_bytes == 4 * CHUNK
        fake_cuda.finish(A)
        other = pool.allocate(6 * CHUNK, A)
        pool.free(other)
        fake_cuda.finish(A)
        pool.free(pool.allocate(100, A))
        assert pool.stats().reserved_bytes == CHUNK
        assert pool.stats().host_waits == 0
        fake_cuda.hold(0)
