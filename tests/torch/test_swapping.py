"""Jobs whose parameters and optimizer states are larger than the budget, and evictions verified."""

import warnings

import pytest
import torch
from harness import MIB, assert_equal, checked_session, evicted
from torch import Tensor, nn

import dtr_alloc

WIDTH = 512
LAYERS = 6
BUDGET = 10 * MIB  # the parameters and Adam's states alone take 18


def train(steps: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)
    x, y = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        (net(x) - y).square().mean().backward()
        optimizer.step()
    states = [part for state in optimizer.state.values() for part in state.values()]
    return [tensor.detach() for tensor in (*net.parameters(), *states)]


def test_a_job_larger_than_the_budget_trains_with_the_same_bits() -> None:
    """What it cannot compute again waits in host memory; without that it is out of memory."""
    expected = train()
    with pytest.raises(torch.OutOfMemoryError), dtr_alloc.session(budget=BUDGET, device="cpu"):
        train()
    with checked_session(BUDGET, swap="1GiB"):
        got = train()
        stats = dtr_alloc.stats()
    assert stats["peak_reserved_bytes"] <= BUDGET
    assert stats["swapped_out_bytes"] > 0
    assert stats["host_bytes"] > 0
    assert_equal(expected, got)


def test_evicting_and_reading_a_parameter_by_hand() -> None:
    with checked_session(swap="64MiB"):
        weight = nn.Parameter(torch.arange(4096.0))
        assert weight.sum().item() == 4095 * 4096 / 2
        assert evicted(weight).tolist()[4095] == 4095
        assert evicted(weight).detach().numpy()[4095] == 4095
        assert not dtr_alloc.evict(weight), "its address was given away"


def test_verify_names_the_operator_that_does_not_repeat_itself(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("DTR_ALLOC_DEBUG", "verify:1")
    runs = [0.0]

    def faulty(x: Tensor) -> Tensor:
        runs[0] += 1
        return torch.full_like(x, runs[0])

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it replaces a kernel
        library.impl("cos", faulty, "CPU")
    request.addfinalizer(library._destroy)
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        x = torch.rand(1000)
        good, bad = x.sin(), x.cos()
        assert dtr_alloc.evict(good)
        assert good.sum().isfinite()
        assert dtr_alloc.evict(bad)
        with pytest.raises(dtr_alloc.StateError, match=r"aten::cos.*4000 bytes.*deterministic"):
            bad.sum()
        dtr_alloc.check_invariants()
        monkeypatch.delenv("DTR_ALLOC_DEBUG")
        del bad
