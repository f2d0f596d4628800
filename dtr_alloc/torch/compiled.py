"""Records the graphs of torch.compile.

Inductor's graphs, of the forward and of the backward pass, are functions of their inputs: they
allocate their results without the dispatcher and launch kernels on bare addresses. There are two
ways:

- *As one operator* (Recorder.run), without a limit, and for graphs of Triton's kernels. The graph's
  inputs are brought back first; its results, saved activations among them, can be evicted, and are
  recomputed by calling the graph again. This costs as much as one operator, but all memory of the
  graph must fit into the budget at once.
- *Kernel by kernel* (dtr_alloc/torch/kernels.py), under a budget: a graph can be larger than the
  budget, and only necessary contents come back.

Random numbers that a graph draws by operators are drawn again (native/bridge/draws.h). Its
operators of custom libraries are tried as elsewhere (native/bridge/trial.h). If one of them is not
repeated, neither is the graph: its results are constants.

In CUDA graph trees (``mode="reduce-overhead"``) that holds for the parts of a graph that they
capture. What a replay gives and overwrites is captured (native/graph/graph_capture.h).

Backends that run operators one by one (eager, aot_eager, cudagraphs) need none of this.

Upstream: torch/_inductor/output_code.py, CompiledFxGraph: called with a list, which it empties;
source_code; mutated_input_idxs; compiled_fn_runner; cudagraph_post_compile and
cudagraph_partition_post_compile, which call cudagraphify of compile_fx.py.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
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
    """Records inductor's present and future graphs, until stop()."""
    global _runtime
    _runtime = runtime
    if (module := sys.modules.get(_MODULE)) is not None:
        _hook(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def stop() -> None:
    """Graphs run unrecorded."""
    global _runtime
    _runtime = None


def _current() -> Recorder | None:
    return None if _runtime is None else _runtime.recorder


class _Finder(importlib.abc.MetaPathFinder):
    """Hooks inductor when it is imported. The import takes seconds, and most jobs never make it."""

    _is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE or self._is_looking:
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
        if isinstance(graph.current_callable, _InGraphTrees):
            overwritten = [inputs[at] for at in _known(graph).overwritten]
            if overwritten:  # also between its parts, where nobody records it
                _runtime.recorder.settle_all(overwritten)
            return plain_call(graph, inputs)
        return _record(_known(graph), functools.partial(plain_call, graph), inputs)

    for name in ("cudagraph_post_compile", "cudagraph_partition_post_compile"):
        setattr(module, name, _records_in_graph_trees(getattr(module, name)))
    setattr(recorded_call, _IS_HOOKED, True)
    kind.__call__ = recorded_call


class _InGraphTrees(functools.partial):  # type: ignore[type-arg]
    """What calls a graph whose parts CUDA graph trees record and replay."""


def _records_in_graph_trees(post_compile: Callable[..., None]) -> Callable[..., None]:
    """Hands CUDA graph trees parts of a graph that record themselves, where they are warmed up,
    captured, or run without a graph. The trees are no operator."""

    @functools.wraps(post_compile)
    def hooked(examples: Any, graph: Any, cudagraphs: Any, *rest: Any) -> None:
        compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
        known = _known(graph)
        plain = compile_fx.cudagraphify

        def cudagraphify(part: Any, *args: Any, mutated_input_idxs: Any = (), **kwargs: Any) -> Any:
            name = getattr(part, "__name__", "call")
            own = dataclasses.replace(
                known,
                name=f"{known.name}.{name}",
                overwritten=frozenset(mutated_input_idxs) | taken_over(graph.source_code, name),
            )
            kwargs["mutated_input_idxs"] = mutated_input_idxs
            return plain(functools.partial(_record, own, part), *args, **kwargs)

        compile_fx.cudagraphify = cudagraphify
        try:
            post_compile(examples, graph, cudagraphs, *rest)
        finally:
            compile_fx.cudagraphify = plain
        if cudagraphs:
            graph.current_callable = _InGraphTrees(graph.current_callable)

    return hooked


def _record(known: _Graph, function: Callable[[Any], Any], inputs: Any) -> Any:
    """Runs a graph, or a part of one, as what is known of it says."""
    if _runtime is None or not _runtime.recorder.sees(inputs):
        return function(inputs)
    if known.kernels is not None and _runtime.config.budget != Budget():
        known.kernels.open_up(_current)
        return function(inputs)
    return _runtime.recorder.run(
        function, inputs, name=known.name, mutated=known.overwritten, judged=True
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph, by its source.

    Attributes:
        name: the same in every process, as costs are kept by it.
        overwritten: positions of the inputs that a call overwrites.
        kernels: if they can be recorded one by one.
    """

    name: str
    overwritten: frozenset[int]
    kernels: Kernels | None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # It is of this process: a copy of the graph in PyTorch's caches has None in its place.
        return type(None), ()


def _known(graph: Any) -> _Graph:
    known: _Graph | None = getattr(graph, "_dtr_alloc", None)
    if known is None:
        known = graph._dtr_alloc = _study(graph)
    return known


def _study(graph: Any) -> _Graph:
    name = f"inductor::{graph.cache_key or 'graph'}"
    source = graph.source_code or ""
    return _Graph(
        name,
        frozenset(graph.mutated_input_idxs) | taken_over(source),
        kernels_of(source, graph.compiled_fn_runner, name),
    )
