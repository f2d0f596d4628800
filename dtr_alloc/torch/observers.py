"""Observers of operators: PyTorch's profilers and its execution trace.

They run before an operator, and read the addresses of evicted tensors. An exception there would
break their records. So while one is on, an evicted storage has an address without memory
(native/bridge/torch_bridge.cpp): reading the address works, and using memory there ends the
process. Writers meet an exception as usual.

Upstream: torch/autograd/profiler.py, torch/autograd/profiler_legacy.py and
torch/profiler/profiler.py begin and end with these functions of C alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C import _autograd, _profiler

from dtr_alloc.torch.escapes import redirect
from dtr_alloc.torch.session import Session

_KINDS = (
    (_autograd, "profiler"),
    (_autograd, "profiler_legacy"),
    (_profiler, "execution_trace_observer"),
)


def install(runtime: Session) -> None:
    """Counts observers, until escapes.uninstall()."""
    observe = runtime.bridge.count_observers

    def beginning(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def begin(*args: Any, **kwargs: Any) -> Any:
            observe(1)  # first: the profiler of Python's frames reads at once
            try:
                return function(*args, **kwargs)
            except BaseException:
                observe(-1)
                raise

        return begin

    def ending(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                observe(-1)

        return end

    for module, kind in _KINDS:
        for verb, counted in (("enable", beginning), ("disable", ending)):
            redirect(runtime.bridge, getattr(module, f"_{verb}_{kind}", None), counted)
    observe(0)
