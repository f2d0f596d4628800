"""Kernels of compiled graphs: a graph that is too large to be one operator runs as many.

Inductor's graph is a Python module that makes buffers and calls kernels and operators of PyTorch.
Operators come to the capture by themselves. The module's other functions are replaced by recorded
ones: each kernel is an operator, and so is each new buffer, because two kernels may each write a
part of it.

The module's source tells the buffers that a kernel overwrites, by the types of its arguments.

Upstream: torch/_inductor/codegen/wrapper.py, cpp_wrapper_cpu.py (the form of such a module);
torch/_inductor/async_compile.py, cpp_pybinding.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from typing import Any

from dtr_alloc.torch.recorder import Recorder

_INPUTS = re.compile(r"^    (?:    )?(\w[\w, ]*) = args$", re.MULTILINE)
_REUSE = re.compile(r" = .*?\b(\w+)\b[^;\n]*; del \1  # reuse")
_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\((\[.*?\])", re.MULTILINE)
_OTHER = re.compile(
    r"^\w+ = async_compile\.(?!cpp_pybinding\()\w+\("
    r"|\b(?:torch\.ops\.inductor\.\w+|inductor_ops\.\w+|alloc_from_pool)\(",
    re.MULTILINE,
)
_MAKES_BUFFERS = "empty_strided_cpu"
_IS_OPEN = "dtr_alloc_is_open"


def taken_over(source: str, part: str = "call") -> set[int]:
    """Positions of the inputs whose memory a graph, or a function for a part of it, reuses, by the
    module's source: saved activations that nobody else holds."""
    lists = _INPUTS.findall(source.rpartition(f"def {part}(args):")[2])
    lists = lists[-1:] if part == "call" else lists[:1]
    reused = set(_REUSE.findall(source))
    inputs = lists[-1].rstrip(", ").split(", ") if lists else []
    return {position for position, name in enumerate(inputs) if name in reused}


class Kernels:
    """The kernels of one graph.

    Args:
        module: the names of the graph's module.
        written: for each kernel the arguments that it writes.
        graph: its name.
    """

    def __init__(self, module: dict[str, Any], written: dict[str, set[int]], graph: str) -> None:
        self._module = module
        self._written = written
        self._graph = graph

    def open_up(self, current: Callable[[], Recorder | None]) -> None:
        """From now on each kernel is recorded, unless the graph itself is.

        Args:
            current: the recorder at a call; None: nothing is recorded.
        """
        # Graphs of the same code share a module.
        if _IS_OPEN in self._module:
            return
        opened: dict[str, Any] = {_IS_OPEN: True}
        for name, written in (*self._written.items(), (_MAKES_BUFFERS, set())):
            function = self._module[name]
            opened[name] = _recorded(function, f"{self._graph}.{name}", written, current)
        self._module.update(opened)  # all or none, if this is interrupted


def kernels_of(source: str, runner: Any, graph: str) -> Kernels | None:
    """The kernels of a graph, if all are for the CPU and called from Python; None for others, such
    as Triton's.

    Args:
        source: of the graph's module.
        runner: the object of the module that runs the graph, or None.
        graph: its name.
    """
    if runner is None or _OTHER.search(source) is not None:
        return None
    written = {
        name: {
            position
            for position, kind in enumerate(ast.literal_eval(types))
            if kind.endswith("*") and not kind.startswith("const ")
        }
        for name, types in _KERNEL.findall(source)
    }
    return Kernels(type(runner).call.__globals__, written, graph)


def _recorded(
    function: Callable[..., Any],
    name: str,
    written: set[int],
    current: Callable[[], Recorder | None],
) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*arguments: Any) -> Any:
        recorder = current()
        # Inside of a graph that is one operator nothing is seen.
        if recorder is None or not recorder.sees(arguments):
            return function(*arguments)
        return recorder.run(of_list, list(arguments), name=name, mutated=written)

    def of_list(arguments: list[Any]) -> Any:
        return function(*arguments)

    return recorded
