"""A chain of 10,000 layers trains in the room of 200."""

from __future__ import annotations

import gc

import pytest
import torch
from harness import assert_same_bits, one_thread  # noqa: F401
from torch import Tensor

import dtr_alloc

LAYERS = 10_000
ROOM = 200
ELEMENTS = 16_384  # 64 KiB of float32 a layer


def train_chain(layers: int) -> tuple[list[Tensor], Tensor]:
    """One SGD step of x = tanh(x * w_i), each layer with its own weight; weights and loss."""
    generator = torch.Generator().manual_seed(0)
    scales = 1 + 0.01 * torch.randn(layers, generator=generator)
    weights = [scale.clone().requires_grad_() for scale in scales]
    optimizer = torch.optim.SGD(weights, lr=1e-3, foreach=False)
    x = torch.randn(ELEMENTS, generator=generator)
    for weight in weights:
        x = torch.tanh(x * weight)
    loss = x.square().mean()
    loss.backward()
    optimizer.step()
    return weights, loss.detach()


def state_of(weights: list[Tensor], loss: Tensor) -> dict[str, Tensor]:
    """The loss, the weights and their gradients."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return {"loss": loss, "weights": torch.stack(weights), "gradients": torch.stack(gradients)}


@pytest.mark.long
def test_ten_thousand_layers_under_a_budget_of_two_hundred() -> None:
    """The same bits, with work in proportion to the chain: at this budget (twice the square root
    of the length) each operator is repeated a small number of times, and no record remains."""
    reference = state_of(*train_chain(LAYERS))
    assert len(reference["gradients"]) == LAYERS
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        kept = train_chain(LAYERS)
        idle_bytes = dtr_alloc.stats()["allocated_bytes"]
    assert_same_bits(reference, state_of(*kept), "the deep chain without a budget")
    del kept
    gc.collect()

    budget = idle_bytes + ROOM * 4 * ELEMENTS
    with dtr_alloc.session(budget=budget, device="cpu"):
        dtr_alloc.reset_peak_stats()
        before = dtr_alloc.stats()
        kept = train_chain(LAYERS)
        after = dtr_alloc.stats()
        dtr_alloc.check_invariants()
    assert_same_bits(reference, state_of(*kept), "the deep chain under a budget")
    assert after["peak_allocated_bytes"] <= budget
    repeated = after["rematerializations"] - before["rematerializations"]
    assert LAYERS / 2 < repeated < 12 * LAYERS
    assert after["evictions"] - before["evictions"] < 24 * LAYERS
    assert after["live_records"] - before["live_records"] < 8 * LAYERS


def test_a_long_dead_chain_is_rebuilt_without_recursion() -> None:
    """One tensor whose whole history is evicted: 20,000 operators deep."""
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        x = torch.linspace(-1, 1, 256)
        # Kept while it grows: a dead history that outweighs its tensor would be cut.
        history = [x]
        for _ in range(LAYERS):
            history.append(history[-1] * 1.01)
            history.append(torch.tanh(history[-1]))
        x = history.pop()
        del history
        expected = x.tolist()
        assert dtr_alloc.evict(x)
        assert x.tolist() == expected
        dtr_alloc.check_invariants()
        before = dtr_alloc.stats()["rematerializations"]
        assert x.tolist() == expected
        assert dtr_alloc.stats()["rematerializations"] == before
