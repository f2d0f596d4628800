"""The op recorder: sees every operator call and tells the engine of it.

One call, in order (the engine's side is in native/frame.cpp):

1. The tensor arguments' addresses go into the frame's buffer; ``dtr_op_begin`` locks their
   storages. It answers 0 nearly always: everything is resident and the operator may run.
2. Otherwise what is missing is rematerialized first (dtr_alloc/replay.py).
3. The operator runs. Its allocations may evict others, in C++.
4. ``dtr_op_end`` gets the results and unlocks. If a result can be recomputed, it returns the id
   under which the closure is kept here until the engine says that nothing needs it.

A closure holds no tensor of the job: tensor arguments become the mark TENSOR, and the engine
knows which storage, dtype, shape and strides stood there.

This module is the hot path: a call costs a few microseconds, so it repeats itself a little where
a function call would cost more than it says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from dtr_alloc.core import check, ffi, lib
from dtr_alloc.purity import READ, SCRATCH, Rule, rule_for

REPLAYABLE = lib.DTR_OP_REPLAYABLE
CONSTANT = lib.DTR_USE_CONSTANT
NEED_WORK = lib.DTR_NEED_WORK
HAS_FOREIGN = lib.DTR_HAS_FOREIGN
HAS_DROPPED = lib.DTR_HAS_DROPPED

grad_enabled = torch.is_grad_enabled
_plain_numpy = torch._C.TensorBase.numpy  # that of Tensor is guarded (escapes.py)

BUFFER_NUMBERS = 4096
BY_VALUE_BYTES = 65536
"""Arguments on other devices up to this size are kept in the closure; beyond it, the results of
the operator are constants."""


class _Tensor:
    """The mark of a tensor argument in a closure."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "TENSOR"


TENSOR = _Tensor()
_ALL_TENSORS = tuple((TENSOR,) * count for count in range(16))

_PLAIN, _TENSOR, _PARAMETER, _LIST, _DICT = range(5)
_kinds: dict[type, int] = {
    Tensor: _TENSOR,
    Parameter: _PARAMETER,
    list: _LIST,
    tuple: _LIST,
    dict: _DICT,
}


def _kind_of(kind: type) -> int:
    """How to treat an argument of a type not seen before."""
    if issubclass(kind, Parameter):
        found = _PARAMETER
    elif issubclass(kind, Tensor):
        found = _TENSOR
    elif issubclass(kind, list | tuple):
        found = _LIST
    else:
        found = _PLAIN
    _kinds[kind] = found
    return found


class ByValue(NamedTuple):
    """A tensor argument of a device that is not managed: kept whole."""

    tensor: Tensor


class RandomState(NamedTuple):
    """Where a generator stood when an operator first ran. (As bytes: a tensor would be taken out
    of the budget.)"""

    generator: torch.Generator
    state: bytes

    @classmethod
    def of(cls, generator: torch.Generator) -> RandomState:
        return cls(generator, _plain_numpy(generator.get_state()).tobytes())

    def to_tensor(self) -> Tensor:
        return torch.frombuffer(bytearray(self.state), dtype=torch.uint8)


class Closure(NamedTuple):
    """What it takes to run an operator again, but for its tensors."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState | None
    grad: bool  # kernels look at it: oneDNN's RNN returns its workspace only in grad mode


def flatten(result: Any, out: list[Tensor | None]) -> None:
    """Appends the tensors of an operator's result in a fixed order; None where there is none."""
    if isinstance(result, Tensor):
        out.append(result)
    elif isinstance(result, list | tuple):
        for part in result:
            flatten(part, out)
    else:
        out.append(None)


def _all_plain(types: Any) -> bool:
    """Whether none of the types has a dispatch of its own. (A tensor whose Python object was
    made anew by autograd is listed under torch.Tensor.)"""
    return all(kind.__torch_dispatch__ is Tensor.__torch_dispatch__ for kind in types)


class Recorder(TorchDispatchMode):
    """The dispatch mode of one thread.

    Args:
        runtime: holds the engine, the closures and the replayer that all threads share.
    """

    def __init__(self, runtime: Any) -> None:
        super().__init__()
        self._runtime = runtime
        self._closures = runtime.closures
        frame = ffi.new("dtr_frame **")
        check(lib.dtr_frame_create(runtime.engine, frame))
        self.frame = ffi.gc(frame[0], lib.dtr_frame_destroy)
        self._buffer = lib.dtr_frame_buffer(self.frame, BUFFER_NUMBERS)
        self._capacity = BUFFER_NUMBERS
        self._rules: dict[int, Rule] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and not _all_plain(types):
            # A subclass with a dispatch of its own unwraps first; we see its inner operators.
            return NotImplemented
        rule = self._rules.get(id(func))
        if rule is None:
            rule = self._rules[id(func)] = rule_for(func)
        if rule.view:
            return func(*args, **kwargs) if kwargs else func(*args)
        if kwargs or not rule.plain or rule.random:
            return self._general(rule, func, args, kwargs or {})

        buffer = self._buffer
        count = 0
        for argument in args:
            kind = _kinds.get(type(argument))
            if kind == _TENSOR:
                buffer[count] = argument._cdata
                count += 1
            elif kind == _PARAMETER:
                buffer[count] = argument._cdata | CONSTANT
                count += 1
            elif kind is None or kind == _LIST:
                return self._general(rule, func, args, {})
        frame = self.frame
        flags = rule.replayable
        need = lib.dtr_op_begin(frame, count, flags)
        if need:
            if need == HAS_DROPPED:
                self._runtime.drain()
            else:
                lib.dtr_op_abort(frame) if need > 0 else None
                return self._general(rule, func, args, {})
        try:
            result = func(*args)
        except BaseException as error:
            lib.dtr_op_abort(frame)
            if isinstance(error, torch.OutOfMemoryError):
                self._runtime.explain(error)
            raise
        if type(result) is Tensor:
            buffer[0] = result._cdata
            op_id = lib.dtr_op_end(frame, 1, flags)
        else:
            op_id = lib.dtr_op_end(frame, self._put_results(result), flags)
        if op_id > 0:
            self._closures[op_id] = Closure(
                func,
                _ALL_TENSORS[count]
                if count == len(args) < 16
                else tuple([TENSOR if _kinds[type(a)] else a for a in args]),
                {},
                None,
                grad_enabled(),
            )
        elif op_id < 0:
            check(-op_id)
        return result

    def _general(self, rule: Rule, func: Any, args: Any, kwargs: Any) -> Any:
        """The whole road: keyword arguments, lists, mutation, randomness, missing inputs."""
        walk = _Walk(self, rule)
        walk.arguments(args, kwargs)
        frame = self.frame
        flags = int(rule.replayable)
        random = self._random_state(rule, walk, kwargs) if rule.random and flags else None
        need = lib.dtr_op_begin(frame, walk.count, flags)
        if need < 0:
            check(-need)
        try:
            if need:
                flags &= self._meet(need, walk)
            result = func(*args, **kwargs)
        except BaseException as error:
            lib.dtr_op_abort(frame)
            if isinstance(error, torch.OutOfMemoryError):
                self._runtime.explain(error)
            raise
        op_id = lib.dtr_op_end(frame, self._put_results(result), flags)
        if op_id > 0:
            closure_args, closure_kwargs = walk.template(args, kwargs)
            self._closures[op_id] = Closure(
                func, closure_args, closure_kwargs, random, grad_enabled()
            )
        elif op_id < 0:
            check(-op_id)
        return result

    def _meet(self, need: int, walk: _Walk) -> int:
        """Does what dtr_op_begin asked for; returns the flags that the operator keeps."""
        flags = REPLAYABLE
        if need & HAS_DROPPED:
            self._runtime.drain()
        if need & HAS_FOREIGN and not walk.keep_foreign(self._runtime.device_type):
            flags = 0
        if need & NEED_WORK:
            self._runtime.replayer.prepare(self.frame)
        return flags

    def _random_state(self, rule: Rule, walk: _Walk, kwargs: Any) -> RandomState | None:
        generator = kwargs.get("generator") or self._runtime.default_generator(walk.first_device())
        return RandomState.of(generator)

    def put(self, index: int, number: int) -> None:
        """Writes one number to the frame's buffer, which grows as needed."""
        if index >= self._capacity:
            self._capacity *= 2
            self._buffer = lib.dtr_frame_buffer(self.frame, self._capacity)
        self._buffer[index] = number

    def _put_results(self, result: Any) -> int:
        tensors: list[Tensor | None] = []
        flatten(result, tensors)
        for index, tensor in enumerate(tensors):
            self.put(index, 0 if tensor is None else tensor._cdata)
        return len(tensors)

    def is_innermost(self) -> bool:
        """Whether this is the mode of this thread that sees operators first."""
        depth = torch._C._len_torch_dispatch_stack()
        return depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is self

    def retire(self) -> None:
        """Lets every operator pass unrecorded from now on, on whatever thread this mode is."""
        self._rules = _Retired()


class _Retired(dict[int, Rule]):
    """A table of rules in which every operator is one that passes through."""

    def get(self, key: int, default: Any = None) -> Any:
        return _PASS


_PASS = replace(rule_for(torch.ops.aten.alias.default), view=True)


class _Walk:
    """One pass over an operator's arguments, in the order that a replay repeats."""

    def __init__(self, recorder: Recorder, rule: Rule) -> None:
        self._recorder = recorder
        self._rule = rule
        self.count = 0
        self.tensors: list[Tensor] = []
        self._by_value: dict[int, ByValue] = {}

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        uses = self._rule.uses
        if self._rule.hidden and self._training(args, kwargs):
            uses = {**uses, **dict.fromkeys(self._rule.hidden, SCRATCH)}
        for name, argument in zip(self._rule.positions, args, strict=False):
            self._argument(argument, uses.get(name, READ))
        for name, argument in kwargs.items():
            self._argument(argument, uses.get(name, READ))

    def _training(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        named = dict(zip(self._rule.positions, args, strict=False)) | kwargs
        # _batch_norm_with_update has no such argument: it always trains.
        return bool(named.get("training", named.get("train", True)))

    def _argument(self, argument: Any, use: int) -> None:
        kind = _kinds.get(type(argument))
        if kind is None:
            kind = _kind_of(type(argument))
        if kind == _LIST:
            for part in argument:
                self._argument(part, use)
        elif kind in (_TENSOR, _PARAMETER):
            entry = argument._cdata | use
            self._recorder.put(self.count, entry | CONSTANT if kind == _PARAMETER else entry)
            self.tensors.append(argument)
            self.count += 1

    def first_device(self) -> torch.device | None:
        return self.tensors[0].device if self.tensors else None

    def keep_foreign(self, device_type: str) -> bool:
        """Copies small arguments of other devices; False if one is too large to keep."""
        for index, tensor in enumerate(self.tensors):
            if tensor.device.type == device_type:
                continue
            if tensor.device.type == "meta" or tensor.nbytes > BY_VALUE_BYTES:
                return False
            self._by_value[index] = ByValue(tensor.detach().clone())
        return True

    def template(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with their tensors replaced by marks."""
        indices = iter(range(self.count))
        positional = tuple([self._mark(argument, indices) for argument in args])
        return positional, {name: self._mark(value, indices) for name, value in kwargs.items()}

    def _mark(self, argument: Any, indices: Iterator[int]) -> Any:
        kind = _kinds[type(argument)]
        if kind == _LIST:
            return [self._mark(part, indices) for part in argument]
        if kind in (_TENSOR, _PARAMETER):
            return self._by_value.get(next(indices), TENSOR)
        return argument


_in_thread = threading.local()


def in_new_thread(runtime: Any, run: Callable[[], None]) -> None:
    """Runs a thread's body with a recorder of its own."""
    _in_thread.recorder = Recorder(runtime)
    runtime.thread_recorders.add(_in_thread.recorder)
    try:
        with _in_thread.recorder:
            run()
    finally:
        del _in_thread.recorder


def recorder_of_thread() -> Recorder | None:
    """The recorder that in_new_thread entered on this thread, if any."""
    return getattr(_in_thread, "recorder", None)
