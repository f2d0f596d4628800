"""Compiled graphs: what torch.compile made of a region is one operator to the recorder.

Inductor's graphs, of the forward and of the backward pass, are functions of their inputs: they
allocate their results past the dispatcher and launch kernels on bare addresses. So each call of one
is recorded as a whole (Recorder.run): its inputs are brought back first, its results, saved
activations among them, can be evicted, and are computed again by calling the graph again. Random
numbers that it draws by operators are drawn again (native/bridge/draws.h).

A graph that calls operators of others, whose schemas nobody vouches for, is not called again: what
it gives is a constant. That is said once for each such library.

Backends that run operators one by one (eager, aot_eager) need none of this.

Upstream: torch/_inductor/output_code.py, CompiledFxGraph: called with a list, which it empties;
source_code; mutated_input_idxs.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dtr_alloc.purity import NAMESPACES
from dtr_alloc.recorder import Recorder

_MODULE = "torch._inductor.output_code"
_CALLED = re.compile(r"\btorch\.ops\.(\w+)\.")
_KNOWN = NAMESPACES | {"inductor", "mkldnn"}
"""Namespaces of operators that give the same again on the same arguments."""

_recorder: Recorder | None = None
_is_hooked = False
_said: set[str] = set()


def start(recorder: Recorder) -> None:
    """Has the graphs recorded that inductor has compiled and will compile, until stop()."""
    global _recorder, _is_hooked
    _recorder = recorder
    if _is_hooked:
        return
    _is_hooked = True
    if (module := sys.modules.get(_MODULE)) is not None:
        _hook(module)
    else:
        sys.meta_path.insert(0, _Finder())


def stop() -> None:
    """From now on graphs run as they are."""
    global _recorder
    _recorder = None


class _Finder(importlib.abc.MetaPathFinder):
    """Hooks inductor when it is imported, which takes seconds, so most jobs never do it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_and_hook(module: ModuleType) -> None:
                execute(module)
                _hook(module)

            spec.loader.exec_module = exec_and_hook  # type: ignore[method-assign]
        return spec


def _hook(module: ModuleType) -> None:
    kind: Any = module.CompiledFxGraph
    call = kind.__call__

    @functools.wraps(call)
    def recorded_call(graph: Any, inputs: Any) -> Any:
        recorder = _recorder
        if recorder is None or not recorder.sees(inputs):
            return call(graph, inputs)
        return recorder.run(
            functools.partial(call, graph),
            inputs,
            name=f"inductor::{_key_of(graph)}",
            mutated=graph.mutated_input_idxs,
            replayable=_is_functional(graph),
        )

    kind.__call__ = recorded_call


def _key_of(graph: Any) -> str:
    """The same for the same graph in every process: costs are kept by it."""
    return str(getattr(graph, "cache_key", None) or "graph")


def _is_functional(graph: Any) -> bool:
    """Whether calling the graph again gives the same."""
    known: bool | None = getattr(graph, "_dtr_alloc_is_functional", None)
    if known is None:
        others = set(_CALLED.findall(graph.source_code or "")) - _KNOWN
        for namespace in sorted(others - _said):
            _said.add(namespace)
            print(
                f"dtr_alloc: a compiled region calls torch.ops.{namespace}, which may not be "
                "repeated: what the region gives stays in memory",
                file=sys.stderr,
            )
        known = graph._dtr_alloc_is_functional = not others
    return known
