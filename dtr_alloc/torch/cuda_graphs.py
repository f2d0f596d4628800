"""CUDA graph capture under a budget.

A captured graph uses the same addresses in each replay. So all live contents become resident before
a capture begins, and nothing is evicted during it. Tensors of captured operators stay where they
are for good. The graph's own memory, which PyTorch requests in a private pool, is part of the
budget and never evicted (graph/graph_capture.h, bridge/cuda_bridge.cpp).

The graph holds the capture's owner, whose destructor ends the capture. So it ends with the graph at
the latest, also after an interrupt.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from dtr_alloc.core import ffi, lib
from dtr_alloc.torch.escapes import replace
from dtr_alloc.torch.session import Session


def install(runtime: Session) -> None:
    """Reports captures to the runtime, until escapes.uninstall(). Once."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        owner = ffi.gc(ffi.new("dtr_capture_owner *"), lib.dtr_end_capture)
        try:
            runtime.begin_capture(owner)
            begin(self, *args, **kwargs)
            self._dtr_capture = owner
        except BaseException:
            lib.dtr_end_capture(owner)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> None:
        # Also where the capture failed. One that never began changed nothing.
        owner = getattr(self, "_dtr_capture", None)
        try:
            end(self, *args, **kwargs)
        finally:
            if owner is not None:
                lib.dtr_end_capture(owner)

    replace(graph, "capture_begin", capture_begin)
    replace(graph, "capture_end", capture_end)
