"""torch.compile and the recorder: neither is the other's business."""

from __future__ import annotations

import torch
from harness import checked_session
from torch import Tensor
from torch._dynamo.utils import counters


def scaled(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu().sum()


def test_a_compiled_function_does_not_compile_the_recorder() -> None:
    """It runs as it is; a recorder that is traced would not record."""
    compiled = torch.compile(scaled, backend="eager")
    counters.clear()
    with checked_session():
        x = torch.linspace(-1, 1, 4096).reshape(64, 64).requires_grad_()
        result = compiled(x)
        result.backward()
        assert not counters["frames"], "a frame was compiled under the recorder"
        assert torch.equal(result, scaled(x))
        assert x.grad is not None
