"""CUDA graph capture under a budget.

A captured graph uses the addresses that it was given whenever it is replayed. So what is live
becomes resident before a capture begins and nothing is evicted during it; what a captured operator
touched stays where it is for good; and the graph's own memory, which PyTorch asks for in a private
pool, is part of the budget and is never evicted (graph/graph_capture.h, bridge/cuda_bridge.cpp).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from dtr_alloc.torch.escapes import replace


def install(runtime: Any) -> None:
    """Has the runtime told of captures, until escapes.uninstall(). Once."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end
    capturing: set[int] = set()

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        runtime.begin_capture()
        try:
            begin(self, *args, **kwargs)
        except BaseException:
            runtime.end_capture()
            raise
        capturing.add(id(self))

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            end(self, *args, **kwargs)
        finally:
            # Also where the capture failed. One that never began changed nothing.
            if id(self) in capturing:
                capturing.discard(id(self))
                runtime.end_capture()

    replace(graph, "capture_begin", capture_begin)
    replace(graph, "capture_end", capture_end)
