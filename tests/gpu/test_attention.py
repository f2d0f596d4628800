"""Every implementation of scaled_dot_product_attention repeats itself, dropout and all."""

import pytest
import torch
from bits import assert_recomputes, same_bits
from own_process import DEVICE, own_process
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import dtr_alloc

BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16


def attend(q, k, v, backend, dropout):
    """Skips the test where this implementation is not there for the device."""
    try:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            pytest.skip(f"{backend} is not available here")
        raise


def heads(seed):
    """Query, key and value (2, 4, 128, 64) as results of operators."""
    torch.manual_seed(seed)
    x = torch.randn(2, 4, 128, 64).to(DEVICE, DTYPE)
    weights = [torch.nn.Parameter(torch.randn(64, 64).to(DEVICE, DTYPE) / 8) for _ in range(3)]
    return weights, [x @ weight for weight in weights]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("backend", BACKENDS)
@own_process(gpu_only="attention kernels")
def test_the_output_is_computed_again(backend, dropout):
    _, (q, k, v) = heads(1)
    with torch.no_grad():
        assert_recomputes(lambda: attend(q.detach(), k.detach(), v.detach(), backend, dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("backend", BACKENDS)
@own_process(gpu_only="attention kernels")
def test_gradients_through_evicted_tensors_are_the_same(backend, dropout):
    torch.use_deterministic_algorithms(True)

    def gradients(evict):
        weights, parts = heads(2)
        torch.manual_seed(3)
        out = attend(*parts, backend, dropout)
        after = out * 2
        if evict:
            for tensor in (*parts, out):
                dtr_alloc.evict(tensor)
        try:
            after.square().sum().backward()
        except RuntimeError as error:
            if "deterministic" in str(error):
                pytest.skip(f"{backend} has no deterministic backward here")
            raise
        # Not every implementation saves what it was given: reading brings back the rest.
        return [*(weight.grad for weight in weights), *parts, out]

    before = dtr_alloc.stats()["rematerializations"]
    expected, got = gradients(evict=False), gradients(evict=True)
    assert all(same_bits(a, b) for a, b in zip(expected, got, strict=True))
    assert dtr_alloc.stats()["rematerializations"] > before
