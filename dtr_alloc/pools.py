"""The process's pools: one for each visible CUDA device, or one for the CPU. Without torch.

A process has one set of pools, made by its first user (the torch runtime or dtr_alloc.cupy) and
shared by all. It lives as long as the process: its memory may stay in use, and later users take the
same pools with another budget.
"""

from __future__ import annotations

import threading
from typing import Any

from dtr_alloc.config import (
    UNLIMITED_BYTES,
    Budget,
    Config,
    ConfigError,
    PoolOptions,
    error_size,
)
from dtr_alloc.core import StateError, check, ffi, field_names, lib, record

_lock = threading.Lock()
_pools: Pools | None = None


class Pools:
    """One pool per device, in the order of the device's numbers. Budgets are of each device."""

    def __init__(self, device_type: str, config: Config) -> None:
        self.device_type = device_type
        self.config = config
        self.handles = _create(device_type, config)

    def set_budget(self, budget: Budget) -> None:
        """Each pool gets the budget; all keep theirs if one cannot hold it.

        Raises as dtr_alloc.core.check for DTR_OUT_OF_MEMORY if unevictable contents do not fit, and
        ConfigError for less than a chunk and for a share of a device of unknown size.
        """
        budgets = []
        for of in self.stats():
            size_bytes, least = budget.resolve(of["total_bytes"]), of["chunk_bytes"]
            if size_bytes < least:
                raise ConfigError("budget", str(budget), f"{error_size(least)} and more")
            budgets.append(size_bytes)
        self.set_budget_bytes(budgets)

    def set_budget_bytes(self, budgets: list[int]) -> None:
        """As set_budget, with a number of bytes for each pool; 2**64 - 1: no limit."""
        before = self.budget_bytes()
        try:
            for pool, budget_bytes in zip(self.handles, budgets, strict=True):
                check(lib.dtr_pool_set_budget(pool, budget_bytes))
        except BaseException:
            # Back to a budget that held a moment ago: what was evicted for the new one fits.
            for pool, budget_bytes in zip(self.handles, before, strict=True):
                lib.dtr_pool_set_budget(pool, budget_bytes)
            raise

    def budget_bytes(self) -> list[int]:
        """The budget of each pool; 2**64 - 1: no limit."""
        return [of["budget_bytes"] for of in self.stats()]

    def stats(self) -> list[dict[str, int]]:
        """The counters of each device's pool: the fields of dtr_pool_stats."""
        stats = ffi.new("dtr_pool_stats *")
        found = []
        for pool in self.handles:
            lib.dtr_pool_get_stats(pool, stats)
            found.append(record(stats, field_names("dtr_pool_stats")))
        return found

    def total_stats(self) -> dict[str, int]:
        """The counters of all pools together; sizes of each device are those of one."""
        pools = self.stats()
        total = {name: sum(of[name] for of in pools) for name in pools[0]}
        for name in ("budget_bytes", "total_bytes", "largest_free_bytes", "chunk_bytes"):
            total[name] = max(of[name] for of in pools)
        return total

    def reset_peak(self) -> None:
        """Starts the peaks anew from the present values."""
        for pool in self.handles:
            lib.dtr_pool_reset_peak(pool)

    def trim(self) -> int:
        """Gives free memory back to the driver; returns the bytes."""
        returned = ffi.new("uint64_t *")
        total = 0
        for pool in self.handles:
            check(lib.dtr_pool_trim(pool, returned))
            total += int(returned[0])
        return total

    def check_invariants(self) -> None:
        """Verifies the heaps; raises StateError naming the broken rule."""
        for pool in self.handles:
            check(lib.dtr_pool_check_invariants(pool))


def of_process(device_type: str, config: Config) -> Pools:
    """The process's pools, made now if there are none, without a limit.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``.
        config: of new pools.

    Raises as check_fits and check_guard, and DriverError as the driver does.
    """
    global _pools
    with _lock:
        check_fits(device_type, config)
        if _pools is None:
            check_guard(device_type, config)
            _pools = Pools(device_type, config)
        return _pools


def existing() -> Pools | None:
    """The process's pools, or None if there are none yet."""
    return _pools


def check_fits(device_type: str, config: Config) -> None:
    """Raises StateError if the process has pools with other settings."""
    if _pools is None:
        return
    if _pools.device_type != device_type:
        raise StateError(
            f"this process has managed device {_pools.device_type!r}, and cannot change to "
            f"{device_type!r}"
        )
    made, wished, default = map(_heap_settings, (_pools.config, config, Config()))
    if any(value not in (made[name], default[name]) for name, value in wished.items()):
        raise StateError(
            f"this process's heap was made with {_shown(_pools.config)}, and cannot change to "
            f"{_shown(config)}"
        )


def check_guard(device_type: str, config: Config) -> None:
    """Raises ConfigError for guarded memory on CUDA, or with settings of the heap."""
    if not config.debug.guard:
        return
    if device_type != "cpu":
        raise ConfigError("debug", str(config.debug), f"no guard on {device_type!r}, only on 'cpu'")
    if config.pool != PoolOptions():
        raise ConfigError("pool", str(config.pool), "the default beside guard: no heap")


def _heap_settings(config: Config) -> dict[str, object]:
    """The settings that are fixed when a process gets its heap."""
    return {**vars(config.pool), "poison": config.debug.poison, "guard": config.debug.guard}


def _shown(config: Config) -> str:
    debug = config.debug
    return f"pool {config.pool}{', poisoned' * debug.poison}{', guarded' * debug.guard}"


def count_cuda_devices() -> int:
    """How many devices the CUDA driver shows. Raises DriverError if it has none, saying why."""
    count = ffi.new("int32_t *")
    check(lib.dtr_cuda_probe(ffi.NULL, count))
    return int(count[0])


def _create(device_type: str, config: Config) -> list[Any]:
    count = count_cuda_devices() if device_type == "cuda" else 1
    options = ffi.new("dtr_pool_options *")
    host = b"guarded" if config.debug.guard else b"host"
    driver = ffi.new("char[]", b"cuda" if device_type == "cuda" else host)
    options.driver = driver
    options.budget_bytes = UNLIMITED_BYTES
    options.chunk_bytes = config.pool.chunk
    options.keep_bytes = max(1, config.pool.keep)  # 0 stands for all there
    options.fixed = config.pool.fixed
    options.poison = config.debug.poison
    pools: list[Any] = []
    created = ffi.new("dtr_pool **")
    try:
        if device_type == "cuda" and config.pool.chunk == 0:
            options.chunk_bytes = _chunk_for(config.budget, options)
        for index in range(count):
            options.device = index
            check(lib.dtr_pool_create(options, created))
            pools.append(created[0])
    except BaseException:
        for pool in pools:
            lib.dtr_pool_destroy(pool)
        raise
    return pools


def _chunk_for(budget: Budget, options: Any) -> int:
    """The unit of mapping for a budget, in bytes: about a 1024th of it, within the driver's default
    (2 MiB) and 16 times that. Remapping a chunk costs the same for any size, and large requests
    lose the rest of the last chunk of a hole."""
    created, stats = ffi.new("dtr_pool **"), ffi.new("dtr_pool_stats *")
    check(lib.dtr_pool_create(options, created))
    try:
        lib.dtr_pool_get_stats(created[0], stats)
        chunk, budget_bytes = int(stats.chunk_bytes), budget.resolve(int(stats.total_bytes))
    finally:
        lib.dtr_pool_destroy(created[0])
    if budget_bytes == UNLIMITED_BYTES:
        return chunk
    doublings = (budget_bytes // (1024 * chunk)).bit_length() - 1
    return chunk << min(max(doublings, 0), 4)
