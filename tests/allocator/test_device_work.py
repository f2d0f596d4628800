"""Order, timers and copies: what a pool queues on its device. Needs the native build and g++."""

import pytest
from native_fixtures import UNKNOWN, held_pool
from native_pool import KIB, MIB, Invalid, NativePool, WrongState, fill, read

CHUNK = 2 * MIB
A, B = 16, 32


pool = pytest.fixture(held_pool)


def test_work_behind_another_stream_starts_after_it(pool, fake_cuda):
    address = pool.allocate(CHUNK, A)
    fake_cuda.launch(A, address, CHUNK)
    pool.order(B, A)
    fake_cuda.launch(B, address, CHUNK)
    fake_cuda.launch(A, pool.allocate(CHUNK, A), CHUNK)
    fake_cuda.finish(B)
    assert fake_cuda.unfinished(B) == 2
    fake_cuda.step(A)
    fake_cuda.step(A)
    fake_cuda.finish(B)
    assert fake_cuda.unfinished(B) == 0
    assert fake_cuda.unfinished(A) == 1
    assert pool.stats().host_waits == 0


def test_a_timer_says_how_long_the_device_took(pool, fake_cuda):
    fake_cuda.set_work_ns(7000)
    address = pool.allocate(CHUNK, A)
    timer = pool.time_begin(A)
    for _ in range(3):
        fake_cuda.launch(A, address, CHUNK)
    pool.time_end(timer)
    assert pool.times() == {}
    fake_cuda.finish(A)
    assert pool.times() == {timer: pytest.approx(21000, abs=2)}
    assert pool.times() == {}
    assert pool.stats().host_waits == 0


def test_timers_of_streams_do_not_wait_for_one_another(pool, fake_cuda):
    timers = [pool.time_begin(stream) for stream in (A, B, A)]
    for timer in timers:
        pool.time_end(timer)
    fake_cuda.finish(B)
    assert list(pool.times()) == [timers[1]]
    fake_cuda.finish(A)
    assert list(pool.times(1)) == [timers[0]]
    assert list(pool.times(1)) == [timers[2]]


def test_a_dropped_timer_is_never_read(pool, fake_cuda):
    dropped = pool.time_begin(A)
    pool.time_drop(dropped)
    with pytest.raises(Invalid, match=f"timer is {dropped}; allowed: 0, or one that was begun"):
        pool.time_end(dropped)
    timer = pool.time_begin(A)
    pool.time_end(timer)
    fake_cuda.finish(A)
    assert list(pool.times()) == [timer]


def test_open_timers_are_limited(pool, fake_cuda):
    timers = []
    while timer := pool.time_begin(A):
        timers.append(timer)
        pool.time_end(timer)
    assert 100 < len(timers) < 1000
    pool.time_end(0)
    pool.time_drop(0)
    fake_cuda.finish(A)
    assert list(pool.times()) == timers
    assert pool.time_begin(A) != 0


def test_contents_go_to_the_host_and_come_back(make_pool):
    size = 300 * KIB
    with make_pool() as pool:
        block, other = pool.allocate(size), pool.allocate(size)
        host = pool.host_allocate(size)
        if pool.has_memory:
            fill(block, size, 77)
        pool.copy_out(host, block, size)
        pool.copy_in(other, host, size)
        pool.synchronize(0)
        if pool.has_memory:
            assert read(other, size) == {77}
        pool.host_free(host)
        pool.host_free(0)


def test_what_is_outside_of_the_pools_memory_is_not_copied(make_pool):
    with make_pool() as pool:
        block, host = pool.allocate(64 * KIB), pool.host_allocate(64 * KIB)
        with pytest.raises(Invalid, match=r"host is .* allowed: a range in host memory"):
            pool.copy_out(host + 1, block, 64 * KIB)
        with pytest.raises(Invalid, match=r"copy_in: address 0x1000 .* not in this pool"):
            pool.copy_in(4096, host, 64 * KIB)
        with pytest.raises(Invalid, match=r"host is .* allowed: the start of host memory"):
            pool.host_free(host + 64)
        with pytest.raises(Invalid, match="size_bytes is 0"):
            pool.host_allocate(0)
        large = pool.host_allocate(MIB)  # the addresses behind a block may have no memory
        for call, to, source in (
            *((pool.copy_out, large, block), (pool.copy_in, block, large)),
            (pool.copy, block, block),
        ):
            with pytest.raises(Invalid, match="a range in a block in use"):
                call(to, source, MIB)
        pool.host_free(large)
        pool.host_free(host)


def test_host_memory_in_use_keeps_the_pool(make_pool):
    with make_pool() as pool:
        host = pool.host_allocate(64 * KIB)
        with pytest.raises(WrongState, match=r"1 blocks of host memory in use, 64\.0 KiB"):
            pool.destroy()
        pool.host_free(host)


@pytest.mark.parametrize("n", [1, 2])
def test_host_memory_that_the_driver_will_not_take_back_is_offered_again(pool, fake_cuda, n):
    """Its user is rid of it either way: nothing of it is left when the pool is gone."""
    refused, other = pool.host_allocate(64 * KIB), pool.host_allocate(32 * KIB)
    fake_cuda.fail_call(n, UNKNOWN)
    pool.host_free(refused)
    with pytest.raises(Invalid, match=r"host is .* allowed: the start of host memory"):
        pool.host_free(refused)
    fake_cuda.fail_call(n, UNKNOWN)
    pool.host_free(other)


def test_copies_run_on_the_side_stream_beside_the_job(pool, fake_cuda):
    side = pool.side_stream()
    assert side != 0
    assert pool.side_stream() == side
    block, host = pool.allocate(CHUNK, A), pool.host_allocate(CHUNK)
    fill(block, CHUNK, 5)
    fake_cuda.launch(A, block, CHUNK)
    pool.order(side, A)
    pool.copy_out(host, block, CHUNK, side)
    fake_cuda.launch(A, pool.allocate(CHUNK, A), CHUNK)
    assert read(host, CHUNK) == {0}
    pool.synchronize(side)
    assert read(host, CHUNK) == {5}
    stats = pool.stats()
    assert stats.host_waits == 1
    assert stats.host_wait_ns > 0
    pool.host_free(host)


def test_without_streams_there_is_nothing_to_order_or_to_time():
    for driver in ("host", "simulated", "counted"):
        with NativePool(driver) as pool:
            assert pool.side_stream() == 0
            assert pool.time_begin(3) == 0
            pool.time_end(0)
            pool.order(1, 2)
            pool.synchronize(1)
            assert pool.times() == {}
            host = pool.host_allocate(100)
            block = pool.allocate(100)
            pool.copy_out(host, block, 100)
            pool.copy_in(block, host, 100)
            pool.host_free(host)
            assert pool.stats().host_waits == 0
