"""The public API: one runtime per process, switched on by ``enable`` and off by ``disable``.

A runtime is an engine with one pool per device, the bridge to torch, and the recorder. The pools
outlive ``disable``: memory that they gave out may still be in use, and the next ``enable`` takes
the same pools with another budget.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Container, Iterable
from contextlib import ContextDecorator, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, UntypedStorage
from torch.optim.optimizer import register_optimizer_step_post_hook

from dtr_alloc import _autoload, compiled, costs, escapes, graphs, pools, refusals, report
from dtr_alloc.bridge import Bridge
from dtr_alloc.config import (
    BUDGET_FORMS,
    SAMPLINGS,
    Budget,
    Config,
    ConfigError,
    given_settings,
    load_config,
)
from dtr_alloc.core import DriverError, StateError, check, ffi, field_names, lib, record
from dtr_alloc.pins import Pins, parts
from dtr_alloc.recorder import Recorder
from dtr_alloc.scorer import Scorer

if TYPE_CHECKING:
    from dtr_alloc.fragment.recording import Recording
    from dtr_alloc.journal import Log

_C10_CPU, _C10_CUDA = 0, 1

_state = threading.RLock()
_runtime: Runtime | None = None


class Runtime:
    """What lives as long as the process once it was enabled."""

    def __init__(self, config: Config, device_type: str) -> None:
        self.device_type = device_type
        self.device = torch.device(device_type)
        self.notices_writes = device_type == "cpu"
        self.config = config
        self.bridge = Bridge(device_type)
        self.pools = pools.of_process(device_type, config)
        self._scorers = [scorer_of(config)]
        self.engine = _create_engine(config, self.scorer)
        for index, pool in enumerate(self.pools.handles):
            place = (_C10_CUDA, index) if device_type == "cuda" else (_C10_CPU, -1)
            check(lib.dtr_engine_add_pool(self.engine, *place, pool))
        table = self.bridge.connect(int(ffi.cast("intptr_t", lib.dtr_engine_core(self.engine))))
        check(lib.dtr_engine_connect(self.engine, ffi.cast("void *", table)))
        self.cost_file: costs.CostFile | None = None
        self.recorder = Recorder(self.bridge, device_type)
        self.pins = Pins(self)
        self.recorder.explain = self._explain
        self.recorder.drain_log = self._drain_log
        self.bridge.score(self.scorer is not None)
        self.log: Log | None = None
        self.recording: Recording | None = None
        self.is_light = False
        self.is_active = False
        self._step_hooks: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def begin_capture(self) -> None:
        """Until end_capture(), all that is live is resident and stays so. Raises
        torch.OutOfMemoryError, and nothing has begun, if it does not fit."""
        check(lib.dtr_engine_freeze(self.engine, True))
        self.bridge.freeze(1)
        try:
            self.recorder.bring_back_all()
            for index in range(len(self.pools.handles)):
                torch.cuda.synchronize(index)
        except BaseException as error:
            self.end_capture()
            if isinstance(error, torch.OutOfMemoryError):
                error.add_note(
                    "dtr_alloc: while a CUDA graph is captured nothing can be evicted, so all "
                    "live tensors must fit into the budget; capture before they are made, or "
                    "raise the budget"
                )
            raise

    def end_capture(self) -> None:
        """Once for each begin_capture()."""
        self.bridge.freeze(-1)
        check(lib.dtr_engine_freeze(self.engine, False))

    def set_budget(self, budget: Budget) -> None:
        """Each device's pool gets the budget. All keep the old one if one cannot do with it."""
        before, config = self.pools.budget_bytes(), self.config
        try:
            self.pools.set_budget(budget)
            self.configure(Config(**{**vars(config), "budget": budget}))
        except BaseException as error:
            interrupt = self._interrupt_behind(error)
            self.configure(config)
            self.pools.set_budget_bytes(before)
            if interrupt is not None:
                raise interrupt from None
            raise

    def engine_stats(self) -> dict[str, int]:
        stats = ffi.new("dtr_engine_stats *")
        lib.dtr_engine_get_stats(self.engine, stats)
        return record(stats, field_names("dtr_engine_stats"))

    def configure(self, config: Config) -> None:
        """Takes other settings; the budget is set apart."""
        scorer = scorer_of(config)
        options, _kept = _engine_options(config, scorer)
        self._scorers.append(scorer)  # the engine calls the one before until it has this one
        check(lib.dtr_engine_configure(self.engine, options))
        del self._scorers[:-1]
        self.config = config
        self.bridge.score(scorer is not None)

    @property
    def scorer(self) -> Scorer | None:
        """What calls the heuristic, if that is a Python callable."""
        return self._scorers[-1]

    def _explain(self, message: str) -> None:
        if self.scorer is not None and (cause := self.scorer.take_failure()) is not None:
            if not isinstance(cause, Exception):
                raise cause  # Ctrl-C is no failure of the heuristic
            raise RuntimeError(message) from cause

    def _drain_log(self) -> None:
        if self.log is not None:
            self.log.drain()

    def _interrupt_behind(self, error: BaseException) -> BaseException | None:
        """What a Python heuristic was interrupted by, if an error came of that."""
        if isinstance(error, Exception) and self.scorer is not None:
            cause = self.scorer.take_failure()
            if cause is not None and not isinstance(cause, Exception):
                return cause
        return None

    def start(self, config: Config, costs_file: costs.CostFile | None, light: bool) -> None:
        """Puts the allocator, the escapes and the recorder in place, in this order. Whatever is
        raised meanwhile, nothing is in place then.

        Args:
            config: the settings from now on.
            costs_file: what the session begins with; None: no costs are known.
            light: the allocator only, to record a trace.
        """
        self._unwind()
        budgets = self.pools.budget_bytes()
        try:
            self.configure(config)
            self.set_budget(config.budget)
            self.pools.reset_peak()
            self._undo.append(self.write_costs)
            self.use_costs(costs_file)
            self.is_light = light
            self.log = None
            self._undo.append(self._stop_recording)
            self._start_recording()
            self._install_allocator()
            if not light:
                self._start_recorder()
            self.is_active = True
        except BaseException:
            self.is_active = False
            self.cost_file = None
            self._unwind()
            self.pools.set_budget_bytes(budgets)
            raise

    def _start_recorder(self) -> None:
        if self.config.log is not None:
            self.log = _open_log(self, self.config)
        self._undo.append(escapes.uninstall)
        escapes.install(self)
        self.pins.install()
        if self.device_type == "cuda":
            graphs.install(self)
        if self.log is not None:
            self._undo.append(self.log.stop)
            self.log.start()
        self._undo.append(self.recorder.forget_calls)
        self._undo.append(self.recorder.stop)
        self.recorder.start(views=self.log is not None)
        self._undo.append(compiled.stop)
        compiled.start(self)

    def _install_allocator(self) -> None:
        if self.device_type == "cuda":
            self.bridge.install_cuda()
            refusals.install("cuda")
        else:
            self._undo.append(lambda: self.bridge.install_cpu(False))
            self.bridge.install_cpu(True)

    def _unwind(self) -> None:
        """Undoes what start() did, the last first. A step may be undone twice, or without having
        been done. An interrupt waits until all are; what a second one leaves, the next start()
        undoes."""
        try:
            while self._undo:
                self._undo[-1]()
                self._undo.pop()
        except BaseException:
            while self._undo:
                step = self._undo.pop()
                with suppress(Exception):  # a step that fails has failed above
                    step()
            raise

    def _start_recording(self) -> None:
        if self.config.trace is None:
            return
        # Imported when it is used, as most jobs record nothing.
        from dtr_alloc.fragment import recording
        from dtr_alloc.fragment.trace import Kind

        path = report.fill_in(self.config.trace)
        mode = "light" if self.is_light else "budget"
        self.recording = recording.start(self.pools, path, mode, costs.operator_name)
        if (running := self.recording) is None:
            return
        for device in range(len(self.pools.handles)):
            running.note(Kind.STEP, device)
            self._step_hooks.append(
                register_optimizer_step_post_hook(
                    lambda *_, device=device: running.note(Kind.STEP, device)
                )
            )

    def _stop_recording(self) -> None:
        if self.config.trace is None:
            return
        from dtr_alloc.fragment import recording

        for hook in self._step_hooks:
            hook.remove()
        self._step_hooks.clear()
        self.recording = None
        recording.stop()

    def stop(self) -> None:
        """The reverse of start(). Raises, and changes nothing, if a tensor cannot come back.

        On CUDA the allocator stays, because PyTorch cannot change it once it is in use.
        """
        if not self.is_light and not self.recorder.can_stop():
            raise StateError(
                "disable: another dispatch mode was entered on this thread and not left, or "
                "enable() was called on another thread"
            )
        budgets = self.pools.budget_bytes()
        try:
            # The promise ends here: what was evicted needs its place again.
            if not self.is_light:
                self.pools.set_budget(Budget())
                self.recorder.bring_back_all()
                check(lib.dtr_engine_reset(self.engine))
            self.is_active = False
            self._unwind()
        except BaseException:
            if self.is_active:
                try:
                    self.pools.set_budget_bytes(budgets)
                except torch.OutOfMemoryError:
                    # An interrupt after the reset: nothing is known that could be evicted.
                    self.is_active = False
            if not self.is_active:
                self._unwind()
            raise

    def use_costs(self, file: costs.CostFile | None) -> None:
        """A session begins with the costs that its file says, or with none."""
        if file is None:
            costs.forget(self.engine)
        else:
            file.install(self.engine)
        self.cost_file = file

    def write_costs(self) -> None:
        """Writes the session's cost file, if it has one, for the only time."""
        if self.cost_file is not None:
            self.cost_file.try_to_write(self.engine)
            self.cost_file = None

    def stop_in_child(self) -> None:
        """After fork: the child allocates as without us, and records nothing. What was evicted
        stays so, and throws when it is read. CUDA does not work in a forked child, with us or
        without."""
        self.is_active = False
        self._undo.clear()
        self.cost_file = None  # the parent writes it
        escapes.uninstall()
        if self.device_type == "cpu":
            self.bridge.install_cpu(False)
        self.bridge.capture(False)
        if self.log is not None and self.log.is_open:
            self.log.abandon()

    # ---- one storage at a time ----

    def address(self, tensor: Tensor) -> Any:
        return ffi.cast("void *", tensor._cdata)

    def handle(self, tensor: Tensor) -> Any:
        """The storage of a tensor, or NULL if it is not on a managed device."""
        return lib.dtr_handle_of(self.engine, self.address(tensor))

    def bring_back(self, handle: Any) -> None:
        if handle and not lib.dtr_is_resident(self.engine, handle):
            self.recorder.bring_back(int(ffi.cast("intptr_t", handle)))

    def pin(self, tensor: Tensor) -> UntypedStorage:
        """Makes a tensor resident until unpin() of its storage, which it returns."""
        storage = tensor.untyped_storage()
        check(lib.dtr_pin(self.engine, self.address(tensor), 0))
        try:
            # Only now: from here on nobody evicts it.
            self.bring_back(ffi.cast("void *", storage._cdata))
        except BaseException:
            self.unpin(storage)
            raise
        return storage

    def unpin(self, storage: UntypedStorage) -> bool:
        """Takes one pin() back; False if there is none."""
        return lib.dtr_unpin(self.engine, ffi.cast("void *", storage._cdata)) > 0

    def pin_for_a_while(self, tensor: Tensor) -> Any:
        """Keeps a tensor resident while what is returned lives. That ends without Python: nothing
        that is raised leaves the pin behind."""
        owner = ffi.gc(ffi.new("dtr_pin_owner *"), lib.dtr_end_pin)
        check(lib.dtr_pin_for(self.engine, self.address(tensor), owner))
        self.bring_back(self.handle(tensor))
        return owner

    def give_away(self, tensor: Tensor) -> None:
        """The address of the tensor's memory is given to others, who may keep it."""
        owner = self.pin_for_a_while(tensor)
        check(lib.dtr_pin(self.engine, self.address(tensor), 1))
        del owner

    def share(self, tensor: Tensor) -> None:
        """The tensor's memory is given to others that may write to it. On the CPU their writes are
        noticed; elsewhere nothing must depend on the content that they may overwrite."""
        self.give_away(tensor)
        if not self.notices_writes:
            self.recorder.settle(tensor)
            check(lib.dtr_pin(self.engine, self.address(tensor), 2))


def scorer_of(config: Config) -> Scorer | None:
    """What calls the configured heuristic, if that is a Python callable."""
    return None if config.heuristic.score is None else Scorer(config.heuristic)


def _engine_options(config: Config, scorer: Scorer | None) -> tuple[Any, Any]:
    """The options, and what must be kept as long as they are used."""
    # Under lazy with nothing that asks for memory, nothing dead would ever go.
    for_good = config.dealloc == "lazy" and config.budget == Budget()
    dealloc = ffi.new("char[]", b"eager" if for_good else config.dealloc.encode())
    options = ffi.new("dtr_engine_options *")
    options.heuristic = ffi.new("dtr_heuristic *", config.heuristic.numbers())[0]
    options.min_evict_bytes = config.min_evict.size_bytes
    options.min_evict_share = float(config.min_evict.share)
    options.sampling = SAMPLINGS.index(config.sampling)
    options.history_ops = config.history
    options.dealloc = dealloc
    options.swap_bytes = config.swap
    options.verify = config.verify
    options.room = config.heuristic.room_number(config.room)
    options.moving = config.moving
    options.contents = (
        lib.DTR_CONTENTS_WHOLE if config.debug == "contents" else lib.DTR_CONTENTS_SAMPLED
    )
    if scorer is not None:
        options.score = scorer.pointer
    return options, dealloc


def _open_log(runtime: Runtime, config: Config) -> Log | None:
    # Imported when it is used: it brings the reading and writing of logs along.
    from dtr_alloc.in_use import InUse
    from dtr_alloc.journal import Log
    from dtr_alloc.oplog import LogError

    assert config.log is not None
    path = report.fill_in(config.log)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Log(runtime, path, config.log_steps)
    except InUse as error:
        print(f"dtr_alloc: {error}", file=sys.stderr)
        return None
    except LogError as error:
        raise ConfigError("log", str(path), error.reason) from None


def _create_engine(config: Config, scorer: Scorer | None) -> Any:
    engine = ffi.new("dtr_engine **")
    options, _kept = _engine_options(config, scorer)
    check(lib.dtr_engine_create(options, engine))
    return engine[0]


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


def enable(budget: object = None, **settings: object) -> None:
    """Holds this process to a memory budget from now on.

    Args:
        budget: bytes (int), ``"8GiB"``, ``"60%"`` of the device, or ``"unlimited"`` (recorder and
            allocator on, nothing evicted). None: ``DTR_ALLOC_BUDGET`` or the file that
            ``DTR_ALLOC_CONFIG`` names; if neither gives one, unlimited where a log is asked for,
            and no recorder, only the allocator, where nothing but a trace is.
        **settings: the other fields of dtr_alloc.config.Config: device, heuristic, dealloc, room,
            min_evict, sampling, history, costs, swap, moving, chunk, keep, fixed, placement,
            poison, verify, log, log_steps, trace, stats, report.

    Tensors that exist already stay where they are and do not count. Raises ConfigError for a wrong
    setting or a damaged file of costs, StateError if it is enabled already or CUDA is in use
    already, DriverError for device ``"cuda"`` without CUDA or a device, BridgeError without a C++
    compiler, and torch.OutOfMemoryError if what an earlier session left in the heap does not fit.

    On CUDA every visible device has the budget, each for itself, and PyTorch's own calls go on
    working: ``torch.cuda.memory_allocated`` and its relatives tell of our pools, and
    ``torch.cuda.set_per_process_memory_fraction`` can narrow the budget.
    """
    given = given_settings(budget=budget, **settings).keys()
    if not {"budget", "log", "trace"} & given:
        raise ConfigError("the argument budget", budget, f"{BUDGET_FORMS}; or set DTR_ALLOC_BUDGET")
    _enable(load_config(budget=budget, **settings), _is_light(given))


def enable_from_environment() -> None:
    """enable() with nothing but DTR_ALLOC_*: what the ``torch.backends`` entry point calls."""
    _enable(load_config(), _is_light(given_settings().keys()))


def _is_light(given: Iterable[str]) -> bool:
    """Whether these settings ask for a trace and nothing else that needs the recorder."""
    return "trace" in given and not {"budget", "log"} & set(given)


def _enable(config: Config, light: bool) -> None:
    global _runtime
    with _state:
        if is_enabled():
            assert _runtime is not None
            raise StateError(
                f"dtr_alloc is enabled already, with budget {_runtime.config.budget}; "
                "call disable() first, or set_budget() to change the budget"
            )
        if _runtime is None and config.device != "cpu":
            _refuse_if_cuda_is_in_use()
        device_type = _choose_device(config.device)
        pools.check_fits(device_type, config)
        # Read before anything is changed: it may be damaged.
        file = None if config.costs is None else costs.CostFile.read(config.costs, device_type)
        if _runtime is None:
            _runtime = Runtime(config, device_type)
            atexit.register(_write_costs_at_exit)
        _runtime.start(config, file, light)
        if _runtime.log is not None:
            atexit.unregister(_close_log)
            atexit.register(_close_log)
        report.write_at_exit(config)


def _write_costs_at_exit() -> None:
    if _runtime is not None and _runtime.is_active:
        _runtime.write_costs()


def disable() -> None:
    """Ends the budget: every live evicted tensor becomes resident again, without a limit.

    On CUDA only the recorder goes. PyTorch cannot change its allocator once it is in use, so
    memory goes on coming from our pools, without a limit, until the process ends.

    Raises StateError if dtr_alloc is not enabled, and whatever a rematerialization raises; then
    everything is as it was.
    """
    with _state:
        _enabled().stop()


class _Leaver(partial[None]):
    """Ends a session when it is called, or else when the with-statement lets go of it.

    An interrupt may come where a function of Python begins, before its first instruction. This one
    is called as C is, and no frame of a call refers to it.
    """

    session: session

    def __del__(self) -> None:
        if self.session._is_to_end and is_enabled():
            self.session._leave()


class _Exit:
    """``__exit__`` of a session. A with-statement looks it up before it calls ``__enter__``."""

    def __get__(self, of: session | None, owner: type[session]) -> Callable[..., None]:
        if of is None:
            return owner._leave
        leaver = _Leaver(of._leave)
        leaver.session = of
        return leaver


class session(ContextDecorator):
    """``enable`` on entry, ``disable`` on exit."""

    def __init__(self, budget: object = None, **settings: object) -> None:
        self._budget = budget
        self._settings = settings
        self._is_to_end = False

    def __enter__(self) -> None:
        was_enabled = is_enabled()
        try:
            enable(self._budget, **self._settings)
            self._is_to_end = True
        except BaseException:
            # Nobody leaves what was not entered.
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


def _enabled() -> Runtime:
    if _runtime is None or not _runtime.is_active:
        raise StateError("dtr_alloc is not enabled")
    return _runtime


def set_budget(budget: object) -> None:
    """Changes the budget. A smaller one evicts at once.

    Raises torch.OutOfMemoryError, and keeps the old budget, if what cannot be evicted does not fit.
    """
    try:
        parsed = Budget.parse(budget)
    except ValueError:
        raise ConfigError("the argument budget", budget, BUDGET_FORMS) from None
    if _enabled().is_light:
        raise StateError("only a trace is being recorded: nothing could be evicted for a budget")
    _enabled().set_budget(parsed)


def stats() -> dict[str, Any]:
    """Counters since the runtime was created (peaks: since reset_peak_stats), in bytes and seconds.

    ``budget_bytes`` is 2**64 - 1 if unlimited; ``bookkeeping_seconds`` count between calls of
    time_bookkeeping(True) and (False). Works after disable() too; raises StateError if
    dtr_alloc was never enabled.
    """
    if _runtime is None:
        raise StateError("dtr_alloc was not enabled in this process")
    pool = _runtime.pools.total_stats()
    engine = _runtime.engine_stats()
    seconds = {
        "recompute_seconds": engine.pop("recompute_ns") / 1e9,
        "search_seconds": engine.pop("search_ns") / 1e9,
        "bookkeeping_seconds": engine.pop("bookkeeping_ns") / 1e9,
    }
    records = engine["live_storages"] + engine["live_ops"]
    return {**pool, **engine, **seconds, "live_records": records}


def time_bookkeeping(on: bool) -> None:
    """Whether the engine times itself: two looks at the clock for each of its calls."""
    runtime = _enabled()
    options, _kept = _engine_options(runtime.config, runtime.scorer)
    options.time_bookkeeping = on
    check(lib.dtr_engine_configure(runtime.engine, options))


def trust_contents() -> None:
    """Compares no contents (graph/contents.cpp) until the session ends: to measure the cost."""
    runtime = _enabled()
    options, _kept = _engine_options(runtime.config, runtime.scorer)
    options.contents = lib.DTR_CONTENTS_TRUSTED
    check(lib.dtr_engine_configure(runtime.engine, options))


def limit_rematerializations(most: int | None) -> None:
    """Lets so many operators run again from now on; the next one raises StateError, and so does
    whatever needs its result. For jobs that would rather fail than thrash. None: any number."""
    _enabled().bridge.limit_repeats(most)


def run_as_operator(
    function: Callable[..., Any], *arguments: Any, mutated: Container[int] = (), name: str = ""
) -> Any:
    """Runs a function of tensors as one operator, such as a kernel that PyTorch does not know.

    Its results can be evicted, and are computed by calling it again with the same values; it must
    give the same then. It may ask tensors for their addresses, and use them until it returns.
    Autograd does not look inside: call this in forward() and backward() of a
    torch.autograd.Function. Without a budget, and inside of another such function, it is just
    called.

    Args:
        function: returns a tensor, or a list or tuple of tensors, in memory that PyTorch allocated.
            It uses no tensors but its arguments, and others that stay as they are.
        arguments: tensors, and values of any other type, which are kept.
        mutated: positions of the tensors that it overwrites.
        name: for messages, logs and costs; by default that of the function.
    """
    with torch.no_grad():
        if _runtime is None or not is_enabled() or not _runtime.recorder.sees(arguments):
            return function(*arguments)
        runtime = _runtime

        def of_list(values: list[Any]) -> Any:
            return escapes.addresses_not_kept(function, *values)

        name = name or f"{function.__module__}.{function.__qualname__}"
        return runtime.recorder.run(of_list, list(arguments), name, mutated)


def reset_peak_stats() -> None:
    """Starts the peaks anew from the present values."""
    _enabled().pools.reset_peak()


def check_invariants() -> None:
    """Verifies the structures of heap and engine; raises StateError naming the broken rule."""
    if _runtime is None:
        return
    _runtime.pools.check_invariants()
    check(lib.dtr_engine_check_invariants(_runtime.engine))


def trim() -> int:
    """Gives free memory back to the system; returns the bytes."""
    return _enabled().pools.trim()


def compact() -> int:
    """Moves what may be moved (docs/moving.md) from the end of each heap to free places before it,
    so that what is free lies together; returns the bytes that moved. trim() after it gives the
    most back. Raises DriverError if a copy fails; what has moved until then has moved."""
    runtime = _enabled()
    moved = ffi.new("uint64_t *")
    total = 0
    for pool in runtime.pools.handles:
        check(lib.dtr_engine_compact(runtime.engine, pool, moved))
        total += int(moved[0])
    return total


def is_resident(tensor: Tensor) -> bool:
    """Whether the content of the tensor's storage is in memory; of a sparse tensor, that of all
    that it is made of."""
    runtime = _enabled()
    handles = [runtime.handle(part) for part in parts(tensor)]
    return all(lib.dtr_is_resident(runtime.engine, handle) for handle in handles if handle)


def evict(tensor: Tensor) -> bool:
    """Evicts the tensor's storage now, the way that is cheaper. False if it cannot be: it is a
    constant (and not to be swapped to host memory), pinned, in use by an operator, evicted already,
    or not managed. Of a sparse tensor, True if any of what it is made of was evicted. Raises
    DriverError if its copy to host memory fails."""
    runtime = _enabled()
    evicted = False
    for part in parts(tensor):
        if handle := runtime.handle(part):
            done = lib.dtr_evict(runtime.engine, handle)
            if done < 0:
                check(-done)
            evicted |= bool(done)
    return evicted


def materialize(tensor: Tensor) -> None:
    """Makes the tensor's storage resident. It may be evicted again later; see pin()."""
    runtime = _enabled()
    for part in parts(tensor):
        runtime.bring_back(runtime.handle(part))


def pin(tensor: Tensor) -> None:
    """Makes the tensor resident and keeps it so until unpin(), which must be called as often, with
    the tensor or an alias of it. If the tensor is given other memory (set_(), .data), that is
    pinned, and the old one no more."""
    _enabled().pins.pin(tensor)


def unpin(tensor: Tensor) -> None:
    """Takes one pin() back. Raises StateError if the tensor is not pinned."""
    _enabled().pins.unpin(tensor)


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

_autoload.resume()
