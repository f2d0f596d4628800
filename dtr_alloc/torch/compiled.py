"""Compiled graphs: how what torch.compile made of a region is recorded.

Inductor's graphs, of the forward and of the backward pass, are functions of their inputs: they
allocate their results past the dispatcher and launch kernels on bare addresses. There are two ways:

- *As one operator* (Recorder.run), without a limit, and for graphs of Triton's kernels. The graph's
  inputs are brought back first; its results, saved activations among them, can be evicted, and are
  computed again by calling the graph again. It costs what one operator costs, but all that the
  graph holds at a time must fit into the budget.
- *Kernel by kernel* (dtr_alloc/torch/kernels.py), under a budget: so a graph can be larger than the
  budget, and what comes back is what is needed and no more.

Random numbers that a graph draws by operators are drawn again (native/bridge/draws.h). Operators of
custom libraries that it calls are tried as elsewhere (native/bridge/trial.h). If one of them is not
repeated, neither is the graph: what it gives is a constant.

Backends that run operators one by one (eager, aot_eager) need none of this.

Upstream: torch/_inductor/output_code.py, CompiledFxGraph: called with a list, which it empties;
source_code; mutated_input_idxs; compiled_fn_runner.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dtr_alloc.config import Budget
from dtr_alloc.torch.kernels import Kernels, kernels_of, taken_over
from dtr_alloc.torch.recorder import Recorder
from dtr_alloc.torch.session import Session

_MODULE = "torch._inductor.output_code"
_IS_HOOKED = "dtr_alloc_is_hooked"

_runtime: Session | None = None


def start(runtime: Session) -> None:
    """Has the graphs recorded that inductor has compiled and will compile, until stop()."""
    global _runtime
    _runtime = runtime
    if (module := sys.modules.get(_MODULE)) is not None:
        _hook(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def stop() -> None:
    """From now on graphs run as they are."""
    global _runtime
    _runtime = None


def _current() -> Recorder | None:
    return None if _runtime is None else _runtime.recorder


class _Finder(importlib.abc.MetaPathFinder):
    """Hooks inductor when it is imported, which takes seconds, so most jobs never do it."""

    _is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        if self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_and_hook(module: ModuleType) -> None:
                execute(module)
                _hook(module)

            spec.loader.exec_module = exec_and_hook  # type: ignore[method-assign]
        return spec


def _hook(module: ModuleType) -> None:
    kind: Any = module.CompiledFxGraph
    plain_call = kind.__call__
    if hasattr(plain_call, _IS_HOOKED):
        return

    @functools.wraps(plain_call)
    def recorded_call(graph: Any, inputs: Any) -> Any:
        if _runtime is None or not _runtime.recorder.sees(inputs):
            return plain_call(graph, inputs)
        known: _Graph | None = getattr(graph, "_dtr_alloc", None)
        if known is None:
            known = graph._dtr_alloc = _study(graph)
        if known.kernels is not None and _runtime.config.budget != Budget():
            known.kernels.open_up(_current)
            return plain_call(graph, inputs)

        return _runtime.recorder.run(
            functools.partial(plain_call, graph),
            inputs,
            name=known.name,
            mutated=known.overwritten,
            judged=True,
        )

    setattr(recorded_call, _IS_HOOKED, True)
    kind.__call__ = recorded_call


@dataclass(frozen=True, slots=True)
class _Graph:
    """What its source tells of a graph.

    Attributes:
        name: the same for the same graph in every process: costs are kept by it.
        overwritten: positions of the inputs that hold something else after a call.
        kernels: its kernels, if they can be recorded one by one.
    """

    name: str
    overwritten: frozenset[int]
    kernels: Kernels | None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # It is of this process: a copy of the graph in PyTorch's caches has None in its place.
        return type(None), ()


def _study(graph: Any) -> _Graph:
    name = f"inductor::{graph.cache_key or 'graph'}"
    source = graph.source_code or ""
    return _Graph(
        name,
        frozenset(graph.mutated_input_idxs) | taken_over(source),
        kernels_of(source, graph.compiled_fn_runner, name),
    )
