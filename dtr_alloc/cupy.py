"""CuPy on the heap and under the budget of PyTorch.

``enable()`` makes the process's pools (dtr_alloc/pools.py) the source of CuPy's arrays. A CuPy
allocation that does not fit evicts PyTorch's tensors, as one of PyTorch's would. CuPy's arrays are
never evicted, because they cannot be recomputed.

- Memory is for CuPy's current device and stream, and is free for work on that stream as soon as the
  last array over it dies; work on other streams waits for it.
- The heap knows a stream by its number, which the driver reuses when the stream is destroyed. So
  streams with allocations are kept until the process ends.
- CuPy's numbers for streams: 0 and 1 are the default stream. 2 is a different one on each thread,
  which a heap for all threads cannot tell apart: an error, as is an allocation while a graph is
  captured.

Works with and without torch, in any order: a later ``dtr_alloc.enable()`` takes the same pools, and
its budget counts from then on. No other thread may allocate at that moment.

Upstream: cupy/cuda/memory.pyx of CuPy 14 (set_allocator, UnownedMemory, OutOfMemoryError),
cupy/cuda/stream.pyx (get_current_stream).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Any

from dtr_alloc import pools, report
from dtr_alloc.config import BUDGET_FORMS, Budget, Config, ConfigError, given_settings
from dtr_alloc.core import StateError, check, ffi, lib, message

_LEGACY_STREAM, _STREAM_OF_THREAD = 1, 2

_state = threading.Lock()
_allocator: _Allocator | None = None
_streams: dict[int, Any] = {}
"""Kept, by number."""
_is_child = False


class _Block:
    """Memory of a pool, which is freed when this dies: CuPy keeps it as the owner of an array's
    memory."""

    __slots__ = ("address", "pool")

    def __init__(self, pool: Any, address: Any) -> None:
        self.pool = pool
        self.address = address

    # What it needs is bound here: a module's names are gone when the interpreter ends.
    def __del__(self, free: Any = lib.dtr_pool_free, is_ending: Any = sys.is_finalizing) -> None:
        # The driver may be gone then, and after a fork the memory is the parent's.
        if not is_ending() and not _is_child:
            check(free(self.pool, self.address))


class _Allocator:
    """CuPy's allocator."""

    def __init__(self, cupy: Any, handles: list[Any]) -> None:
        self.cuda = cupy.cuda
        self.handles = handles
        self.before = self.cuda.get_allocator()

    def __call__(self, size: int) -> Any:
        """A cupy.cuda.MemoryPointer to size bytes on the current device, for the current stream."""
        device = self.cuda.get_device_id()
        if size == 0:
            return self.cuda.MemoryPointer(self.cuda.UnownedMemory(0, 0, None, device), 0)
        if device >= len(self.handles):
            raise StateError(
                f"CuPy's device {device} has no heap: dtr_alloc found {len(self.handles)} "
                "device(s) when it was enabled"
            )
        pool = self.handles[device]
        out = ffi.new("void **")
        stream = self._stream()
        status = lib.dtr_pool_allocate(pool, size, stream, out)
        if status == lib.DTR_OUT_OF_MEMORY:
            # As CuPy's own pool does: arrays in reference cycles are memory as well.
            gc.collect()
            status = lib.dtr_pool_allocate(pool, size, stream, out)
        if status == lib.DTR_OUT_OF_MEMORY:
            raise self._out_of_memory(pool, size)
        check(status)
        address = int(ffi.cast("uintptr_t", out[0]))
        memory = self.cuda.UnownedMemory(address, size, _Block(pool, out[0]), device)
        return self.cuda.MemoryPointer(memory, 0)

    def _stream(self) -> int:
        """The heap's number of CuPy's current stream. Raises StateError if it can have none."""
        stream = self.cuda.get_current_stream()
        number = int(stream.ptr)
        if number in (0, _LEGACY_STREAM):
            return 0
        if number == _STREAM_OF_THREAD:
            raise StateError(
                "CuPy's per-thread default stream has one number on all threads, so the heap "
                "cannot tell whose work memory waits for: unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
                " or use a cupy.cuda.Stream on each thread"
            )
        if stream.is_capturing():
            raise StateError(
                "CuPy cannot take memory from dtr_alloc while it captures a graph: the graph would "
                "go on using memory that others get; allocate before begin_capture()"
            )
        _streams.setdefault(number, stream)
        return number

    def _out_of_memory(self, pool: Any, size: int) -> Exception:
        text = message()
        stats = ffi.new("dtr_pool_stats *")
        lib.dtr_pool_get_stats(pool, stats)
        error: Exception = self.cuda.memory.OutOfMemoryError(
            size, stats.allocated_bytes, stats.budget_bytes
        )
        error.args = (f"dtr_alloc: {text}",)
        return error


def enable(budget: int | str | Budget | None = None) -> None:
    """Puts CuPy's arrays into the heap of this process and under its budget, on every device.

    Args:
        budget: of each device, as for ``dtr_alloc.enable``. None: that of ``dtr_alloc.enable``
            where it is in force; else ``DTR_ALLOC_BUDGET`` or the file of ``DTR_ALLOC_CONFIG``.

    Arrays that exist already stay where they are and do not count; what CuPy's own pool keeps free
    goes back to the device. An allocation that does not fit raises CuPy's own
    ``cupy.cuda.memory.OutOfMemoryError``.

    Raises ImportError without CuPy, ConfigError for a wrong or missing budget or device ``cpu``,
    StateError if it is enabled already, or if dtr_alloc is, with another budget or on the CPU,
    DriverError without a CUDA device, and out of memory (torch's error if torch is imported, else
    MemoryError) if the present contents of the heap do not fit.
    """
    global _allocator
    import cupy

    with _state:
        if _allocator is not None:
            raise StateError("dtr_alloc.cupy is enabled already; call dtr_alloc.cupy.disable()")
        config = _settings(budget)
        joins = _torch_is_enabled()
        shared = pools.of_process("cuda", config)
        if joins:
            _refuse_other_budget(shared, budget)
        allocator = _Allocator(cupy, shared.handles)
        cupy.cuda.set_allocator(allocator)
        try:
            if not joins:
                shared.set_budget(config.budget)
        except BaseException:
            cupy.cuda.set_allocator(allocator.before)
            raise
        _allocator = allocator
        if config.trace is not None and not joins:
            from dtr_alloc.traces import recording

            path = report.fill_in(config.trace.path)
            recording.start(shared, path, "budget", only_at_oom=config.trace.only_at_oom)
        cupy.get_default_memory_pool().free_all_blocks()


def disable() -> None:
    """Gives CuPy back its former allocator.

    Arrays that exist stay in the heap until they die. The budget goes on if ``dtr_alloc.enable`` is
    in force, and ends otherwise. Raises StateError if it is not enabled.
    """
    global _allocator
    with _state:
        if _allocator is None:
            raise StateError("dtr_alloc.cupy is not enabled")
        _allocator.cuda.set_allocator(_allocator.before)
        _allocator = None
        shared = pools.existing()
        if shared is not None and not _torch_is_enabled():
            shared.set_budget(Budget())


def is_enabled() -> bool:
    """Whether CuPy's arrays come from the heap."""
    return _allocator is not None


def stats() -> dict[str, int]:
    """The counters of the heap, of all devices together, PyTorch's tensors included: the fields of
    dtr_pool_stats (dtr/pool.h), in bytes. Raises StateError before the first enable()."""
    return _heap().total_stats()


def trim() -> int:
    """Gives free memory of the heap back to the driver; returns the bytes. Raises as stats()."""
    return _heap().trim()


def _heap() -> pools.Pools:
    shared = pools.existing()
    if shared is None:
        raise StateError("dtr_alloc.cupy was not enabled in this process")
    return shared


def _torch_is_enabled() -> bool:
    """Whether dtr_alloc.enable() is in force; asks without importing torch."""
    api = sys.modules.get("dtr_alloc.torch.api")
    return api is not None and api.is_enabled()


def _settings(budget: int | str | Budget | None) -> Config:
    """The settings of the pools. Raises ConfigError if CuPy cannot use them."""
    given = given_settings(budget=budget)
    device = given.get("device")
    if device is not None and device.value == "cpu":
        raise ConfigError(device.source, device.written, "cuda or auto, for CuPy")
    if "budget" not in given and not _torch_is_enabled():
        raise ConfigError("the argument budget", budget, f"{BUDGET_FORMS}; or set DTR_ALLOC_BUDGET")
    return given.config


def _refuse_other_budget(shared: pools.Pools, budget: int | str | Budget | None) -> None:
    if budget is None:
        return
    stats = shared.stats()
    if [Budget.parse(budget).resolve(of["total_bytes"]) for of in stats] != shared.budget_bytes():
        raise StateError(
            f"dtr_alloc is enabled with another budget than {budget!r}, and there is one for all: "
            "call dtr_alloc.set_budget() to change it"
        )


def _after_fork_in_child() -> None:
    global _is_child
    _is_child = True


os.register_at_fork(after_in_child=_after_fork_in_child)
