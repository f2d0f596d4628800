"""Jobs in processes whose address space is limited, as by ulimit -v: the same bits as without, and
clear errors where it is too little. PyTorch itself takes about 0.6 GiB."""

import hashlib
import os
import resource
from typing import Any

import pytest
import torch
from harness import MIB, call, told_by

import dtr_alloc

GIB = 2**30

pytestmark = pytest.mark.skipif(
    os.environ.get("DTR_ALLOC_BUILD") == "sanitize", reason="sanitizers need terabytes of addresses"
)


def enable(budget: str, limit_gib: float | None) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    if limit_gib is not None:
        resource.setrlimit(resource.RLIMIT_AS, (int(limit_gib * GIB),) * 2)
    dtr_alloc.enable(budget, device="cpu")


def train(budget: str, limit_gib: float | None) -> dict[str, Any]:
    """The counters, and what the parameters are."""
    enable(budget, limit_gib)
    torch.manual_seed(0)
    weight = torch.randn(4 << 20, requires_grad=True)  # 16 MiB
    optimizer = torch.optim.SGD([weight], lr=1e-6)
    activation = weight
    for _ in range(70):
        activation = (activation * 0.9).sin()
    activation.sum().backward()
    optimizer.step()
    del activation
    dtr_alloc.check_invariants()
    stats = dtr_alloc.stats()
    dtr_alloc.disable()
    return {**stats, "bits": hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()}


@pytest.fixture(scope="module")
def without_a_limit() -> dict[str, Any]:
    found: dict[str, Any] = told_by(train, "unlimited", None)
    return found


def test_a_budget_of_a_gibibyte_works_in_four(without_a_limit):
    got = told_by(train, "1GiB", 4)
    assert got["bits"] == without_a_limit["bits"]
    assert got["budget_bytes"] == GIB
    assert without_a_limit["peak_allocated_bytes"] > GIB >= got["peak_reserved_bytes"]
    assert got["evictions"] > 0


def test_without_a_budget_what_the_system_grants_is_one(without_a_limit):
    got = told_by(train, "unlimited", 1.3)
    assert got["bits"] == without_a_limit["bits"]
    assert got["evictions"] > 0


def budget_of(share: str, limit_gib: float) -> list[int]:
    enable(share, limit_gib)
    return [dtr_alloc.stats()["budget_bytes"], dtr_alloc.stats()["total_bytes"]]


def test_a_share_is_of_what_the_process_may_have():
    assert told_by(budget_of, "50%", 2) == [GIB, 2 * GIB]


def take(budget: str, limit_gib: float, size_bytes: int) -> None:
    enable(budget, limit_gib)
    torch.empty(size_bytes, dtype=torch.uint8)


def test_an_error_names_the_limit_that_stands_in_the_way():
    done = call(take, "4GiB", 1.5, 2 * GIB, status=1)
    said = done.stderr[done.stderr.index("OutOfMemoryError") :]
    assert "mmap of 2.0 GiB" in said
    assert "the address space of the process is limited to 1.5 GiB" in said
    assert "Raise the budget" not in said


def raise_budgets() -> None:
    seed = torch.arange(2 << 20, dtype=torch.float32)
    enable("256MiB", 1.5)
    first = seed + 0  # 8 MiB
    results = [first * i for i in range(150)]
    assert dtr_alloc.stats()["evictions"] > 100
    with pytest.raises(torch.OutOfMemoryError, match=r"limited to 1.5 GiB"):
        dtr_alloc.disable()
    assert dtr_alloc.is_enabled()
    assert dtr_alloc.stats()["budget_bytes"] == 256 * MIB
    assert dtr_alloc.stats()["reserved_bytes"] <= 256 * MIB
    dtr_alloc.check_invariants()
    dtr_alloc.set_budget("100GiB")
    assert torch.equal(results[7], seed * 7)
    dtr_alloc.set_budget("512MiB")
    assert all(torch.equal(results[i], seed * i) for i in range(0, 150, 10))
    del results[40:]
    dtr_alloc.check_invariants()
    dtr_alloc.disable()
    assert all(torch.equal(result, seed * i) for i, result in enumerate(results))


def test_budgets_can_be_raised_and_what_does_not_fit_leaves_the_session_whole():
    """disable() has no limit but what the system grants."""
    call(raise_budgets)
