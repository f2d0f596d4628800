"""torch.compile: what graphs gave is computed again, with the numbers that they drew."""

import importlib.util

import pytest
import torch
from bits import assert_recomputes, profiled, same_bits
from own_process import DEVICE, own_process
from torch import nn

import dtr_alloc

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not here"
)


def compiled_layers(count):
    """Layers with dropout, each a graph of its own."""
    torch.manual_seed(1)
    layers = [
        nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1)).to(DEVICE)
        for _ in range(count)
    ]
    return nn.Sequential(*(torch.compile(layer) for layer in layers))


@own_process(cuda_only="triton", gpu_only="triton")
def test_what_a_graph_gave_is_computed_again():
    (layer,) = compiled_layers(1)
    x = torch.randn(1024, 512).to(DEVICE)
    with torch.no_grad():
        layer(x)
        assert_recomputes(lambda: layer(x))


@own_process(cuda_only="triton", gpu_only="triton")
def test_compiled_layers_train_to_the_same_bits_under_a_budget():
    torch.use_deterministic_algorithms(True)
    model = compiled_layers(8)
    x = torch.randn(4096, 512).to(DEVICE)

    def gradients():
        torch.manual_seed(2)
        model.zero_grad()
        _, shape = profiled(lambda: model(x).square().sum().backward())
        return [parameter.grad.clone() for parameter in model.parameters()], shape

    gradients()  # compiles; what libraries keep for good is there from now on
    expected, shape = gradients()
    dtr_alloc.set_budget(shape.budget(0.7) + sum(p.nbytes for p in expected))
    before = dtr_alloc.stats()["rematerializations"]
    got, _ = gradients()
    assert dtr_alloc.stats()["rematerializations"] > before
    assert all(same_bits(a, b) for a, b in zip(expected, got, strict=True))
