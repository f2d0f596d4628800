"""Observes the first steps of a job, for advice (dtr_alloc/advise/suggest.py), and ends them.

Beside the op log of these steps, it records the use of the memory that is held between steps, and
the time of a step.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dtr_alloc.advise.advice import Advice, advise, ways_to_fit
from dtr_alloc.config import Budget
from dtr_alloc.core import ffi, lib
from dtr_alloc.records import Observed
from dtr_alloc.torch import api
from dtr_alloc.torch.escapes import addresses_not_kept
from dtr_alloc.torch.kept import fullest
from dtr_alloc.torch.live_objects import live_objects
from dtr_alloc.torch.runtime import Runtime

TIMED = 4
"""Steps that are timed, after the recorded ones: recording takes time itself."""


class Observer:
    """Ends the op log and calls ``then``, once: after so many recorded steps of optimizers and
    TIMED more, after so many seconds, or by finish(), whichever comes first, on the thread of that
    event. A session must be on, and its log end with the steps."""

    def __init__(self, steps: int, seconds: float, then: Callable[[Observed], None]) -> None:
        self._steps = steps
        self._seen = 0
        self._of_each: Counter[int] = Counter()
        self._observed: Observed | None = None
        self._ends: list[tuple[int, float]] = []
        self._then = then
        self._once = threading.Lock()
        self._hook = register_optimizer_step_post_hook(self._stepped)
        self._timer = threading.Timer(seconds, self.finish)
        self._timer.daemon = True
        self._timer.start()

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """The optimizer with the most steps counts: some jobs have one for each parameter."""
        self._of_each[id(optimizer)] += 1
        if self._of_each[id(optimizer)] <= self._seen:
            return
        self._seen += 1
        if self._seen == self._steps:
            self._observed = observe(self._seen)
        if self._seen >= self._steps:
            self._ends.append(clock())
        if len(self._ends) > TIMED:
            self.finish()

    def finish(self) -> None:
        if self._once.acquire(blocking=False):
            self._timer.cancel()
            self._then(timed(self._observed or observe(self._seen), self._ends))


def clock() -> tuple[int, float]:
    """The thread, and its clock in seconds.

    On the CPU that is processor time of the thread, which other programs do not affect. If other
    threads share an operator, this thread's share takes as long as theirs. On a device it is the
    time on the wall once the device is idle.
    """
    if api.active().device_type == "cpu":
        return threading.get_ident(), time.thread_time()
    torch.cuda.synchronize()
    return threading.get_ident(), time.perf_counter()


def observe(steps: int) -> Observed:
    """The job's memory until now. Ends the session's log."""
    runtime = api.active()
    stats = api.stats()
    held, outside_bytes = addresses_not_kept(held_bytes, runtime, stats["allocated_bytes"])
    if runtime.log is not None:
        runtime.log.close()
    return Observed(
        runtime.device_type,
        steps,
        [],
        stats["peak_allocated_bytes"] + outside_bytes,
        held,
        fullest(runtime),
        stats["chunk_bytes"],
        _is_float32(runtime),
    )


def timed(observed: Observed, ends: Sequence[tuple[int, float]]) -> Observed:
    """Adds the times of further steps, from clock() at their ends. A step that began in another
    thread has none."""
    stats = api.stats()
    if stats["evictions"] or stats["swaps"]:
        return observed
    times = [end - begin for (one, begin), (other, end) in pairwise(ends) if one == other]
    return replace(observed, step_seconds=times)


def suggest(
    step: Callable[[], object],
    *,
    steps: int = 5,
    device: str = "auto",
    budget: int | str | Budget = "unlimited",
) -> Advice:
    """Makes training steps, and advises a budget for the job.

    Args:
        step: makes one whole step, such as forward, backward and the optimizer's; it is called
            ``steps`` times, and four times more to be timed. The model may exist before.
        steps: 3 and more, as a step is known once it has been seen three times.
        device: as of dtr_alloc.enable(). On CUDA nothing may have used the device yet.
        budget: of the steps, if they do not fit without. Contents that cannot be recomputed may
            then go to host memory.

    Returns the output of ``dtr-alloc suggest``: ``print(dtr_alloc.suggest(step))``. Raises
    ValueError for fewer steps, and the errors of enable() and of the steps.
    """
    if steps < 3:
        raise ValueError(f"steps is {steps}; allowed: 3 and more")
    with tempfile.TemporaryDirectory(prefix="dtr-alloc-") as folder:
        log = Path(folder) / "steps.log"
        with api.session(budget, device=device, log=str(log), **ways_to_fit(budget)):
            for _ in range(steps):
                step()
            observed = observe(steps)
            ends = [clock()]
            for _ in range(TIMED):
                step()
                ends.append(clock())
            observed = timed(observed, ends)
        return advise(observed, log)


def _is_float32(runtime: Runtime) -> bool:
    types = {parameter.dtype for parameter in live_objects(torch.nn.Parameter)}
    casts = any(rule.name == "aten._to_copy.default" for rule in runtime.recorder.rules)
    return types == {torch.float32} and not casts


def held_bytes(runtime: Runtime, allocated_bytes: int) -> tuple[dict[str, int], int]:
    """The process's tensors on the device by kind, in bytes, and the bytes outside of the session's
    memory, from before it. A storage counts once, for its first kind; storages without a kind are
    "other"."""
    parameters = live_objects(torch.nn.Parameter)
    optimizers = live_objects(torch.optim.Optimizer)
    modules = live_objects(torch.nn.Module)
    kinds: dict[str, Iterable[Any]] = {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer states": [dict(optimizer.state) for optimizer in optimizers],
        "buffers": [module.__dict__.get("_buffers") for module in modules],
    }
    seen: set[int] = set()
    held = {}
    outside_bytes = 0
    for kind, values in kinds.items():
        held[kind] = 0
        for tensor in _tensors(values):
            if tensor.device.type != runtime.device_type:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                held[kind] += storage.nbytes()
                outside_bytes += 0 if _is_ours(runtime, tensor) else storage.nbytes()
    held["other"] = max(0, allocated_bytes + outside_bytes - sum(held.values()))
    return held, outside_bytes


def _is_ours(runtime: Runtime, tensor: Tensor) -> bool:
    handle = runtime.handle(tensor)
    if handle and not lib.dtr_is_resident(runtime.engine, handle):
        return True
    address = ffi.cast("void *", tensor.untyped_storage().data_ptr())
    return any(lib.dtr_pool_contains(pool, address) for pool in runtime.pools.handles)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if is_traceable_wrapper_subclass(value):
            yield from _tensors([getattr(value, name) for name in value.__tensor_flatten__()[0]])
        elif type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
