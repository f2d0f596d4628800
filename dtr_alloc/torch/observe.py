"""Observes the first steps of a job, for advice (dtr_alloc/lab/suggest.py), and ends them.

The op log of the steps is written as ever. What it does not say is added here: what the memory is
held for, and how long a step takes.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dtr_alloc.torch import api


@dataclass(frozen=True)
class Observed:
    """What a job held and took.

    Attributes:
        device: "cpu" or "cuda".
        steps: of an optimizer that ended; 0: the job has none, or ended before.
        step_seconds: of the fastest step after the first; 0 where none was seen whole.
        peak_bytes: the most that was allocated at once.
        held_bytes: what was allocated when the last step ended, by kind: parameters, gradients,
            optimizer states, buffers, other.
        chunk_bytes: the unit in which the pool maps memory.
    """

    device: str
    steps: int
    step_seconds: float
    peak_bytes: int
    held_bytes: dict[str, int]
    chunk_bytes: int


class Observer:
    """Ends the op log and calls ``then``, once: after so many steps of optimizers, so many seconds,
    or by finish(), whichever comes first, on the thread where that is. A session must be on.
    """

    def __init__(self, steps: int, seconds: float, then: Callable[[Observed], None]) -> None:
        self._steps = steps
        self._then = then
        self._seen = 0
        self._times: list[float] = []
        self._once = threading.Lock()
        self._hook = register_optimizer_step_post_hook(lambda *_: self._step_ended())
        self._timer = threading.Timer(seconds, self.finish)
        self._timer.daemon = True
        self._timer.start()

    def _step_ended(self) -> None:
        self._seen += 1
        self._times.append(time.perf_counter())
        if self._seen >= self._steps:
            self.finish()

    def finish(self) -> None:
        if self._once.acquire(blocking=False):
            self._timer.cancel()
            observed = self._observed()
            log = api.active().log
            if log is not None:
                log.close()
            self._then(observed)

    def _observed(self) -> Observed:
        runtime = api.active()
        stats = api.stats()
        took = [after - before for before, after in zip(self._times, self._times[1:], strict=False)]
        return Observed(
            runtime.device_type,
            self._seen,
            min(took, default=0.0),
            stats["peak_allocated_bytes"],
            held_bytes(runtime.device_type, stats["allocated_bytes"]),
            stats["chunk_bytes"],
        )


def held_bytes(device_type: str, allocated_bytes: int) -> dict[str, int]:
    """What the process's tensors on the device are held for, by kind. A storage counts once, for
    the first kind that has it; what is of no kind is "other"."""
    objects = gc.get_objects()
    parameters = [each for each in objects if issubclass(type(each), torch.nn.Parameter)]
    optimizers = [each for each in objects if issubclass(type(each), torch.optim.Optimizer)]
    modules = [each for each in objects if issubclass(type(each), torch.nn.Module)]
    kinds: dict[str, Iterable[Any]] = {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer states": [dict(optimizer.state) for optimizer in optimizers],
        "buffers": [module.__dict__.get("_buffers") for module in modules],
    }
    seen: set[int] = set()
    held = {}
    for kind, values in kinds.items():
        held[kind] = 0
        for tensor in _tensors(values):
            if tensor.device.type != device_type:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                held[kind] += storage.nbytes()
    held["other"] = max(0, allocated_bytes - sum(held.values()))
    return held


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
