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
a function call would cost more than it says. For that reason, too, it runs ``func._op``, which is
all that calling ``func`` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from dtr_alloc.bridge import Bridge
from dtr_alloc.core import check, ffi, lib
from dtr_alloc.purity import READ, SCRATCH, Rule, rule_for

REPLAYABLE = lib.DTR_OP_REPLAYABLE
CONSTANT = lib.DTR_USE_CONSTANT
NEED_WORK = lib.DTR_NEED_WORK
HAS_FOREIGN = lib.DTR_HAS_FOREIGN
HAS_DROPPED = lib.DTR_HAS_DROPPED
MEASURED = -1  # the cost of an operator, for dtr_op_end: what the clock says

grad_enabled = torch.is_grad_enabled
_plain_numpy = torch._C.TensorBase.numpy  # that of Tensor is guarded (escapes.py)

BUFFER_NUMBERS = 4096
"""More than the single tensor arguments or results of any operator."""
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
_NO_KWARGS: dict[str, Any] = {}

# What an argument of a type is. Those of tensors are what goes into the buffer with an address.
_TENSOR, _PARAMETER, _PLAIN, _LIST = 0, CONSTANT, -1, -2


class _Kinds(dict[type, int]):
    """By type, so that an argument costs one look-up; types not seen before are added."""

    def __missing__(self, kind: type) -> int:
        if issubclass(kind, Parameter):
            self[kind] = _PARAMETER
        elif issubclass(kind, Tensor):
            self[kind] = _TENSOR
        elif issubclass(kind, list | tuple):
            self[kind] = _LIST
        else:
            self[kind] = _PLAIN
        return self[kind]


_kinds = _Kinds()


class ByValue(NamedTuple):
    """A tensor argument of a device that is not managed: kept whole."""

    tensor: Tensor


class RandomState(NamedTuple):
    """Where a generator stood when an operator first ran. (As bytes: they take less.)"""

    generator: torch.Generator
    state: bytes

    @classmethod
    def of(cls, generator: torch.Generator, bridge: Bridge) -> RandomState:
        return cls(generator, _plain_numpy(bridge.state_of(generator)).tobytes())

    def to_tensor(self) -> Tensor:
        return torch.frombuffer(bytearray(self.state), dtype=torch.uint8)


Closure = tuple[
    Callable[..., Any],  # the operator
    tuple[Any, ...],  # its arguments, TENSOR for a tensor
    dict[str, Any],  # and those by keyword
    RandomState | None,
    bool,  # grad mode; kernels look at it: oneDNN's RNN returns its workspace only in grad mode
]
"""What it takes to run an operator again, but for its tensors. A plain tuple: one with names takes
four times as long to make."""


def flatten(result: Any, out: list[Tensor | None]) -> None:
    """Appends the tensors of an operator's result in a fixed order; None where there is none."""
    if isinstance(result, Tensor):
        out.append(result)
    elif isinstance(result, list | tuple):
        for part in result:
            flatten(part, out)
    else:
        out.append(None)


def is_plain(types: Any) -> bool:
    """Whether none of the types has a dispatch of its own. (A tensor whose Python object was
    made anew by autograd is listed under torch.Tensor.)"""
    return all(kind.__torch_dispatch__ is Tensor.__torch_dispatch__ for kind in types)


_frames = torch._C._dynamo.eval_frame
_CODE_CAN_BE_MARKED = all(
    hasattr(_frames, name)
    for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
)


class Recorder(TorchDispatchMode):
    """The dispatch mode of one thread.

    The threads that autograd has for devices inherit the mode of the thread that called
    backward(), and several of them may run at once. An operator that comes by on such a thread is
    handed to a recorder of that thread's own.

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
        self._thread = get_ident()
        self._elsewhere: dict[int, Recorder] = {}  # by thread
        self._capturing = False
        self._rules: dict[int, Rule] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True wraps __torch_dispatch__ to keep torch.compile from compiling it, which costs a
        # microsecond per operator. Where its code can be marked instead, that costs nothing.
        return not _CODE_CAN_BE_MARKED

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and not is_plain(types):
            # A subclass with a dispatch of its own unwraps first; we see its inner operators.
            return NotImplemented
        if get_ident() != self._thread:
            return self.of_this_thread().__torch_dispatch__(func, types, args, kwargs)
        rule = self._rules.get(id(func))
        if rule is None:
            rule = self.rule(func)
        if rule.view:
            return func._op(*args, **kwargs) if kwargs else func._op(*args)
        if rule.hidden or (kwargs and not rule.scalars.issuperset(kwargs)):
            return self._general(rule, func, args, kwargs)

        buffer = self._buffer
        count = 0
        given = len(args)
        for position, use in rule.tensors:
            if position >= given:
                break  # left to its default
            argument = args[position]
            kind = _kinds[type(argument)]
            if kind >= 0:
                buffer[count] = argument._cdata | kind | use
                count += 1
            elif kind == _LIST:
                count = self._put_list(argument, use, count)
                buffer = self._buffer
        frame = self.frame
        flags = rule.replayable
        random = self._random_state(rule, args, kwargs) if rule.random and flags else None
        need = lib.dtr_op_begin(frame, count, flags, rule.key)
        if need:
            if need == HAS_DROPPED:
                self._runtime.drain()
            else:
                if need > 0:
                    lib.dtr_op_abort(frame, False)
                return self._general(rule, func, args, kwargs)
        try:
            result = func._op(*args, **kwargs) if kwargs else func._op(*args)
        except BaseException as error:
            lib.dtr_op_abort(frame, True)
            if isinstance(error, RuntimeError):
                self._runtime.explain(error)
            raise
        if type(result) is Tensor:
            buffer[0] = result._cdata
            op_id = lib.dtr_op_end(frame, 1, flags, MEASURED)
        elif args and result is args[0]:
            op_id = lib.dtr_op_end(frame, 0, flags, MEASURED)  # in place, on a parameter
        else:
            op_id = lib.dtr_op_end(frame, self._put_results(result), flags, MEASURED)
        if op_id > 0:
            if rule.lists:
                marked = tuple([_marked(argument) for argument in args])
            elif count == given < 16:
                marked = _ALL_TENSORS[count]
            else:
                marked = tuple([TENSOR if _kinds[type(a)] >= 0 else a for a in args])
            if kwargs and not count:
                kwargs = _where_it_ran(kwargs, result)
            self._closures[op_id] = (func, marked, kwargs or _NO_KWARGS, random, grad_enabled())
        elif op_id < 0:
            check(-op_id)
        return result

    def rule(self, func: Any) -> Rule:
        """How this recorder treats an operator."""
        rule = self._rules.get(id(func))
        if rule is None:
            rule = rule_for(func)
            if self._capturing:
                rule = replace(rule, replayable=False)
            self._rules[id(func)] = rule
        return rule

    def of_this_thread(self) -> Recorder:
        """This recorder on its own thread; on another one that inherited it, that thread's."""
        thread = get_ident()
        if thread == self._thread:
            return self
        if thread not in self._elsewhere:
            self._elsewhere[thread] = self._runtime.new_recorder()
        return self._elsewhere[thread]

    def capture(self, on: bool) -> None:
        """While a graph is captured no operator may be run again: see native/freeze.cpp."""
        self._capturing = on
        if not isinstance(self._rules, _Retired):
            self._rules = {}
        for other in list(self._elsewhere.values()):
            other.capture(on)

    def _general(self, rule: Rule, func: Any, args: Any, kwargs: Any) -> Any:
        """The whole road: tensors by keyword, hidden state, missing and foreign inputs."""
        kwargs = kwargs or _NO_KWARGS
        walk = _Walk(self, rule)
        walk.arguments(args, kwargs)
        frame = self.frame
        flags = int(rule.replayable)
        random = self._random_state(rule, args, kwargs) if rule.random and flags else None
        need = lib.dtr_op_begin(frame, walk.count, flags, rule.key)
        if need < 0:
            check(-need)
        started = False
        try:
            if need:
                flags &= self._meet(need, walk)
            started = True
            result = func._op(*args, **kwargs)
        except BaseException as error:
            lib.dtr_op_abort(frame, started)
            if isinstance(error, RuntimeError):
                self._runtime.explain(error)
            raise
        op_id = lib.dtr_op_end(frame, self._put_results(result), flags, MEASURED)
        if op_id > 0:
            closure_args, closure_kwargs = walk.template(args, kwargs)
            closure = (func, closure_args, closure_kwargs, random, grad_enabled())
            self._closures[op_id] = closure
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

    def _random_state(self, rule: Rule, args: Any, kwargs: Any) -> RandomState | None:
        """Where the generator stands that the operator will draw from, if it will."""
        at = rule.dropout
        if at >= 0 and (len(args) <= at or args[at] == 0):
            return None
        generator = kwargs.get("generator") if kwargs else None
        if generator is None:
            # A random operator without a tensor makes one, on the device that it is told.
            first = next((part for part in args if isinstance(part, Tensor)), None)
            device = first.device if first is not None else (kwargs or {}).get("device")
            generator = self._runtime.default_generator(device)
        return RandomState.of(generator, self._runtime.bridge)

    def reserve(self, count: int) -> None:
        """Sees to it that the frame's buffer holds so many numbers."""
        if count > self._capacity:
            self._capacity = max(2 * self._capacity, count)
            self._buffer = lib.dtr_frame_buffer(self.frame, self._capacity)

    def put(self, index: int, number: int) -> None:
        """Writes one number to the frame's buffer, which grows as needed."""
        self.reserve(index + 1)
        self._buffer[index] = number

    def _put_list(self, tensors: Any, use: int, count: int) -> int:
        """Writes the tensors of a list argument to the buffer; returns how many are there now."""
        entries = [
            part._cdata | kind | use for part in tensors if (kind := _kinds[type(part)]) >= 0
        ]
        end = count + len(entries)
        self.reserve(end + BUFFER_NUMBERS)  # room for all single arguments that may follow
        self._buffer[count:end] = entries
        return end

    def _put_results(self, result: Any) -> int:
        numbers = []
        if type(result) is tuple:
            numbers = [part._cdata for part in result if type(part) is Tensor]
        if not numbers or len(numbers) < len(result):
            tensors: list[Tensor | None] = []
            flatten(result, tensors)
            numbers = [0 if tensor is None else tensor._cdata for tensor in tensors]
        count = len(numbers)
        self.reserve(count)
        self._buffer[0:count] = numbers
        return count

    def is_innermost(self) -> bool:
        """Whether this is the mode of this thread that sees operators first."""
        depth = torch._C._len_torch_dispatch_stack()
        return depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is self

    def retire(self) -> None:
        """Lets every operator pass unrecorded from now on, on whatever thread this mode is."""
        self._rules = _Retired()
        for other in list(self._elsewhere.values()):
            other.retire()


def _where_it_ran(kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    """The arguments of an operator that was told its device (``"cuda"``) and not which: where it
    is run again, another one may be the current one."""
    device = kwargs.get("device")
    if device is None or device.index is not None or type(result) is not Tensor:
        return kwargs
    return {**kwargs, "device": result.device}


def _marked(argument: Any) -> Any:
    """An argument with its tensors replaced by marks."""
    kind = _kinds[type(argument)]
    if kind >= 0:
        return TENSOR
    return [_marked(part) for part in argument] if kind == _LIST else argument


def hide_from_compiler(function: Any) -> None:
    """Neither a recorder nor what it calls is for torch.compile to look at."""
    if _CODE_CAN_BE_MARKED:
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))


hide_from_compiler(Recorder.__torch_dispatch__)


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
        kind = _kinds[type(argument)]
        if kind == _LIST:
            for part in argument:
                self._argument(part, use)
        elif kind >= 0:
            self._recorder.put(self.count, argument._cdata | kind | use)
            self.tensors.append(argument)
            self.count += 1

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
        if kind >= 0:
            return self._by_value.get(next(indices), TENSOR)
        return argument


_in_thread = threading.local()


def in_new_thread(runtime: Any, run: Callable[[], None]) -> None:
    """Runs a thread's body with a recorder of its own."""
    _in_thread.recorder = runtime.new_recorder()
    runtime.thread_recorders.add(_in_thread.recorder)
    try:
        with _in_thread.recorder:
            run()
    finally:
        del _in_thread.recorder


def recorder_of_thread() -> Recorder | None:
    """The recorder that in_new_thread entered on this thread, if any."""
    return getattr(_in_thread, "recorder", None)
