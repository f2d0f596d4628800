"""The op recorder's Python half: rules, interception, and operators that Python implements.

Operators are captured and repeated in C++ (native/bridge/capture.cpp, repeat.h). Python adds:

- *Rules.* When the capture first meets an operator, it asks for the operator's rule
  (dtr_alloc/torch/op_rules.py).
- *Interception.* Operators reach the capture by a dispatch key that each thread includes. If
  PyTorch uses that key itself, they reach it by a dispatch mode (InterceptionMode). A mode costs
  more, and is visible to code of PyTorch that asks for modes.
- *Calls.* A Python function of tensors may count as one operator, such as a compiled graph. It is
  repeated by another call.

The capture calls Python by operators of the library ``dtr_alloc`` that are implemented here. So
PyTorch converts arguments, takes the GIL, and carries exceptions through C++ in both directions.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from dtr_alloc.core import error_of, lib
from dtr_alloc.costs import operator_key, signed
from dtr_alloc.torch import custom_operators
from dtr_alloc.torch.bridge import Bridge, Composite
from dtr_alloc.torch.op_rules import (
    OFTEN_PASSING,
    PINNING_COMPOSITES,
    WHOLE_COMPOSITES,
    WHOLE_WITHOUT_GRADIENT,
    Rule,
    rule_for,
)
from dtr_alloc.torch.threads import EachThread

_KEY = torch._C._dispatch_key_parse("Fake")
_INSIDE_KEY = torch._C._dispatch_key_parse("TESTING_ONLY_GenericWrapper")
_SECOND_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode"))
_NO_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
_KERNELS = torch._C._dispatch_keyset_full_after(_KEY) - torch._C.DispatchKeySet(
    torch._C.DispatchKey.Python
)
ABOVE_KERNELS = torch._C._dispatch_keyset_full() - _KERNELS
"""Excluded to run operators as kernels only."""

_COMPOSITES = {
    Composite.PINNED: PINNING_COMPOSITES,
    Composite.WHOLE: WHOLE_COMPOSITES,
    Composite.WHOLE_WITHOUT_GRADIENT: WHOLE_WITHOUT_GRADIENT,
}


class _Mark:
    """Stands for a tensor among the arguments that a call keeps."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "TENSOR"


TENSOR = _Mark()


@dataclass(frozen=True, slots=True)
class _Call:
    """A function that runs as one operator.

    Attributes:
        function: takes a list of arguments, which it may empty.
        kept: the arguments, with TENSOR for each tensor.
    """

    function: Callable[[list[Any]], Any]
    kept: list[Any]


class _FirstRun:
    """The first run of a call. The capture calls it.

    Attributes:
        begun: whether the capture has it, and will report that its call is no longer needed.
        returned: its result.
    """

    __slots__ = ("_function", "_given", "begun", "returned")

    def __init__(self, function: Callable[[list[Any]], Any], given: list[Any]) -> None:
        self._function = function
        self._given = given
        self.begun = False
        self.returned: Any = None

    def __call__(self) -> bytes:
        """The addresses of its results, 0 for other values than tensors."""
        self.begun = True
        given, self._given = self._given, []
        self.returned = self._function(given)
        parts = [0 if part is None else part._cdata for part in _parts(self.returned)]
        return struct.pack(f"={len(parts)}q", *parts)


class InterceptionMode(TorchDispatchMode):
    """Intercepts the operators of one thread if PyTorch uses the dispatch key itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(kind.__torch_dispatch__ is Tensor.__torch_dispatch__ for kind in types):
            # A subclass with a dispatch of its own unwraps first; its inner operators come by.
            return NotImplemented
        # Of the keys above it, a mode leaves all excluded.
        included = torch._C._dispatch_tls_local_include_set() | _SECOND_KEYS
        excluded = torch._C._dispatch_tls_local_exclude_set() - _SECOND_KEYS
        with torch._C._ForceDispatchKeyGuard(included, excluded):
            return func._op(*args, **(kwargs or {}))


class _Thread(threading.local):
    """A thread's state: the mode that it has entered."""

    mode: InterceptionMode | None = None


class Recorder:
    """The recorder of a process.

    Args:
        bridge: to PyTorch.
        device_type: ``"cpu"`` or ``"cuda"``.

    Attributes:
        rules: of the operators so far, in the order of their first calls.
        by_mode: whether a dispatch mode feeds the capture.
        explain: raises the error of a Python heuristic, if it failed on this thread; takes the
            message of the resulting error.
        drain_log: writes the pending part of the op log.
        meet_operator: is called when an operator is met for the first time.
    """

    def __init__(self, bridge: Bridge, device_type: str) -> None:
        self.rules: list[Rule] = []
        self.explain: Callable[[str], None] = _nothing
        self.drain_log: Callable[[], None] = _nothing
        self.meet_operator: Callable[[], None] = _nothing
        self._bridge = bridge
        self._calls: dict[int, _Call] = {}
        self._said: set[int] = set()
        self._keys: dict[str, int] = {}
        self._numbers = count(1)
        self._views: bool | None = None  # whether they come by
        self._thread = _Thread()
        self._rules_lock = threading.Lock()
        self._each_thread = EachThread(self._enter, self._leave)
        _define(self)
        self.by_mode = not bridge.register_capture(device_type, by_mode=False)
        if self.by_mode:
            bridge.register_capture(device_type, by_mode=True)
        else:
            _let_higher_order_operators_pass()
        if device_type == "cpu":  # where what their kernels use can be evicted
            for kind, composites in _COMPOSITES.items():
                bridge.watch_composites(_names(composites), kind)
        operators = torch.ops.dtr_alloc
        self._materialize = operators.materialize.default._handle.redispatch_boxed
        self._materialize_all = operators.materialize_all.default._handle.redispatch_boxed
        self._settle = operators.settle.default._handle.redispatch_boxed
        self._settle_all = operators.settle_all.default._handle.redispatch_boxed
        self._lend = operators.lend.default._handle.redispatch_boxed
        self._keep_inside = operators.keep_inside.default._handle.redispatch_boxed
        self._run_trial = operators.run_trial.default._handle.redispatch_boxed
        self._run = operators.run.default._handle.redispatch_boxed

    # ---- capture ----

    def start(self, views: bool) -> None:
        """Records the operators of all threads (dtr_alloc/torch/threads.py).

        Args:
            views: whether the capture also sees operators that need no data: for op logs.
        """
        if self._views != views:  # other threads may run operators in the meantime
            self._bridge.let_pass([] if views else _operators_that_pass())
            self._views = views
        self._bridge.capture(True)
        self._each_thread.start()

    def stop(self) -> None:
        """The reverse of start(). Later operators of other threads pass unrecorded."""
        self._bridge.capture(False)
        self._each_thread.stop()
        self._leave()

    def _enter(self) -> None:
        if not self.by_mode:
            self._bridge.include_thread(True)
        elif self._thread.mode is None:
            self._thread.mode = InterceptionMode()
            self._thread.mode.__enter__()

    def _leave(self) -> None:
        if not self.by_mode:
            self._bridge.include_thread(False)
        elif (mode := self._thread.mode) is not None:
            self._thread.mode = None
            mode.__exit__(None, None, None)

    def can_stop(self) -> bool:
        """Whether start() can be undone on this thread now."""
        if not self.by_mode:
            return True
        depth = torch._C._len_torch_dispatch_stack()
        return depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is self._thread.mode

    # ---- calls of the runtime ----

    def bring_back(self, handle: int) -> None:
        """Makes a storage resident, given by its address."""
        self._materialize(_NO_KEYS, handle)

    def bring_back_all(self) -> None:
        """Makes every live evicted storage resident."""
        self._materialize_all(_NO_KEYS)

    def settle(self, tensor: Tensor) -> None:
        """Computes the dependents of a tensor, as before an operator that overwrites it."""
        self._settle(_NO_KEYS, tensor._cdata | lib.DTR_USE_MUTATE)

    def settle_all(self, tensors: Iterable[Tensor]) -> None:
        """The same for several, as before one operator that overwrites them all."""
        self._settle_all(_NO_KEYS, [tensor._cdata for tensor in tensors])

    def keep_inside(self, tensor: Tensor) -> bool:
        """Keeps a tensor resident until the operator on this thread ends, and whenever that runs
        again, if other operators run inside of it, as in one that Python implements; returns
        whether they do."""
        return is_inside() and self._keep_inside(_NO_KEYS, tensor._cdata)

    def lend(self, generator: torch.Generator) -> None:
        """Restores the present state of a generator at the end of the operator that runs again on
        this thread, if one does."""
        if is_inside():
            self._lend(_NO_KEYS, generator)

    def sees(self, arguments: Sequence[Any]) -> bool:
        """Whether the capture would see operators on these arguments on this thread: not inside of
        another operator, and not on tensors with a dispatch of their own."""
        if is_inside() or not (
            self.by_mode or torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
        ):
            return False
        if torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY) or (
            torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
        ):
            return False
        for value in arguments:
            kind = type(value)
            if kind is Tensor or not isinstance(value, Tensor):
                continue
            if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
                return False
        return True

    def run(
        self,
        function: Callable[[list[Any]], Any],
        arguments: list[Any],
        name: str,
        mutated: Container[int] = (),
        judged: bool = False,
        constant: bool = False,
    ) -> Any:
        """Runs a function of tensors as one operator, and returns its result.

        Args:
            function: takes a list of arguments and may empty it. With the same values it must give
                the same results. It may neither keep its arguments nor use other tensors, unless
                they stay unchanged.
            arguments: tensors, and other values, which are kept. Emptied, so that the function can
                release them.
            name: in costs, logs and messages.
            mutated: positions of tensors that it overwrites.
            judged: whether its results are constants if an operator inside is not repeated.
            constant: whether it is not repeated: its results, and its overwritten arguments, are
                constants.
        """
        self._bridge.forget_dropped(self._calls)
        number = next(self._numbers)
        kept = list(arguments)
        entries = []
        for position, value in enumerate(arguments):
            if isinstance(value, Tensor):
                kept[position] = TENSOR
                use = lib.DTR_USE_MUTATE if position in mutated else lib.DTR_USE_READ
                entries.append(value._cdata | use)
        first = _FirstRun(function, list(arguments))
        arguments.clear()
        key = self._key_of(name)
        try:
            self._calls[number] = _Call(function, kept)
            self._run(_NO_KEYS, number, id(first), entries, key, judged, constant)
        except BaseException:
            if not first.begun:
                self._calls.pop(number, None)
            try:
                self._bridge.raise_kept(number)
            except BaseException as kept:
                raise kept from None
            raise
        return first.returned

    def _key_of(self, name: str) -> int:
        key = self._keys.get(name)
        if key is None:
            unsigned = operator_key(name)
            self._bridge.set_name(unsigned, name)
            key = self._keys[name] = signed(unsigned)
        return key

    def forget_calls(self) -> None:
        """After the engine was reset: nothing is repeated any more."""
        self._calls.clear()

    # ---- calls of the capture ----

    def decide(self, name: str, overload: str) -> list[int]:
        """The rule of an operator, as numbers."""
        rule = rule_for(_overload(name, overload))
        self.meet_operator()
        with self._rules_lock:
            self.rules.append(rule)
            number = len(self.rules) - 1
        return rule.numbers(number)

    def not_repeated_inside(self, number: int) -> None:
        """Reports, once, the operator, by the number of its rule, that makes a graph's results
        constants."""
        rule = self.rules[number]
        if rule.key not in self._said:
            self._said.add(rule.key)
            print(
                f"dtr_alloc: a compiled graph calls {rule.name}, which {rule.because}: what such "
                "graphs give is never evicted",
                file=sys.stderr,
            )

    def try_again(self, trial: int) -> str:
        """Runs a tried operator again; returns the name of its error, or ""."""
        try:
            self._run_trial(_NO_KEYS, trial)
        except Exception as error:
            return type(error).__name__
        return ""

    def execute(self, number: int, tensors: list[Tensor | None]) -> list[Tensor | None]:
        """Runs a call again, with these tensors."""
        call = self._calls[number]
        rebuilt = iter(tensors)
        arguments = [next(rebuilt) if value is TENSOR else value for value in call.kept]
        return _parts(call.function(arguments))


@functools.cache
def _operators_that_pass() -> list[tuple[str, str]]:
    """Names and overloads of unrecorded operators that jobs call often."""
    found = []
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        namespace, _, base = name.partition("::")
        if (
            namespace == "aten"
            and base in OFTEN_PASSING
            and rule_for(_overload(name, overload)).passes
        ):
            found.append((name, overload))
    return found


def _names(composites: Iterable[str]) -> list[tuple[str, str]]:
    """The names of aten's operators apart from their overloads."""
    parts = (f"aten::{name}".partition(".") for name in composites)
    return [(name, overload) for name, _, overload in parts]


def _overload(name: str, overload: str) -> OpOverload:
    """The operator of a name such as ``aten::add`` and an overload, ``""`` for the first one."""
    namespace, _, base = name.partition("::")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    return found


def _parts(results: Any) -> list[Tensor | None]:
    """The results of a call, with None for other values than tensors."""
    parts = results if isinstance(results, list | tuple) else [results]
    return [part if isinstance(part, Tensor) else None for part in parts]


def is_inside() -> bool:
    """Whether this thread runs an operator inside of which others run."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(_INSIDE_KEY)


def _nothing(*_: Any) -> None:
    pass


_libraries: list[Any] = []


def _define(recorder: Recorder) -> None:
    """The operators that the capture calls; native/bridge/capture.cpp implements others.

    A torch.library.Library would be destroyed when the interpreter begins to end, and handlers of
    atexit, daemon threads and ``__del__`` run operators after that. So they stay for good.
    """
    while _libraries:
        _libraries.pop().reset()  # of a recorder whose making was interrupted
    library = torch._C._dispatch_library("FRAGMENT", "dtr_alloc", "", __file__)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    _libraries.append(library)

    def implement(schema: str, function: Callable[..., Any]) -> None:
        library.define(schema)
        library.impl(schema.partition("(")[0], "CompositeImplicitAutograd", function)

    def fail(status: int, message: str) -> None:
        raise error_of(status, message)

    implement("decide(str name, str overload) -> int[]", recorder.decide)
    implement("execute(int call, Tensor?[] tensors) -> Tensor?[]", recorder.execute)
    implement("fail(int status, str message) -> ()", fail)
    implement("try_again(int trial) -> str", recorder.try_again)
    implement("failed_trial(str name, str fault) -> ()", custom_operators.failed_trial)
    implement("not_repeated_inside(int number) -> ()", recorder.not_repeated_inside)
    implement("explain(str message) -> ()", lambda message: recorder.explain(message))
    implement("drain_log() -> ()", lambda: recorder.drain_log())


def _let_higher_order_operators_pass() -> None:
    """Operators with functions as arguments (flex_attention, cond) look for a Python kernel at
    every included key, and find none at ours. The operators that they call are captured by
    themselves.

    Upstream: torch/_ops.py, HigherOrderOperator.dispatch.
    """
    from torch import _ops

    for operator in _ops._higher_order_ops.values():
        operator.fallthrough(_KEY)
    # Those that are made later begin with these.
    _ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)
