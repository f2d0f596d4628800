"""CuPy on the same heap, under the same budget."""

import importlib.util

import pytest
import torch
from bits import MIB
from own_process import DEVICE, own_process

import dtr_alloc

pytestmark = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not here")

SCALE = r"""
extern "C" __global__ void scale(float* x, float by, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] *= by;
}
"""


def enabled_cupy():
    """CuPy, on our heap from now on."""
    import cupy

    import dtr_alloc.cupy

    dtr_alloc.cupy.enable()
    return cupy


@own_process(cuda_only="CuPy", gpu_only="CuPy")
def test_a_raw_kernel_works_on_memory_of_the_heap():
    cupy = enabled_cupy()
    before = dtr_alloc.stats()["allocated_bytes"]
    x = cupy.arange(MIB, dtype=cupy.float32)
    assert dtr_alloc.stats()["allocated_bytes"] >= before + 4 * MIB
    kernel = cupy.RawKernel(SCALE, "scale")
    kernel((MIB // 256,), (256,), (x, cupy.float32(3), cupy.int32(MIB)))
    assert bool((x == 3 * cupy.arange(MIB, dtype=cupy.float32)).all())
    del x
    assert dtr_alloc.stats()["allocated_bytes"] <= before + MIB


@own_process(cuda_only="CuPy", gpu_only="CuPy")
def test_a_cupy_array_evicts_tensors_that_can_be_computed_again():
    cupy = enabled_cupy()
    base = torch.ones(2 * MIB, device=DEVICE)
    dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 64 * MIB)
    made = [base * index for index in range(7)]
    before = dtr_alloc.stats()["evictions"]
    x = cupy.full(8 * MIB, 5, dtype=cupy.float32)
    assert dtr_alloc.stats()["evictions"] > before
    assert bool((x == 5).all())
    del x
    assert all(bool((tensor == index).all()) for index, tensor in enumerate(made))


@own_process(cuda_only="CuPy", gpu_only="CuPy")
def test_what_does_not_fit_is_cupys_own_out_of_memory_error():
    cupy = enabled_cupy()
    torch.ones(1, device=DEVICE)
    dtr_alloc.set_budget(dtr_alloc.stats()["allocated_bytes"] + 64 * MIB)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.zeros(64 * MIB, dtype=cupy.float32)
    assert float(cupy.ones(MIB, dtype=cupy.float32).sum()) == MIB


@own_process(cuda_only="CuPy", gpu_only="CuPy")
def test_a_tensor_that_cupy_reads_is_resident_and_pinned():
    cupy = enabled_cupy()
    made = torch.ones(MIB, device=DEVICE) * 2
    assert dtr_alloc.evict(made)
    array = cupy.from_dlpack(made)
    assert dtr_alloc.is_resident(made)
    assert not dtr_alloc.evict(made)
    assert bool((array == 2).all())


@own_process(cuda_only="CuPy", gpu_only="CuPy")
def test_a_kernel_on_cupys_own_stream_is_waited_for():
    cupy = enabled_cupy()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(MIB, dtype=cupy.float32)
        for _ in range(100):
            x += 1
        del x
    other = torch.full((MIB,), -1.0, device=DEVICE)
    stream.synchronize()
    assert bool((other == -1).all())
