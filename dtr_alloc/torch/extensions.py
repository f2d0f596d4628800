"""Functions of C++ extensions, which read and write tensors by their addresses.

A function that an extension gives to Python past the dispatcher (pybind11, the C API) is no
operator. While dtr_alloc is enabled, those of modules that link to PyTorch, and the methods of
their classes, are replaced by functions that have the tensors of their arguments resident while
they run. For the engine such a
call is an operator that reads them, so that it knows when they are needed, in a step with a plan,
too. The operators inside are recorded as ever.

The call may write to what it returns, whatever operator made that. On the CPU this is noticed
(native/graph/contents.h); elsewhere what it returns is never computed again, but for functions that
are trusted (custom_operators.trust) to call operators only.
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dtr_alloc.torch.custom_operators import word_on
from dtr_alloc.torch.escapes import replace
from dtr_alloc.torch.live_objects import live_objects

_OURS_AND_PYTORCHS = ("torch", "functorch", "dtr_alloc")
_METHODS = ("method_descriptor", "instancemethod")
"""The C API's and pybind11's."""


def install(runtime: Any) -> None:
    """Guards the functions of the extensions that are imported, and of those that will be, until
    escapes.uninstall(). Once."""
    execute = ExtensionFileLoader.exec_module

    @functools.wraps(execute)
    def exec_module(self: ExtensionFileLoader, module: ModuleType) -> None:
        execute(self, module)
        if runtime.is_active:
            _guard_functions(runtime, module)

    replace(ExtensionFileLoader, "exec_module", exec_module)
    # torch.utils.cpp_extension.load() puts its own nowhere; gc.freeze() hides objects.
    modules = {id(each): each for each in (*live_objects(ModuleType), *sys.modules.values())}
    guards: dict[int, Any] = {}
    for module in modules.values():
        guards |= _guard_functions(runtime, module)
    if guards:
        for module in modules.values():
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in guards:
                    replace(module, name, guards[id(value)])  # from extension import function


def _guard_functions(runtime: Any, module: ModuleType) -> dict[int, Any]:
    """The guards, by the ids of the functions, which stay alive in them."""
    guards: dict[int, Any] = {}
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if not isinstance(loader, ExtensionFileLoader):
        return guards
    package = module.__name__.partition(".")[0]
    if package in _OURS_AND_PYTORCHS or not _links_to_pytorch(loader.path):
        return guards
    for owner in _with_submodules(module):
        for name, value in list(vars(owner).items()):
            if getattr(value, "__module__", None) != owner.__name__:
                continue
            if isinstance(value, BuiltinFunctionType):
                guards[id(value)] = _guarded(runtime, value, package, name)
                replace(owner, name, guards[id(value)])
            elif isinstance(value, type):
                _guard_methods(runtime, value, package)
    return guards


def _guard_methods(runtime: Any, kind: type, package: str) -> None:
    for name, value in list(vars(kind).items()):
        guarded: Any
        if type(value).__name__ in _METHODS:
            guarded = _guarded(runtime, value, package, name)
        elif isinstance(value, staticmethod) and isinstance(value.__func__, BuiltinFunctionType):
            guarded = staticmethod(_guarded(runtime, value.__func__, package, name))
        else:
            continue
        replace(kind, name, guarded, runtime.bridge.set_member)


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    """The module, and those that it defines itself."""
    yield module
    for value in vars(module).values():
        if isinstance(value, ModuleType) and value.__name__.startswith(module.__name__ + "."):
            yield from _with_submodules(value)


@functools.cache
def _links_to_pytorch(path: str) -> bool:
    """Whether a shared library, if it is still there, names PyTorch's among those that it needs."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return content.find(b"libc10.so") >= 0 or content.find(b"libtorch") >= 0
    except FileNotFoundError:
        return False


def _guarded(
    runtime: Any, function: Callable[..., Any], package: str, name: str
) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        given = _tensors((args, kwargs))
        if not runtime.is_active or not runtime.recorder.sees(given):
            return function(*args, **kwargs)
        tensors = [tensor for tensor in given if runtime.handle(tensor)]
        pins: list[Any] = []

        def read(tensors: list[Tensor]) -> list[Tensor]:
            pins.extend(map(runtime.pin_for_a_while, tensors))
            return []

        runtime.recorder.run(read, tensors, f"{package}::{name}")
        try:
            returned = function(*args, **kwargs)
        finally:
            pins.clear()
        if not (runtime.notices_writes or word_on(package, name)):
            for tensor in _tensors(returned):
                runtime.give_away(tensor)
        return returned

    return _never_compiled(guarded)


def _never_compiled(function: Any) -> Any:
    """With all that it calls."""
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    both = dynamo._FrameExecStrategy(skip, skip)
    dynamo.set_code_exec_strategy(function.__code__, both)
    function._torchdynamo_disable = True
    return function


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
