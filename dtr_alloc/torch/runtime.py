"""The runtime of a process: an engine with one pool per device, the bridge to torch, the recorder.

The pools outlive a session: their memory may stay in use, and the next session takes the same pools
with another budget. dtr_alloc/torch/api.py switches a runtime on and off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, UntypedStorage
from torch.optim.optimizer import register_optimizer_step_post_hook

from dtr_alloc import costs, output_file, pools, report
from dtr_alloc.config import HISTORY_OPS, Budget, Config, ConfigError, is_page, variable
from dtr_alloc.core import StateError, check, ffi, field_names, lib, record
from dtr_alloc.output_file import FileTaken, WrongKind
from dtr_alloc.records import Stats, in_seconds
from dtr_alloc.scorer import Scorer
from dtr_alloc.torch import (
    compiled,
    cuda_graphs,
    custom_operators,
    escapes,
    extensions,
    observers,
    optimizers,
    ranks,
    unsupported,
)
from dtr_alloc.torch.bridge import Bridge
from dtr_alloc.torch.call_sites import CallSites
from dtr_alloc.torch.pins import Pins
from dtr_alloc.torch.recorder import Recorder
from dtr_alloc.torch.timeline import Timeline
from dtr_alloc.torch.unrecoverable import Unrecoverable, bring_back_all, message

if TYPE_CHECKING:
    from dtr_alloc.oplog.recorder import OpLogRecorder
    from dtr_alloc.traces.recording import Recording

LONGEST_WAIT_S = 30.0
"""The longest time that the end of a session waits for operators on other threads."""

_C10_CPU, _C10_CUDA = 0, 1

_PRESENT = {
    *("budget_bytes", "allocated_bytes", "reserved_bytes", "requested_bytes", "largest_free_bytes"),
    *("total_bytes", "chunk_bytes", "host_bytes", "evictable_bytes", "kept_constant_bytes"),
    *("evicted_storages", "live_blocks", "live_storages", "live_ops", "beyond_bytes"),
}
"""Counters in stats() of the present state. All others, except peaks, only grow."""

_OF_TUNER = (
    *("learning", "policies", "policies_tried"),
    *("followed_since_step", "followed_repeats"),
)
"""Numbers of the engine that stats() puts into words."""


class Runtime:
    """The state that lives from the first session to the end of the process."""

    def __init__(self, config: Config, device_type: str) -> None:
        self.device_type = device_type
        self.device = torch.device(device_type)
        self.notices_writes = device_type == "cpu"
        self.config = config
        self.bridge = Bridge(device_type)
        self.pools = pools.of_process(device_type, config)
        self._scorers = [scorer_of(config)]
        self.engine = _create_engine(config, self.scorer, device_type)
        for index, pool in enumerate(self.pools.handles):
            place = (_C10_CUDA, index) if device_type == "cuda" else (_C10_CPU, -1)
            check(lib.dtr_engine_add_pool(self.engine, *place, pool))
        table = self.bridge.connect(int(ffi.cast("intptr_t", lib.dtr_engine_core(self.engine))))
        check(lib.dtr_engine_connect(self.engine, ffi.cast("void *", table)))
        self.cost_file: costs.CostFile | None = None
        self.recorder = Recorder(self.bridge, device_type)
        custom_operators.after_each_declaration(self.bridge.forget_rules)
        self.pins = Pins(self)
        self.call_sites = CallSites(self.bridge)
        self.recorder.explain = self._explain
        self.recorder.drain_log = self._drain_log
        self.bridge.use_python_score(self.scorer is not None)
        self.log: OpLogRecorder | None = None
        self.recording: Recording | None = None
        self.timeline: Timeline | None = None
        self._before: dict[str, int] = {}  # counters when the session began
        self._ended: dict[str, Any] = {}  # of its budget, peaks and learning, when it has ended
        self.is_light = False
        self.is_active = False
        self._step_hooks: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def begin_capture(self, owner: Any) -> None:
        """Makes all live contents resident and keeps them so until dtr_end_capture() of the owner.
        Raises torch.OutOfMemoryError if they do not fit."""
        check(lib.dtr_begin_capture(self.engine, owner))
        try:
            self.recorder.bring_back_all()
        except torch.OutOfMemoryError as error:
            error.add_note(
                "dtr_alloc: while a CUDA graph is captured nothing can be evicted, so all "
                "live tensors must fit into the budget; capture before they are made, or "
                "raise the budget"
            )
            raise
        for index in range(len(self.pools.handles)):
            torch.cuda.synchronize(index)

    def set_budget(self, budget: Budget) -> None:
        """Each device's pool gets the budget. All keep the old one if one cannot hold it."""
        before, config = self.pools.budget_bytes(), self.config
        try:
            self.pools.set_budget(budget)
            self.configure(replace(config, budget=budget))
        except BaseException as error:
            interrupt = self._interrupt_behind(error)
            self.configure(config)
            self.pools.set_budget_bytes(before)
            if interrupt is not None:
                raise interrupt from None
            raise

    def stats(self) -> Stats:
        """The counters of pools and engine, and of the timeline."""
        engine = self._engine_stats()
        counted: dict[str, Any] = self._counters(engine)
        for name, before in self._before.items():
            counted[name] -= before
        timeline = self.timeline
        return Stats(
            **in_seconds(counted) | {"learning": self._learning(engine)} | self._ended,
            live_records=counted["live_storages"] + counted["live_ops"],
            session_seconds=timeline.seconds if timeline else 0.0,
            steps=timeline.step_count if timeline else 0,
            step_seconds=timeline.step_seconds if timeline else 0.0,
        )

    def _learning(self, stats: Any) -> str:
        """The state of the step tuner; empty if there is none."""
        config = self.config
        since = f"since step {stats.followed_since_step}"
        repeats = f"(repeats {stats.followed_repeats:.2f})".replace(" 0.", " .")
        words = {
            lib.DTR_LEARNING_RECORDS: "recording: no step has been repeated three times yet",
            lib.DTR_LEARNING_RESTS: "idle: almost nothing is recomputed",
            lib.DTR_LEARNING_SEARCHES: f"searching ({stats.policies_tried} of {stats.policies})",
            lib.DTR_LEARNING_FOLLOWS_POLICY: f"following a policy {since} {repeats}",
            lib.DTR_LEARNING_FOLLOWS_PLAN: f"following a plan {since} {repeats}",
            lib.DTR_LEARNING_NO_BETTER: "following the heuristic: nothing cheaper was found",
        }
        has_learned = stats.learned > self._before.get("learned", 0)
        if stats.learning == lib.DTR_LEARNING_RECORDS and has_learned:
            return "recording again: the job has changed"
        if stats.learning != lib.DTR_LEARNING_NOTHING:
            return words[stats.learning]
        if config.budget == Budget() or not config.heuristic.learns:
            return ""
        if config.log is not None:
            return "off: a job that writes an op log is not tuned"
        return "off: there are several devices, or there is no memory or thread for it"

    def _counters(self, engine: Any) -> dict[str, int]:
        counters = record(engine, field_names("dtr_engine_stats"))
        for name in _OF_TUNER:
            del counters[name]
        return {**self.pools.total_stats(), **counters}

    def reset_peak(self) -> None:
        """Starts the peaks anew from the present values."""
        self._ended = {}
        self.pools.reset_peak()
        check(lib.dtr_engine_reset_peak(self.engine))

    def configure(self, config: Config, **options: object) -> None:
        """Applies other settings, and fields of dtr_engine_options without a setting; the budget is
        set separately."""
        scorer = scorer_of(config)
        ours, _kept = _engine_options(config, scorer, self.device_type)
        for name, value in options.items():
            setattr(ours, name, value)
        self._scorers.append(scorer)  # the engine calls the one before until it has this one
        check(lib.dtr_engine_configure(self.engine, ours))
        del self._scorers[:-1]
        self.config = config
        self.bridge.use_python_score(scorer is not None)
        self.bridge.set_tiny_bytes(config.debug.tiny)

    @property
    def scorer(self) -> Scorer | None:
        """Calls the heuristic, if that is a Python callable."""
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
        """The interrupt of a Python heuristic that caused an error, if one did."""
        if isinstance(error, Exception) and self.scorer is not None:
            cause = self.scorer.take_failure()
            if cause is not None and not isinstance(cause, Exception):
                return cause
        return None

    def start(self, config: Config, costs_file: costs.CostFile | None, light: bool) -> None:
        """Installs the allocator, the escapes and the recorder, in this order. After an error,
        nothing is installed.

        Args:
            config: the settings from now on.
            costs_file: costs with which the session begins; None: none.
            light: the allocator only, to record a trace.
        """
        self._unwind()
        budgets = self.pools.budget_bytes()
        try:
            self.configure(config)
            self.set_budget(config.budget)
            self.reset_peak()
            custom_operators.trust_in_session(config.trust)
            self._undo.append(self.write_costs)
            self.use_costs(costs_file)
            self.is_light = light
            self.log = None
            self._undo.append(self._stop_recording)
            self._start_recording()
            self._start_timeline()
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

    def _start_timeline(self) -> None:
        self._before = {
            name: value
            for name, value in self._counters(self._engine_stats()).items()
            if name not in _PRESENT and not name.startswith("peak_")
        }
        self.timeline = Timeline(
            self, samples=is_page(self.config.report), progress=self.config.progress
        )
        self._undo.append(self.timeline.stop)
        self.timeline.start()

    def _start_recorder(self) -> None:
        if self.config.log is not None:
            self.log = _open_log(self, self.config)
        self._undo.append(escapes.uninstall)
        escapes.install(self)
        extensions.install(self)
        observers.install(self)
        self.pins.install()
        if self.device_type == "cuda":
            cuda_graphs.install(self)
        if self.log is not None:
            self._undo.append(self.log.stop)
            self.log.start()
        accounted = self.log is not None or is_page(self.config.report)
        check(lib.dtr_engine_keep_account(self.engine, accounted))
        if accounted or (self.config.trace is not None and self.config.trace.only_at_oom):
            self._undo.append(self.call_sites.stop)
            self.call_sites.follow_modules()
        self._undo.append(self.recorder.forget_calls)
        self._undo.append(self.recorder.stop)
        self.recorder.start(views=self.log is not None)
        self._undo.append(optimizers.stop)
        optimizers.start(self)
        self._undo.append(compiled.stop)
        compiled.start(self)
        if self.config.ranks == "agree":
            self._undo.append(ranks.stop)
            ranks.start(self)

    def _install_allocator(self) -> None:
        if self.device_type == "cuda":
            self.bridge.install_cuda(not self.pools.config.pool.strict)
            unsupported.install("cuda")
        else:
            self._undo.append(lambda: self.bridge.install_cpu(False))
            self.bridge.install_cpu(True)

    def _unwind(self) -> None:
        """Undoes the steps of start(), the last first. A step may be undone twice, or without
        having been done. An interrupt is raised at the end; the next start() undoes the steps that
        a second interrupt leaves."""
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
        from dtr_alloc.traces import recording
        from dtr_alloc.traces.trace import Kind

        path = report.fill_in(self.config.trace.path)
        mode = "light" if self.is_light else "budget"
        at_oom = self.config.trace.only_at_oom
        site_of = self._site_text if at_oom else None
        try:
            self.recording = recording.start(
                self.pools,
                path,
                mode,
                name_of=costs.operator_name,
                only_at_oom=at_oom,
                site_of=site_of,
            )
        except WrongKind as error:
            raise _wrong_kind("trace", path, error) from None
        if (running := self.recording) is None:
            return
        for device in range(len(self.pools.handles)):
            running.note(Kind.STEP, device)
            self._step_hooks.append(
                register_optimizer_step_post_hook(
                    lambda *_, device=device: running.note(Kind.STEP, device)
                )
            )

    def _site_text(self, number: int) -> str:
        """A call site for people, from its number."""
        at = self.call_sites.by_number()[number]
        return f"{f' at {at.line}' if at.line else ''}{f' ({at.module})' if at.module else ''}"

    def _stop_recording(self) -> None:
        if self.config.trace is None:
            return
        from dtr_alloc.traces import recording

        for hook in self._step_hooks:
            hook.remove()
        self._step_hooks.clear()
        self.recording = None
        recording.stop()

    def stop(self) -> None:
        """The reverse of start(). Raises torch.OutOfMemoryError, and changes nothing, if the memory
        does not suffice for the evicted contents; or StateError, which names operators that still
        run on other threads after LONGEST_WAIT_S. Contents that are unrecoverable are named in a
        StateError, which is raised once the session has ended.

        On CUDA the allocator stays, because PyTorch cannot change it once it is in use.
        """
        if not self.is_light and not self.recorder.can_stop():
            raise StateError(
                "disable: another dispatch mode was entered on this thread and not left, or "
                "enable() was called on another thread"
            )
        budgets = self.pools.budget_bytes()
        # Contents that come back exceed the budget.
        engine = self._engine_stats()
        ended = {
            name: value
            for name, value in self._counters(engine).items()
            if name == "budget_bytes" or name.startswith("peak_")
        } | {"learning": self._learning(engine)}
        unrecoverable: list[Unrecoverable] = []
        try:
            # The budget ends here: evicted contents need memory again.
            if not self.is_light:
                self.pools.set_budget(Budget())
                self.bridge.limit_repeats(None)
                bring_back_all(self)  # most of it, while other threads go on
                self._wait_for_operators()
                unrecoverable = bring_back_all(self)
                ids = [of.id for of in unrecoverable]
                check(lib.dtr_engine_reset(self.engine, ids, len(ids)))
            self.is_active = False
            self._ended = ended
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
        finally:
            self.bridge.hold_others(0)
            if unrecoverable and not self.is_active:
                escapes.raise_where_content_is_lost(self.bridge)
        if unrecoverable:
            raise StateError(message(self, unrecoverable)) from unrecoverable[0].error

    def _wait_for_operators(self) -> None:
        """Until none runs on another thread. Operators that begin there wait until
        bridge.hold_others(0) or, if an interrupt prevents that, for the time given here."""
        end = time.monotonic() + LONGEST_WAIT_S
        self.bridge.hold_others(2 * LONGEST_WAIT_S)
        while running := self.bridge.running_elsewhere():
            if time.monotonic() >= end:
                names = ", ".join(sorted(name or "an operator" for name in running))
                raise StateError(
                    f"disable: {names} still runs on another thread after {LONGEST_WAIT_S:g} s, so "
                    "the session goes on; call disable() again when that thread is done"
                )
            time.sleep(0.0005)

    def use_costs(self, file: costs.CostFile | None) -> None:
        """A session begins with the costs of its file, or with none."""
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
        """After fork: the child allocates as without dtr_alloc, and records nothing. Evicted
        contents stay evicted, and raise when they are read. CUDA does not work in a forked child in
        any case."""
        self.is_active = False
        self._undo.clear()
        if self.timeline is not None:
            self.timeline.abandon()
        self.cost_file = None  # the parent writes it
        self.call_sites.stop()
        escapes.uninstall()
        escapes.raise_where_content_is_lost(self.bridge)
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

    def unseen_writes(self) -> int:
        """The number of noticed writes outside of operators."""
        return int(self._engine_stats().unseen_writes)

    def has_ample_room(self) -> bool:
        """Whether nothing was ever evicted or swapped out, and each device uses less than half of
        its budget. Then all dependents of any tensor are resident, and fit (Engine::settle)."""
        stats = self._engine_stats()
        if stats.evictions or stats.swaps:
            return False
        return all(2 * of["allocated_bytes"] < of["budget_bytes"] for of in self.pools.stats())

    def _engine_stats(self) -> Any:
        stats = ffi.new("dtr_engine_stats *")
        lib.dtr_engine_get_stats(self.engine, stats, ffi.NULL, 0)
        return stats

    def pin(self, tensor: Tensor) -> UntypedStorage:
        """Makes a tensor resident until unpin() of its storage, which it returns."""
        storage = tensor.untyped_storage()
        check(lib.dtr_pin(self.engine, self.address(tensor), 0, 0))
        try:
            # Only now: it cannot be evicted any more.
            self.bring_back(ffi.cast("void *", storage._cdata))
        except BaseException:
            self.unpin(storage)
            raise
        return storage

    def unpin(self, storage: UntypedStorage) -> bool:
        """Takes one pin() back; False if there is none."""
        return bool(lib.dtr_unpin(self.engine, ffi.cast("void *", storage._cdata)) > 0)

    def pin_for_a_while(self, tensor: Tensor) -> Any:
        """Keeps a tensor resident while the returned owner lives. C code ends the pin, so no
        exception leaves it behind."""
        owner = ffi.gc(ffi.new("dtr_pin_owner *"), lib.dtr_end_pin)
        check(lib.dtr_pin_for(self.engine, self.address(tensor), owner))
        self.bring_back(self.handle(tensor))
        return owner

    def pin_what_is_made(self, owners: list[Any]) -> None:
        """Likewise all results of this thread's operators, while the appended owner lives. It is
        appended before the pin begins, so an interrupt leaves no pin behind."""
        owners.append(ffi.gc(ffi.new("dtr_pin_owner *"), lib.dtr_end_pin))
        check(lib.dtr_pin_made(self.engine, owners[-1]))

    def give_away(self, tensor: Tensor) -> None:
        """The address of the tensor's memory is given to others, and may be kept."""
        owner = self.pin_for_a_while(tensor)
        check(lib.dtr_pin(self.engine, self.address(tensor), 1, self.call_sites.number_of_line()))
        del owner

    def share(self, tensor: Tensor) -> None:
        """The tensor's memory is given to others that may write to it. On the CPU their writes are
        noticed; elsewhere nothing must depend on the content that they may overwrite."""
        self.give_away(tensor)
        if not self.notices_writes:
            self.recorder.settle(tensor)
            check(lib.dtr_pin(self.engine, self.address(tensor), 2, 0))


def scorer_of(config: Config) -> Scorer | None:
    """The caller of the configured heuristic, if that is a Python callable."""
    return None if config.heuristic.score is None else Scorer(config.heuristic)


_STATED_MOVES_PER_S = {"cpu": 4e9, "cuda": 200e9}
_STATED_SWAPS_PER_S = {"cpu": 1.5e9, "cuda": 12e9}
"""The assumed bandwidths of copies within a device, and to and from host memory, in bytes, if costs
are stated."""


def _engine_options(config: Config, scorer: Scorer | None, device_type: str) -> tuple[Any, Any]:
    """The options, and an owner of their memory."""
    heuristic = config.heuristic
    dealloc = ffi.new("char[]", heuristic.dealloc.encode())
    options = ffi.new("dtr_engine_options *")
    options.heuristic = ffi.new("dtr_heuristic *", heuristic.numbers())[0]
    options.history_ops = HISTORY_OPS
    options.dealloc = dealloc
    options.swap_bytes = config.swap or 0
    options.settles_to_host = config.swap is None
    # Never (0) if all operators must be recorded.
    needs_all = (config.log, config.trace, config.report, config.costs, config.debug.contents)
    options.rest_after_ops = 0 if any(needs_all) else config.debug.rest
    options.verify = config.debug.verify
    options.room = heuristic.room_number()
    options.moving = not config.debug.no_moves
    if config.costs is not None:  # two runs decide alike
        options.move_bytes_per_s = _STATED_MOVES_PER_S[device_type]
        options.swap_out_bytes_per_s = options.swap_in_bytes_per_s = _STATED_SWAPS_PER_S[
            device_type
        ]
    options.learn = _learning(config)
    options.thrash = config.thrash
    options.tiny_bytes = config.debug.tiny
    options.contents = lib.DTR_CONTENTS_WHOLE if config.debug.contents else lib.DTR_CONTENTS_SAMPLED
    if scorer is not None:
        options.score = scorer.pointer
    return options, dealloc


def _learning(config: Config) -> int:
    """The engine's learning, DTR_LEARN_...: none for a job that writes an op log, or without a
    budget."""
    if config.budget == Budget() or config.log is not None:
        return int(lib.DTR_LEARN_NOTHING)
    if config.heuristic.learns:
        return int(lib.DTR_LEARN_POLICY if config.costs is None else lib.DTR_LEARN_AT_ONCE)
    return int(lib.DTR_LEARN_STEP if config.thrash else lib.DTR_LEARN_NOTHING)


def _open_log(runtime: Runtime, config: Config) -> OpLogRecorder | None:
    # Imported when it is used: it brings the reading and writing of logs along.
    from dtr_alloc.oplog import LogError
    from dtr_alloc.oplog.recorder import OpLogRecorder

    assert config.log is not None
    path = report.fill_in(config.log)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return OpLogRecorder(runtime, path, config.log_steps)
    except FileTaken as error:
        print(f"dtr_alloc: {error}", file=sys.stderr)
        return None
    except LogError as error:
        raise ConfigError("log", str(path), error.reason) from None
    except WrongKind as error:
        raise _wrong_kind("log", path, error) from None


def _wrong_kind(field: str, path: Path, error: WrongKind) -> ConfigError:
    return ConfigError(variable(field), str(path), f"{output_file.ALLOWED} ({error.reason})")


_engines: list[Any] = []


def _create_engine(config: Config, scorer: Scorer | None, device_type: str) -> Any:
    """The engine of the process's one runtime. An existing one is left from an interrupt before its
    runtime was complete: it is destroyed, and releases the pools."""
    while _engines:
        lib.dtr_engine_destroy(_engines[-1][0])  # or it was, when the next interrupt came
        _engines.pop()
    _engines.append(ffi.new("dtr_engine **"))
    options, _kept = _engine_options(config, scorer, device_type)
    check(lib.dtr_engine_create(options, _engines[-1]))
    return _engines[-1][0]
