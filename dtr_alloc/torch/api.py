"""The public API: a session of the runtime, from enable() to disable()."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from dtr_alloc import costs, pools, report, torch_versions
from dtr_alloc.advise.at_exit import write_at_exit
from dtr_alloc.config import (
    BUDGET_FORMS,
    Budget,
    ConfigError,
    GivenSettings,
    Settings,
    given_settings,
)
from dtr_alloc.core import DriverError, StateError, check, ffi, lib
from dtr_alloc.records import Kept, Rows, Stats
from dtr_alloc.torch.kept import kept as _kept
from dtr_alloc.torch.kept import why_kept as _why_kept
from dtr_alloc.torch.pins import parts
from dtr_alloc.torch.runtime import Runtime

_state = threading.RLock()
_runtime: Runtime | None = None


def _choose_device(device: str) -> str:
    if device == "auto":
        # Not torch.cuda.is_available(): where NVML is absent or not asked it goes through
        # CUDA's runtime. The probe initializes the driver and makes no context.
        has_cuda = torch.version.cuda is not None and _no_cuda_reason() is None
        return "cuda" if has_cuda else "cpu"
    if device == "cuda":
        if torch.version.cuda is None:
            raise DriverError(
                f"device 'cuda': PyTorch {torch.__version__} is built without CUDA; install a "
                "CUDA build of PyTorch, or choose device 'cpu'"
            )
        if reason := _no_cuda_reason():
            raise DriverError(f"device 'cuda': {reason}")
    return device


def _no_cuda_reason() -> str | None:
    try:
        pools.count_cuda_devices()
    except DriverError as error:
        return str(error)
    return None


def _refuse_if_cuda_is_in_use() -> None:
    if torch.cuda.is_initialized():
        raise StateError(
            "CUDA is in use already, and PyTorch cannot change its allocator afterwards: enable "
            "dtr_alloc before the first CUDA call; with DTR_ALLOC_BUDGET it is enabled at the end "
            "of `import torch`"
        )


def enable(
    budget: int | str | Budget | None = None,
    *,
    exist_ok: bool = False,
    **settings: Unpack[Settings],
) -> None:
    """Begins a session: from now on this process has a memory budget.

    Args:
        budget: bytes (int), ``"8GiB"``, ``"60%"`` of the device, or ``"unlimited"`` (recorder and
            allocator on, nothing evicted). None: ``DTR_ALLOC_BUDGET`` or the file named by
            ``DTR_ALLOC_CONFIG``. Without any budget, a log makes it unlimited, and a trace alone
            switches only the allocator on.
        exist_ok: whether a session may be on already, which ends first, as by disable(). A cell of
            a notebook can then run again.
        **settings: the other fields of dtr_alloc.config.Config: device, heuristic, swap, costs,
            trust, thrash, ranks, log, log_steps, trace, stats, report, pool, debug.

    Existing tensors stay where they are and do not count. Raises ConfigError for a wrong setting or
    a damaged file of costs, StateError if a session or CUDA is in use already, DriverError for
    device ``"cuda"`` without CUDA or a device, BridgeError without a C++ compiler, and
    torch.OutOfMemoryError if tensors of an earlier session do not fit.

    On CUDA every visible device has this budget. ``torch.cuda.memory_allocated`` and its relatives
    describe the pools, and ``torch.cuda.set_per_process_memory_fraction`` can reduce the budget.
    """
    given = given_settings(budget=budget, **settings)
    if not given.is_session:
        raise ConfigError("the argument budget", budget, f"{BUDGET_FORMS}; or set DTR_ALLOC_BUDGET")
    with _state:
        if exist_ok and is_enabled():
            disable()
        enable_with(given)


def enable_with(given: GivenSettings) -> None:
    """enable() with settings that have been read: the ``torch.backends`` entry point calls this."""
    global _runtime
    config = given.config
    with _state:
        if is_enabled():
            assert _runtime is not None
            raise StateError(
                "dtr_alloc is enabled already, with budget "
                f"{report.budget_text(_runtime.config.budget)}; "
                "call disable() first, or set_budget() to change the budget"
            )
        if _runtime is None and config.device != "cpu":
            _refuse_if_cuda_is_in_use()
        device_type = _choose_device(config.device)
        pools.check_fits(device_type, config)
        # Read before anything is changed: it may be damaged.
        file = None if config.costs is None else costs.CostFile.read(config.costs, device_type)
        with torch_versions.newer_is_named(
            torch.__version__,
            *(ConfigError, DriverError, StateError, torch.OutOfMemoryError, OSError),
        ):
            if _runtime is None:
                _runtime = Runtime(config, device_type)
                atexit.register(_write_costs_at_exit)
            _runtime.start(config, file, given.is_light)
        if _runtime.log is not None:
            atexit.unregister(_close_log)
            atexit.register(_close_log)
        write_at_exit(config, _stats_at_exit)


def _write_costs_at_exit() -> None:
    if _runtime is not None and _runtime.is_active:
        _runtime.write_costs()


def disable() -> None:
    """Ends the session: every live evicted tensor becomes resident again, without a limit.

    On CUDA only the recorder is removed. PyTorch cannot change its allocator once it is in use, so
    memory comes from the pools, without a limit, until the process ends.

    It waits for operators on other threads, for 30 seconds at most. Operators that they begin in
    the meantime run afterwards.

    Raises StateError if dtr_alloc is not enabled, or if an operator still runs on another thread;
    the error names it, and the session continues. Raises torch.OutOfMemoryError if there is no
    memory for the evicted tensors; nothing has changed then. If a tensor cannot be recomputed, the
    session ends, the others are resident, and one StateError names the unrecoverable contents by
    bytes, operators and shapes. Reading such a tensor raises an error from then on.
    """
    with _state:
        active().stop()


class _Leaver(partial[None]):
    """Ends a session when it is called, or else when the with-statement drops it.

    An interrupt may come where a function of Python begins, before its first instruction. This one
    is called as C is, and no frame of a call refers to it.
    """

    of: session | None = None

    def __del__(self) -> None:
        if self.of is not None and self.of._is_to_end and is_enabled():
            self.of._leave()


class _Exit:
    """``__exit__`` of a session. A with-statement looks it up before it calls ``__enter__``."""

    def __get__(self, of: session | None, owner: type[session]) -> Callable[..., None]:
        if of is None:
            return owner._leave
        leaver = _Leaver(of._leave)
        leaver.of = of
        return leaver


class session(ContextDecorator):
    """``enable`` on entry, ``disable`` on exit."""

    def __init__(
        self, budget: int | str | Budget | None = None, **settings: Unpack[Settings]
    ) -> None:
        self._budget = budget
        self._settings = settings
        self._is_to_end = False

    def __enter__(self) -> None:
        was_enabled = is_enabled()
        try:
            enable(self._budget, exist_ok=False, **self._settings)
            self._is_to_end = True
        except BaseException:
            # A session that was not entered is not left.
            if not was_enabled and is_enabled():
                disable()
            raise

    __exit__ = _Exit()

    def _leave(self, *_: object) -> None:
        self._is_to_end = False
        try:
            disable()
        except (KeyboardInterrupt, SystemExit):
            if is_enabled():
                disable()
            raise


def is_enabled() -> bool:
    """Whether a budget is in force."""
    return _runtime is not None and _runtime.is_active


def active() -> Runtime:
    if _runtime is None or not _runtime.is_active:
        raise StateError("dtr_alloc is not enabled")
    return _runtime


def set_budget(budget: int | str | Budget) -> None:
    """Changes the budget. A smaller one evicts at once.

    Raises torch.OutOfMemoryError, and keeps the old budget, if unevictable tensors do not fit.
    """
    try:
        parsed = Budget.parse(budget)
    except ValueError:
        raise ConfigError("the argument budget", budget, BUDGET_FORMS) from None
    if active().is_light:
        raise StateError("only a trace is being recorded: nothing could be evicted for a budget")
    active().set_budget(parsed)


def stats() -> Stats:
    """The counters of the session, or of the last one after it ended (docs/start/stats.md).

    Raises StateError if dtr_alloc was never enabled.
    """
    if _runtime is None:
        raise StateError("dtr_alloc was not enabled in this process")
    return _runtime.stats()


def limit_rematerializations(most: int | None) -> None:
    """Limits the number of rematerializations from now on, on all threads together. The next one
    raises StateError, and so does each use of its result. None: no limit, as after the session."""
    active().bridge.limit_repeats(most)


def kept(*, at_peak: bool = False) -> list[Kept]:
    """The contents that are never evicted, with the reasons, the largest first.

    These are parameters, pinned tensors, tensors whose address the job asked for (with the line),
    results of operators that are not repeated, and data. Sizes are in bytes. Tiny contents are left
    out, and so are contents that no operator has made or used.

    Args:
        at_peak: at the moment when most was kept since the session began or reset_peak_stats().
            It is updated when operators end and a sixteenth more is kept than before, so it may be
            too low by as much.

    Raises StateError without a session.
    """
    return _kept(active(), at_peak)


def _stats_at_exit() -> tuple[dict[str, Any], Rows | None]:
    """stats(), with the contents that were kept when most was; and the rows of the timeline, which
    ends."""
    if _runtime is None:
        return stats(), None
    if _runtime.timeline is not None:
        _runtime.timeline.stop()
    entries = _kept(_runtime, at_peak=True)
    return {**stats(), "kept": [entry._asdict() for entry in entries]}, _runtime.timeline


def reset_peak_stats() -> None:
    """Starts the peaks anew from the present values."""
    active().reset_peak()


def check_invariants() -> None:
    """Verifies the structures of heap and engine; raises StateError naming the broken rule."""
    if _runtime is None:
        return
    _runtime.pools.check_invariants()
    check(lib.dtr_engine_check_invariants(_runtime.engine))


def trim() -> int:
    """Gives free memory back to the system; returns the bytes."""
    return active().pools.trim()


def compact() -> int:
    """Moves contents (docs/concepts/moving.md) from the end of each heap to free addresses before
    them, so that free memory is in one piece; returns the bytes moved. A trim() afterwards gives
    the most memory back. Raises DriverError if a copy fails; earlier moves are not undone."""
    runtime = active()
    moved = ffi.new("uint64_t *")
    total = 0
    for pool in runtime.pools.handles:
        check(lib.dtr_engine_compact(runtime.engine, pool, moved))
        total += int(moved[0])
    return total


def is_resident(tensor: Tensor) -> bool:
    """Whether the content of the tensor's storage is in memory; for a sparse tensor, of all its
    parts."""
    runtime = active()
    handles = [runtime.handle(part) for part in parts(tensor)]
    return all(lib.dtr_is_resident(runtime.engine, handle) for handle in handles if handle)


def evict(tensor: Tensor) -> bool:
    """Evicts the tensor's storage now, in the cheaper way. Returns False if it is a constant that
    is not swapped, pinned, in use by an operator, evicted already, or not managed. For a sparse
    tensor, True if any of its parts was evicted. Raises DriverError if its copy to host memory
    fails."""
    runtime = active()
    evicted = False
    for part in parts(tensor):
        if handle := runtime.handle(part):
            done = lib.dtr_evict(runtime.engine, handle)
            if done < 0:
                check(-done)
            evicted |= bool(done)
    return evicted


def why_kept(tensor: Tensor) -> Kept | None:
    """The reason why the tensor's storage cannot be evicted now (``why``, a clause), with the
    operator that made its content (``operator``, such as ``aten.add.Tensor``, or ``""``). None if
    it can be, or is evicted. For a sparse tensor, the first reason among its parts."""
    return _why_kept(active(), tensor)


def materialize(tensor: Tensor) -> None:
    """Makes the tensor's storage resident. It may be evicted again later; see pin()."""
    runtime = active()
    for part in parts(tensor):
        runtime.bring_back(runtime.handle(part))


def pin(tensor: Tensor) -> None:
    """Makes the tensor resident until unpin() was called as often, with the tensor or an alias of
    it. If the tensor is given other memory (set_(), .data), the pin follows."""
    active().pins.pin(tensor)


def unpin(tensor: Tensor) -> None:
    """Undoes one pin(). Raises StateError if the tensor is not pinned."""
    active().pins.unpin(tensor)


def _close_log() -> None:
    if _runtime is not None and _runtime.log is not None:
        _runtime.log.close()


def _after_fork_in_child() -> None:
    # The locks of the core and the bridge are free (allocator/at_fork.h); that of this module may
    # be held by a thread that is not here.
    global _state
    _state = threading.RLock()
    if _runtime is not None and _runtime.is_active:
        _runtime.stop_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
