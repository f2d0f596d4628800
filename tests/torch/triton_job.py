"""A kernel of Triton, interpreted on the CPU: in triton_op, and in a function that runs as one
operator (test_custom_operators.py)."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

import dtr_alloc


@triton.jit
def doubled_into(x, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(out + places, tl.load(x + places, mask=inside) * 2, mask=inside)


@triton_op("dtr_triton::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(doubled_into)[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


@dtr_alloc.run_as_operator
def launched(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    doubled_into[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


with dtr_alloc.session("unlimited", device="cpu"):
    for double in (doubled, launched):
        x = torch.linspace(-1, 1, 1000).sin()
        expected = (x * 2).clone()
        result = double(x)
        assert dtr_alloc.evict(result), dtr_alloc.why_kept(result)
        assert torch.equal(result, expected)
    # By itself it is no operator, so the engine cannot run it again.
    doubled_into[(4,)](x, result, x.numel(), BLOCK=256)
    assert not dtr_alloc.evict(result)
print("done")
