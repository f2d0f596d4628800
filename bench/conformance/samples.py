"""Samples of PyTorch's own database of operators, and whether two outcomes have the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.complex64)


def name_of(op: Any) -> str:
    return f"{op.name}-{op.variant_test_name}" if op.variant_test_name else op.name


def dtypes_of(op: Any) -> tuple[torch.dtype, ...]:
    """Those of DTYPES that an operator takes on the CPU; if none, the first that it does."""
    supported = op.supported_dtypes("cpu")
    usual = tuple(dtype for dtype in DTYPES if dtype in supported)
    return usual or tuple(sorted(supported, key=str)[:1])


def seed() -> None:
    """Makes the same samples come."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def samples_of(op: Any, dtype: torch.dtype, requires_grad: bool, most: int) -> list[Any]:
    seed()
    differentiable = dtype.is_floating_point or dtype.is_complex
    grad = requires_grad and op.supports_autograd and differentiable
    return list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), most))


def copied(part: Any) -> Any:
    """A tensor in other memory: ours, within a session. Anything else as it is."""
    if not isinstance(part, Tensor):
        return part
    return part.detach().clone().requires_grad_(part.requires_grad)


def fresh(sample: Any) -> Any:
    """The same sample, its tensors copied."""
    return sample.transform(copied)


def bytes_of(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.to_dense()
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8)


def difference(expected: Any, got: Any) -> str | None:
    """What differs, in words."""
    if isinstance(expected, Exception) or isinstance(got, Exception):
        same = type(expected) is type(got)
        return None if same else f"{expected!r} in plain PyTorch, {got!r} here"
    if not isinstance(expected, Tensor):
        return None if expected == got or expected != expected else f"{expected} is {got}"
    if (expected.shape, expected.dtype, expected.layout) != (got.shape, got.dtype, got.layout):
        return f"{expected.shape} {expected.dtype} is {got.shape} {got.dtype}"
    if expected.layout not in (torch.strided, torch.sparse_coo) or expected.is_quantized:
        return None
    if expected.layout == torch.strided and expected.stride() != got.stride():
        return f"strides {expected.stride()} are {got.stride()}"
    wrong = int((bytes_of(expected) != bytes_of(got)).sum()) if expected.numel() else 0
    return f"{wrong} bytes differ" if wrong else None


def outcome(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gives, or its exception."""
    try:
        return run(*args, **kwargs)
    except Exception as error:
        return error
