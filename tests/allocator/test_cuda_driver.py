"""The CUDA driver on the stand-in for libcuda. Needs the native build and g++, no GPU."""

import pytest
from native_fixtures import OUT_OF_MEMORY, UNKNOWN, compile_cpp
from native_pool import (
    MIB,
    DriverFailed,
    Invalid,
    NativePool,
    OutOfMemory,
    WrongState,
    check,
    ffi,
    lib,
)

CHUNK = 2 * MIB


def test_a_missing_libcuda_is_a_clear_error():
    name = ffi.new("char[]", b"/nowhere/libcuda.so.1")
    with pytest.raises(DriverFailed, match=r"cannot be loaded: /nowhere/libcuda\.so\.1"):
        check(lib.dtr_cuda_probe(name, ffi.NULL))
    check(lib.dtr_cuda_set_library(name))
    try:
        with pytest.raises(DriverFailed, match="cannot be loaded"):
            NativePool("cuda")
    finally:
        check(lib.dtr_cuda_set_library(ffi.NULL))


def test_a_library_without_a_function_is_named(tmp_path):
    source = tmp_path / "old.cpp"
    source.write_text('extern "C" int cuInit(unsigned) { return 0; }\n')
    library = compile_cpp([source], tmp_path / "libold.so", "-shared", "-fPIC")
    name = ffi.new("char[]", str(library).encode())
    with pytest.raises(DriverFailed, match="has no function cuGetErrorName"):
        check(lib.dtr_cuda_probe(name, ffi.NULL))


def test_the_probe_counts_devices(fake_cuda):
    count = ffi.new("int32_t *")
    fake_cuda.set_devices(3)
    check(lib.dtr_cuda_probe(ffi.NULL, count))
    assert count[0] == 3
    fake_cuda.set_devices(0)
    with pytest.raises(DriverFailed, match="has no device"):
        check(lib.dtr_cuda_probe(ffi.NULL, count))


def test_a_device_without_virtual_memory_is_refused(fake_cuda):
    fake_cuda.set_vmm(0)
    expected = (
        "CUDA device 0 has no virtual memory management.*"
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0.*Use another device"
    )
    with pytest.raises(DriverFailed, match=expected):
        NativePool("cuda", budget=64 * MIB)
    assert fake_cuda.leaks() == 0


def test_the_library_stays_while_a_pool_exists(fake_cuda):
    with NativePool("cuda", budget=8 * CHUNK), pytest.raises(WrongState, match="CUDA pool exists"):
        check(lib.dtr_cuda_set_library(ffi.NULL))


def test_a_full_card_asks_for_room(fake_cuda):
    fake_cuda.set_memory(6 * CHUNK)
    with NativePool("cuda", budget=100 * CHUNK, reserve=1024 * MIB) as pool:
        blocks = [pool.allocate(2 * CHUNK) for _ in range(3)]
        asked = []
        pool.set_room(lambda size, stream: asked.append(size) or (pool.free(blocks.pop()) or True))
        large = pool.allocate(4 * CHUNK)
        assert len(asked) == 2
        pool.free(large)


def test_a_full_card_is_named_when_nothing_helps(fake_cuda):
    fake_cuda.set_memory(4 * CHUNK)
    with NativePool("cuda", budget=100 * CHUNK, reserve=1024 * MIB) as pool:
        with pytest.raises(OutOfMemory, match="the driver refused memory within the budget"):
            pool.allocate(5 * CHUNK)
        pool.verify()
        pool.allocate(4 * CHUNK)


def test_a_full_card_gives_idle_chunks_to_where_they_are_needed(fake_cuda):
    fake_cuda.set_memory(6 * CHUNK)
    with NativePool("cuda", budget=100 * CHUNK, reserve=1024 * MIB) as pool:
        blocks = [pool.allocate(CHUNK) for _ in range(6)]
        for block in blocks[::2]:
            pool.free(block)
        pool.allocate(3 * CHUNK)
        assert pool.stats().remaps == 1


def test_a_failure_that_is_not_memory_is_a_driver_error(fake_cuda):
    asked = []
    with NativePool("cuda", budget=8 * CHUNK) as pool:
        pool.set_room(lambda size, stream: asked.append(size))
        fake_cuda.fail_call(2, UNKNOWN)
        with pytest.raises(DriverFailed, match=r"cuMemCreate|cuCtx.*CUDA_ERROR_UNKNOWN"):
            pool.allocate(CHUNK)
        assert asked == []


def test_memory_beyond_the_budget_is_no_block_and_goes_back_in_stream_order(fake_cuda):
    with NativePool("cuda", budget=2 * CHUNK) as pool:
        block = pool.allocate(2 * CHUNK)
        fake_cuda.hold(1)
        first, second = pool.allocate_beyond(CHUNK, 1), pool.allocate_beyond(3 * CHUNK, 1)
        for address in (first, second):
            fake_cuda.launch(1, address, CHUNK)
            assert lib.dtr_pool_block_bytes(pool.handle, ffi.cast("void *", address)) == 0
        assert pool.stats().allocated_bytes == pool.stats().reserved_bytes == 2 * CHUNK
        assert pool.stats().beyond_bytes == 4 * CHUNK
        pool.free_beyond(second)
        pool.free_beyond(first)
        assert fake_cuda.physical_bytes() == 6 * CHUNK, "work still uses it"
        fake_cuda.finish(1)
        assert fake_cuda.physical_bytes() == 2 * CHUNK
        assert pool.stats().host_waits == 0
        stats = pool.stats()
        assert (stats.beyond_bytes, stats.beyond_requests) == (0, 2)
        assert stats.peak_beyond_bytes == 4 * CHUNK
        assert stats.beyond_ns > 0
        pool.reset_peak()
        assert pool.stats().peak_beyond_bytes == 0
        fake_cuda.hold(0)
        pool.free(block)


def test_memory_beyond_the_budget_is_refused_where_it_cannot_be(fake_cuda):
    fake_cuda.set_memory(4 * CHUNK)
    with NativePool("cuda", budget=2 * CHUNK, reserve=1024 * MIB) as pool:
        with pytest.raises(OutOfMemory, match="cuMemAllocAsync failed"):
            pool.allocate_beyond(5 * CHUNK)
        fake_cuda.capture(1, 1)
        with pytest.raises(WrongState, match="captured into a graph"):
            pool.allocate_beyond(CHUNK, 1)
        fake_cuda.capture(1, 0)
        assert pool.allocate_beyond(0) == 0
        pool.free_beyond(0)
        beyond, block = pool.allocate_beyond(CHUNK), pool.allocate(CHUNK)
        for wrong in (block, beyond + 256, 8):
            with pytest.raises(Invalid, match="no memory beyond the budget"):
                pool.free_beyond(wrong)
        with pytest.raises(Invalid, match="not in this pool"):
            pool.free(beyond)
        pool.free(block)
        with pytest.raises(WrongState, match="beyond its budget in use"):
            pool.destroy()
        fake_cuda.fail_call(2, UNKNOWN)
        with pytest.raises(DriverFailed):
            pool.free_beyond(beyond)
        pool.free_beyond(beyond)
        with pytest.raises(Invalid, match="freed twice"):
            pool.free_beyond(beyond)
    with NativePool("host") as pool, pytest.raises(WrongState, match="no verb allocate_on_stream"):
        pool.allocate_beyond(64)


def test_a_peer_may_use_what_is_mapped_and_what_will_be(fake_cuda):
    fake_cuda.set_devices(3)

    def shown(block, chunks=1):
        return [fake_cuda.is_shown(block, chunks * CHUNK, device) for device in range(3)]

    with NativePool("cuda", budget=4 * CHUNK) as pool:
        blocks = [pool.allocate(CHUNK) for _ in range(3)]
        assert [shown(block) for block in blocks] == [[1, 0, 0]] * 3
        pool.free(blocks.pop(1))
        pool.add_peer(1)
        pool.add_peer(1)
        assert [shown(block) for block in blocks] == [[1, 1, 0]] * 2
        moved = pool.allocate(2 * CHUNK)  # one chunk is new, one shows memory that was elsewhere
        assert pool.stats().remaps == 1
        assert shown(moved, 2) == [1, 1, 0]
        pool.add_peer(2)
        assert [shown(block) for block in blocks] == [[1, 1, 1]] * 2
        for block in [*blocks, moved]:
            pool.free(block)


def test_a_peer_that_is_refused_gets_nothing_that_comes(fake_cuda):
    fake_cuda.set_devices(2)
    with NativePool("cuda", budget=4 * CHUNK) as pool:
        blocks = [pool.allocate(CHUNK)]
        with pytest.raises(Invalid, match="device is -1"):
            pool.add_peer(-1)
        with pytest.raises(DriverFailed, match="cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"):
            pool.add_peer(2)
        for n in range(1, 20):
            with fake_cuda.failing(n) as said:
                pool.add_peer(1)
            if not said:
                break
            blocks.append(pool.allocate(256))
            assert not fake_cuda.is_shown(blocks[-1], 256, 1)
            pool.free(blocks.pop())
            pool.trim()
        assert n > 3
        assert fake_cuda.is_shown(blocks[0], CHUNK, 1)
        pool.free(blocks[0])
    with NativePool("host") as pool, pytest.raises(WrongState, match="no verb add_peer"):
        pool.add_peer(0)


def test_a_refused_workspace_is_no_error(fake_cuda):
    with NativePool("cuda", budget=2 * CHUNK) as pool:
        out = ffi.new("void **")
        asked = (3 * CHUNK, 0, lib.DTR_HINT_WORKSPACE, out)
        assert lib.dtr_pool_allocate_hinted(pool.handle, *asked) == lib.DTR_OUT_OF_MEMORY
        assert pool.stats().out_of_memory_errors == 0


def scenario(pool: NativePool) -> None:
    """Uses every verb of the driver: maps, remaps, events of three streams, trims, budgets,
    timers, copies, arenas."""
    blocks = [pool.allocate(CHUNK + 4096) for _ in range(4)]
    small = [pool.allocate(700, stream) for stream in (0, 1, 2)]
    pool.record_stream(blocks[0], 1)
    pool.record_stream(small[0], 2)
    for block in blocks[::2]:
        pool.free(block)
    large = pool.allocate(3 * CHUNK, 2)
    pool.free(large)
    pool.free(pool.allocate(CHUNK, 1))
    for block in [*small, *blocks[1::2]]:
        pool.free(block)
    pool.trim()
    pool.free(pool.allocate(7 * CHUNK, 1))
    pool.set_budget(4 * CHUNK)
    timer = pool.time_begin(1)
    pool.order(2, 1)
    pool.time_end(timer)
    pool.times()
    side, host = pool.side_stream(), pool.host_allocate(4096)
    try:
        block = pool.allocate(4096, 1)
        pool.copy_out(host, block, 4096, side)
        pool.copy_in(block, host, 4096, side)
        pool.synchronize(side)
        pool.free(block)
    finally:
        pool.hosts.append(host)
    arena = pool.arena_open()
    block = pool.arena_allocate(arena, CHUNK, 1)
    pool.record_stream(block, 2)
    pool.free(block)
    pool.free(pool.arena_allocate(arena, CHUNK, 2))
    pool.arena_close(arena)
    pool.free(pool.allocate(3 * CHUNK, 1))


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, UNKNOWN])
@pytest.mark.parametrize(("driver", "options"), [("cuda", {}), ("cuda", {"keep": 1})])
def test_any_call_may_fail(fake_cuda, error, driver, options):
    """For every n, the n-th call fails: the error is clean, the pool is whole and still works."""

    def make():
        pool = NativePool(driver, budget=12 * CHUNK, **options)
        pool.hosts = []
        return pool

    def clean(pool):
        while pool.hosts:
            pool.host_free(pool.hosts.pop())
        for block in pool.snapshot():
            if block.state == 1:
                pool.free(block.address)

    pool = make()
    start = fake_cuda.calls()
    scenario(pool)
    calls = fake_cuda.calls() - start
    clean(pool)
    pool.destroy()
    assert calls > 100
    failures = 0
    for n in range(1, calls + 1):
        pool = make()
        with fake_cuda.failing(n, error) as said:
            scenario(pool)
        failures += len(said)
        # Out of memory has its own message; any other failure names the call.
        for failure in said:
            if isinstance(failure, DriverFailed):
                assert f"{fake_cuda.failed()} failed" in str(failure)
        pool.verify()
        clean(pool)
        pool.set_budget(12 * CHUNK)
        scenario(pool)
        clean(pool)
        pool.destroy()
        assert fake_cuda.leaks() == 0, f"{fake_cuda.failed()} failed and something leaked"
        assert fake_cuda.violations() == []
    assert failures > calls // 4


def test_any_call_may_fail_while_a_pool_is_made(fake_cuda):
    start = fake_cuda.calls()
    NativePool("cuda", budget=8 * CHUNK).destroy()
    calls = fake_cuda.calls() - start
    made = 0
    for n in range(1, calls + 1):
        with fake_cuda.failing(n) as said:
            pool = NativePool("cuda", budget=8 * CHUNK)
        if not said:
            made += 1
            pool.destroy()
        assert fake_cuda.leaks() == 0, fake_cuda.failed()
    assert 0 < made < calls


def test_destroying_may_be_tried_again_after_a_failure(fake_cuda):
    for n in range(1, 100):
        pool = NativePool("cuda", budget=8 * CHUNK)
        pool.free(pool.allocate(2 * CHUNK))
        pool.free(pool.allocate(100, 1))
        with fake_cuda.failing(n) as said:
            pool.destroy()
        if said:
            pool.verify()
            pool.destroy()
        if fake_cuda.leaks() != 0:
            break
    # Only the very last call, the context's release, has nobody left to try it again.
    assert fake_cuda.failed() == "cuDevicePrimaryCtxRelease"
    assert n > 10
    fake_cuda.reset()
