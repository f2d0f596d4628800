"""The process's pools, over the stand-in for libcuda: needs the native build and g++, no torch."""

import math

import pytest
from native_pool import MIB, NativePool, check, ffi, lib, pools_of

from dtr_alloc import pools
from dtr_alloc.config import UNLIMITED_BYTES, Budget, Config, ConfigError, given_settings
from dtr_alloc.core import StateError

GIB = 1 << 30


@pytest.fixture
def two_devices(fake_cuda):
    """Pools of two devices, of 1 GiB and of 2 GiB."""
    fake_cuda.set_devices(2)
    made = []
    for index, total in enumerate((GIB, 2 * GIB)):
        fake_cuda.set_memory(total)
        made.append(NativePool("cuda", device=index))
    yield pools_of(*made)
    for pool in made:
        pool.verify()
        pool.destroy()


@pytest.fixture
def no_pools(monkeypatch):
    """The process has none yet; what a test makes goes at its end."""
    monkeypatch.setattr(pools, "_pools", None)
    yield
    if pools._pools is not None:
        for handle in pools._pools.handles:
            check(lib.dtr_pool_destroy(handle))


def take(pool, size):
    out = ffi.new("void **")
    check(lib.dtr_pool_allocate(pool, size, 0, out))
    return out[0]


def test_a_share_is_taken_of_each_devices_own_memory(two_devices):
    two_devices.set_budget(Budget.parse("60%"))
    assert two_devices.budget_bytes() == [int(0.6 * GIB), int(1.2 * GIB)]


def test_a_budget_that_one_device_cannot_do_with_leaves_all_as_they_were(two_devices):
    two_devices.set_budget(Budget(64 * MIB))
    address = take(two_devices.handles[1], 8 * MIB)
    # torch's error is a RuntimeError, where torch is imported.
    with pytest.raises((MemoryError, RuntimeError), match="budget"):
        two_devices.set_budget(Budget(4 * MIB))
    assert two_devices.budget_bytes() == [64 * MIB] * 2
    check(lib.dtr_pool_free(two_devices.handles[1], address))


def test_a_budget_of_less_than_a_chunk_is_named_and_changes_nothing(two_devices):
    two_devices.set_budget(Budget(64 * MIB))
    with pytest.raises(ConfigError, match=r"budget is '1024'; allowed: 2.00 MiB \(2097152 bytes\)"):
        two_devices.set_budget(Budget(1024))
    assert two_devices.budget_bytes() == [64 * MIB] * 2


def test_counters_add_up_and_sizes_of_a_device_do_not(two_devices):
    two_devices.set_budget(Budget(64 * MIB))
    held = [take(pool, 4 * MIB) for pool in two_devices.handles]
    total = two_devices.total_stats()
    assert total["allocated_bytes"] == 8 * MIB
    assert (total["budget_bytes"], total["total_bytes"]) == (64 * MIB, 2 * GIB)
    for pool, address in zip(two_devices.handles, held, strict=True):
        check(lib.dtr_pool_free(pool, address))
    assert two_devices.trim() == 8 * MIB
    assert two_devices.total_stats()["peak_allocated_bytes"] == 8 * MIB
    two_devices.reset_peak()
    assert two_devices.total_stats()["peak_allocated_bytes"] == 0


@pytest.mark.usefixtures("no_pools")
@pytest.mark.parametrize(("keep", "stays"), [("all", 8), ("0", 0), ("3MiB", 3)])
def test_free_memory_stays_as_far_as_it_may(keep, stays):
    made = pools.of_process("cpu", given_settings({}, pool=f"chunk:1MiB,keep:{keep}").config)
    for address in [take(made.handles[0], 1 * MIB) for _ in range(8)]:
        check(lib.dtr_pool_free(made.handles[0], address))
    assert made.total_stats()["reserved_bytes"] == stays * MIB


@pytest.mark.usefixtures("no_pools")
def test_freed_memory_reads_as_nan_where_asked_for():
    made = pools.of_process("cpu", given_settings({}, debug="poison").config)
    address = take(made.handles[0], 4096)
    content = ffi.cast("float *", address)
    content[5] = 1.0
    check(lib.dtr_pool_free(made.handles[0], address))
    assert math.isnan(content[5])


@pytest.mark.usefixtures("no_pools")
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"pool": "chunk:1MiB"},
            {"pool": "chunk:2MiB"},
            "chunk:1048576,keep:all, and cannot change to pool chunk:2097152,keep:all",
        ),
        ({}, {"pool": "keep:1GiB"}, "keep:all, and cannot change to pool chunk:auto,keep:1073"),
        ({}, {"debug": "poison"}, "keep:all, and cannot change to pool chunk:auto,keep:all, poi"),
    ],
)
def test_what_the_heap_was_made_with_stays_and_the_default_goes_with_it(first, second, message):
    made = pools.of_process("cpu", given_settings({}, **first).config)
    with pytest.raises(StateError, match=message):
        pools.of_process("cpu", given_settings({}, **second).config)
    assert pools.of_process("cpu", given_settings({}).config) is made


@pytest.mark.usefixtures("no_pools")
def test_a_process_has_one_set_of_pools():
    made = pools.of_process("cpu", Config())
    assert pools.of_process("cpu", Config()) is made is pools.existing()
    assert made.budget_bytes() == [UNLIMITED_BYTES]
    with pytest.raises(StateError, match="'cpu', and cannot change to 'cuda'"):
        pools.of_process("cuda", Config())
