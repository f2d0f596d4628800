"""Functions of C++ extensions, which access tensors by their addresses.

A function that an extension gives to Python without the dispatcher (pybind11, the C API) is not an
operator. While dtr_alloc is enabled, such functions of modules that link to PyTorch, and the
methods of their classes, have their tensor arguments resident while they run, whoever calls them
(builtin_functions.py). The engine sees a call as an operator that reads these tensors, so it knows
when they are needed, also in a step with a plan. Operators inside are recorded as usual. Their
results stay in memory until the function returns.

A function may overwrite its arguments. The first calls of a kind show which, before the engine sees
any. These arguments are constants from then on, and so are the results of such calls. The results
of other calls are constants, too, unless writes to results of operators are noticed, as on the CPU
(native/graph/contents.h). The results and overwritten arguments of a trusted function
(custom_operators.trust) are recomputed by calling it. A function whose arguments want gradients is
assumed to call operators only.
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import MethodDescriptorType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dtr_alloc.torch.custom_operators import declared
from dtr_alloc.torch.escapes import redirect, replace
from dtr_alloc.torch.live_objects import live_objects
from dtr_alloc.torch.session import Session

_OURS_AND_PYTORCHS = ("torch", "functorch", "dtr_alloc")
_Kind: TypeAlias = tuple[Any, ...]
_LOOKS = 3
"""The calls of a kind that are examined for overwritten arguments; and for writes outside of
operators."""


def install(runtime: Session) -> None:
    """Guards the functions of the present extensions, and of later ones, until escapes.uninstall().
    Once."""
    execute = ExtensionFileLoader.exec_module

    @functools.wraps(execute)
    def exec_module(self: ExtensionFileLoader, module: ModuleType) -> None:
        execute(self, module)
        if runtime.is_active:
            _guard_functions(runtime, module)

    replace(ExtensionFileLoader, "exec_module", exec_module)
    # torch.utils.cpp_extension.load() puts its own nowhere; gc.freeze() hides objects.
    for module in (*live_objects(ModuleType), *sys.modules.values()):
        _guard_functions(runtime, module)


def _guard_functions(runtime: Session, module: ModuleType) -> None:
    """Does nothing the second time."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if not isinstance(loader, ExtensionFileLoader):
        return
    package = module.__name__.partition(".")[0]
    if package in _OURS_AND_PYTORCHS or not _is_an_extension(loader.path):
        return
    guarded = functools.partial(_guarded, runtime, package)
    for owner in _with_submodules(module):
        for value in list(vars(owner).values()):
            if getattr(value, "__module__", None) != owner.__name__:
                continue
            redirect(runtime.bridge, value, guarded)
            for name, member in list(vars(value).items()) if isinstance(value, type) else ():
                if type(member) is MethodDescriptorType:
                    replace(value, name, guarded(member), runtime.bridge.set_member)
                else:  # pybind11's methods, static ones
                    redirect(runtime.bridge, getattr(member, "__func__", None), guarded)


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    """The module, and those that it defines itself."""
    yield module
    for value in vars(module).values():
        if isinstance(value, ModuleType) and value.__name__.startswith(module.__name__ + "."):
            yield from _with_submodules(value)


@functools.cache
def _is_an_extension(path: str) -> bool:
    """Whether a shared library, if it still exists, needs PyTorch's libraries. Inductor's do not
    count, as their graphs and kernels are recorded otherwise (compiled.py, kernels.py)."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            links = content.find(b"libc10.so") >= 0 or content.find(b"libtorch") >= 0
            return links and content.find(b"_TORCHINDUCTOR_") < 0
    except FileNotFoundError:
        return False


def _guarded(runtime: Session, package: str, function: Any) -> Callable[..., Any]:
    name = function.__name__
    operator = f"{package}::{name}"
    overwritten: dict[_Kind, set[int]] = defaultdict(set)
    """Positions of tensors among the arguments."""
    looks: Counter[_Kind] = Counter()
    watched: Counter[_Kind] = Counter()
    is_said = False

    def say() -> None:
        nonlocal is_said
        if not is_said:
            is_said = True
            print(
                f"dtr_alloc: {operator} is a function of an extension and no operator, so what it "
                "writes is never evicted. If it does the same whenever it is given the same, "
                f"DTR_ALLOC_TRUST={operator} has that evicted and computed again; "
                f'dtr_alloc.distrust("{operator}") spares you this line.',
                file=sys.stderr,
            )

    def managed(leaves: list[Any]) -> dict[int, Tensor]:
        return {
            at: leaf
            for at, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and runtime.handle(leaf)
        }

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        if not runtime.is_active or not runtime.recorder.sees(leaves):
            return function(*args, **kwargs)
        is_trusted = declared(package, name)
        kind = _kind(leaves)
        is_known = looks[kind] >= _LOOKS
        if not _wants_gradients(leaves) and (
            is_trusted or overwritten[kind] or not (is_known and runtime.notices_writes)
        ):
            return as_operator(leaves, spec, kind, is_known, is_trusted)

        pins: list[Any] = []

        def begin(tensors: list[Tensor]) -> list[Tensor]:
            pins.extend(map(runtime.pin_for_a_while, tensors))
            return []

        # Read at its begin and at its end: a plan does not reuse their addresses in between.
        reads = functools.partial(runtime.recorder.run, name=operator)
        given = list(managed(leaves).values())
        is_watched = is_trusted is None and runtime.notices_writes and watched[kind] < _LOOKS
        watched[kind] += is_watched
        writes = runtime.unseen_writes() if is_watched else 0
        try:
            runtime.pin_what_is_made(pins)
            reads(begin, given.copy())
            returned = function(*args, **kwargs)
            made = list(managed(tree_leaves(returned)).values())
            reads(lambda _: [], given + made)
        finally:
            pins.clear()
        if is_watched and runtime.unseen_writes() > writes:
            say()
        if not (is_trusted or runtime.notices_writes):
            for tensor in made:
                runtime.give_away(tensor)
        return returned

    def as_operator(
        leaves: list[Any], spec: Any, kind: _Kind, is_known: bool, is_trusted: bool | None
    ) -> Any:
        made: Any = None

        def call(leaves: list[Any]) -> list[Any]:
            nonlocal made
            args, kwargs = tree_unflatten(leaves, spec)
            results, made = tree_flatten(function(*args, **kwargs))
            return results

        run = functools.partial(runtime.recorder.run, name=operator)
        if is_known:
            results = run(call, leaves, mutated=overwritten[kind], constant=not is_trusted)
            if is_trusted is None and (overwritten[kind] or managed(results)):
                say()
            return tree_unflatten(results, made)

        tensors = set(managed(leaves))  # positions: a closure keeps no tensor alive
        after: dict[int, Tensor] | None = {}
        changed: list[int] | None = None

        def look(leaves: list[Any]) -> list[Any]:
            """Leaves the arguments as they were, and at first what they are to be in ``after``."""
            nonlocal after, changed
            if changed == []:
                return call(leaves)
            try:
                before = {at: leaves[at].data.clone() for at in tensors}
            except torch.OutOfMemoryError:
                if changed:
                    raise
                after = None
                return []
            results = call(leaves)
            differ = [at for at in tensors if not _same_bits(before[at], leaves[at])]
            if changed is None:
                changed = differ
                after = {at: leaves[at].data.clone() for at in differ}
            for at in differ:
                leaves[at].data.copy_(before[at])
            return results

        def write(given: list[Any]) -> list[Any]:
            for tensor, content in zip(given, (after or {}).values(), strict=True):
                tensor.data.copy_(content)
            return []

        looks[kind] += 1
        results = run(look, list(leaves), constant=not is_trusted)
        if after is None:
            overwritten[kind] |= tensors
            results = run(call, leaves, mutated=tensors, constant=True)
        elif after:
            overwritten[kind] |= after.keys()
            run(write, [leaves[at] for at in after], mutated=range(len(after)), constant=True)
            after = {}
        return tree_unflatten(results, made)

    _never_compiled(guarded)
    return guarded


def _kind(leaves: list[Any]) -> _Kind:
    """The kind of a call, by its arguments: calls of a kind overwrite the same ones."""
    return tuple(
        leaf if isinstance(leaf, bool | str | None) else getattr(leaf, "dtype", type(leaf))
        for leaf in leaves
    )


def _wants_gradients(leaves: list[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves
    )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.layout is not torch.strided or a.is_quantized:
        return False  # as far as we know
    plain = (each.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for each in (a, b))
    return torch.equal(*(each.view(torch.uint8) for each in plain))


def _never_compiled(function: Any) -> None:
    """Makes Dynamo skip a function, with all that it calls."""
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    both = dynamo._FrameExecStrategy(skip, skip)
    dynamo.set_code_exec_strategy(function.__code__, both)
    function._torchdynamo_disable = True
