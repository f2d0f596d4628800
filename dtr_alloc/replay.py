"""Replay of closures: the Python half of rematerialization.

The engine decides which op runs next (native/remat.cpp); here its arguments are rebuilt, it runs
as it ran the first time, and its results go back to the engine.

A replay sees nothing of the surroundings it runs in: autograd, autocast, function transforms, and
every dispatch mode are off, because the recorder saw the operator below all of them. The
generator that a random operator draws from is put where it stood, and back afterwards.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dtr_alloc.bridge import Bridge
from dtr_alloc.core import StateError, check, ffi, lib
from dtr_alloc.recorder import TENSOR, ByValue, Closure, RandomState, flatten

_READ, _MUTATE, _WRITE_ONLY, _SCRATCH, _EMPTY, _BY_VALUE = range(6)
_CONJ, _NEG = 1, 2

_Key = torch._C.DispatchKey
_KEYS = [
    name
    for name in (
        *("Python", "PythonTLSSnapshot", "PythonDispatcher", "ADInplaceOrView", "Functionalize"),
        *("AutogradOther", "AutogradCPU", "AutogradCUDA", "AutogradFunctionality"),
        *("AutocastCPU", "AutocastCUDA", "FuncTorchDynamicLayerFrontMode"),
        "FuncTorchDynamicLayerBackMode",
    )
    if hasattr(_Key, name)
]


def _keys_above_kernels() -> torch._C.DispatchKeySet:
    keys = torch._C.DispatchKeySet(getattr(_Key, _KEYS[0]))
    for name in _KEYS[1:]:
        keys = keys | torch._C.DispatchKeySet(getattr(_Key, name))
    return keys


_ABOVE_KERNELS = _keys_above_kernels()


@contextmanager
def unseen() -> Iterator[None]:
    """Runs operators as kernels only: unrecorded, without autograd, autocast or modes."""
    with torch._C._ExcludeDispatchKeyGuard(_ABOVE_KERNELS), torch._C.DisableTorchFunction():
        yield


# set_ of the base class: that of Tensor is guarded (escapes.py), and this one needs no guard,
# because given a shape it touches no memory.
over_storage = torch._C.TensorBase.set_


class Replayer:
    """Runs the closures that the engine asks for. One rematerialization at a time."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._lock = threading.RLock()
        self._dtypes = _dtype_table(runtime.engine)

    def prepare(self, frame: Any) -> None:
        """Brings in what the frame's op needs before it may run."""
        with self._lock:
            while work := lib.dtr_op_prepare(frame):
                if work < 0:
                    check(-work)
                self._run(frame)

    def bring_back(self, frame: Any, handle: Any) -> None:
        """Makes one storage resident."""
        with self._lock:
            work = lib.dtr_remat_want(frame, handle)
            if work < 0:
                check(-work)
            if work:
                self._run(frame)

    def bring_back_all(self, frame: Any) -> None:
        """Makes every live evicted storage resident."""
        with self._lock:
            while work := lib.dtr_remat_want_any(frame):
                if work < 0:
                    check(-work)
                self._run(frame)

    def _run(self, frame: Any) -> None:
        """Runs the frame's stack until it is empty."""
        try:
            with unseen():
                while op_id := lib.dtr_remat_next(frame):
                    if op_id < 0:
                        check(-op_id)
                    self._step(frame, self._runtime.closures[op_id])
        except BaseException:
            lib.dtr_remat_abort(frame)
            raise

    def _step(self, frame: Any, closure: Closure) -> None:
        index = lib.dtr_frame_device(frame)
        home = self._runtime.device if index < 0 else torch.device(self._runtime.device_type, index)
        tensors = self._rebuild(lib.dtr_frame_step(frame, 0), home)
        marks = iter(tensors)
        func, marked, marked_kwargs, random, grad = closure
        args = [_fill(argument, marks) for argument in marked]
        kwargs = {name: _fill(argument, marks) for name, argument in marked_kwargs.items()}
        results: list[Tensor | None] = []
        if recording := self._runtime.recording:
            lib.dtr_running_op(self._runtime.main.rule(func).key)
        with torch.set_grad_enabled(grad), _standing_at(random, self._runtime.bridge):
            flatten(func(*args, **kwargs), results)
        everything = [*tensors, *results]
        step = lib.dtr_frame_step(frame, len(everything))
        for index, tensor in enumerate(everything):
            step[index] = 0 if tensor is None else tensor._cdata
        status = lib.dtr_remat_commit(frame, len(tensors), len(results))
        if recording:
            lib.dtr_running_op(0)
        if status < 0:
            try:
                check(-status)
            except StateError as error:
                raise StateError(f"{func}: {error}{_hint(str(error))}") from None

    def _rebuild(self, numbers: Any, home: torch.device) -> list[Tensor | None]:
        """The argument tensors of a step, from its description (layout: native/dtr_alloc.h).

        Args:
            home: the device of what is only written to, where no other argument says it.
        """
        storages = []
        at = 1
        for _ in range(numbers[0]):
            storage = torch.UntypedStorage._new_with_weak_ptr(numbers[at])
            if storage is None:
                raise RuntimeError("dtr_alloc: an input of a rematerialization died during it")
            storages.append(storage.clone() if numbers[at + 1] else storage)
            at += 2
        device = storages[0].device if storages else home
        count = numbers[at]
        at += 1
        tensors: list[Tensor | None] = []
        for _ in range(count):
            use, edge, scalar_type, flags, offset, ndim = ffi.unpack(numbers + at, 6)
            shape = ffi.unpack(numbers + at + 6, 2 * ndim) if ndim else []
            at += 6 + 2 * ndim
            if use == _BY_VALUE:
                tensors.append(None)
                continue
            dtype = self._dtypes[scalar_type]
            size, stride = shape[:ndim], shape[ndim:]
            if edge < 0:
                # Overwritten or empty: only its shape counts.
                tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
            else:
                tensor = torch.empty(0, dtype=dtype, device=storages[edge].device)
                over_storage(tensor, storages[edge], offset, size, stride)
            if flags & _CONJ:
                tensor = torch._conj(tensor)
            if flags & _NEG:
                tensor = torch._neg_view(tensor)
            tensors.append(tensor)
        return tensors


def _hint(text: str) -> str:
    """What to do about an operator that did not repeat itself."""
    if not text.startswith("verify:"):
        return ""
    return (
        ". Its kernel may be nondeterministic, or read what the recorder does not see: try "
        "torch.use_deterministic_algorithms(True), or pin() its result"
    )


@contextmanager
def _standing_at(random: RandomState | None, bridge: Bridge) -> Iterator[None]:
    """Puts a generator where it stood, and back afterwards."""
    if random is None:
        yield
        return
    generator = random.generator
    before = bridge.state_of(generator)
    generator.set_state(random.to_tensor())
    try:
        yield
    finally:
        generator.set_state(before)


# A module's function, not a nested one: a nested function that calls itself is a reference cycle,
# and would hold the tensors of the replay until the garbage collector comes by.
def _fill(argument: Any, marks: Iterator[Tensor | None]) -> Any:
    """An argument of a closure with the marks of tensors replaced by tensors, in order."""
    if argument is TENSOR:
        return next(marks)
    if type(argument) is ByValue:
        next(marks)
        return argument.tensor
    if type(argument) is list:
        return [_fill(part, marks) for part in argument]
    return argument


def _dtype_table(engine: Any) -> dict[int, torch.dtype]:
    """From c10::ScalarType's numbers to dtypes, asked of the bridge rather than copied."""
    table = {}
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some dtypes announce that they are experimental
        for dtype in dtypes:
            try:
                sample = torch.empty(0, dtype=dtype)
            except (RuntimeError, TypeError):
                continue  # sub-byte types: no tensor of them comes by
            table[lib.dtr_scalar_type_of(engine, ffi.cast("void *", sample._cdata))] = dtype
    return table
