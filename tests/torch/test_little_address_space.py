"""Jobs in processes whose address space is limited, as by ulimit -v: the same bits as without, and
clear errors where it is too little. PyTorch itself takes about 0.6 GiB."""

import json
import os
import textwrap
from typing import Any

import pytest
from harness import python

LIMIT = """
import json, resource, sys
if sys.argv[1] != "none":
    limit = int(float(sys.argv[1]) * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""

pytestmark = pytest.mark.skipif(
    os.environ.get("DTR_ALLOC_BUILD") == "sanitize", reason="sanitizers need terabytes of addresses"
)

TRAINING = """
import hashlib, torch, dtr_alloc
torch.set_num_threads(1)
torch.manual_seed(0)
dtr_alloc.enable(sys.argv[2], device="cpu")
weight = torch.randn(4 << 20, requires_grad=True)  # 16 MiB
optimizer = torch.optim.SGD([weight], lr=1e-6)
for _ in range(int(sys.argv[4])):
    activation = weight
    for _ in range(int(sys.argv[3])):
        activation = (activation * 0.9).sin()
    activation.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
del activation
dtr_alloc.check_invariants()
stats = dtr_alloc.stats()
dtr_alloc.disable()
bits = hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()
print(json.dumps({**stats, "bits": bits}))
"""


def run(script: str, limit_gib: object, *arguments: object, **options: Any) -> Any:
    return python("-c", LIMIT + script, limit_gib, *arguments, **options)


def train(limit_gib: object, budget: str, depth: int, steps: int) -> dict:
    return json.loads(run(TRAINING, limit_gib, budget, depth, steps).stdout)


@pytest.fixture(scope="module")
def without_a_limit() -> dict:
    return train("none", "unlimited", 70, 1)


def test_a_budget_of_a_gibibyte_works_in_four(without_a_limit):
    got = train(4, "1GiB", 70, 1)
    assert got["bits"] == without_a_limit["bits"]
    assert got["budget_bytes"] == 2**30
    assert without_a_limit["peak_allocated_bytes"] > 2**30 >= got["peak_reserved_bytes"]
    assert got["evictions"] > 0


def test_without_a_budget_what_the_system_grants_is_one(without_a_limit):
    got = train(1.3, "unlimited", 70, 1)
    assert got["bits"] == without_a_limit["bits"]
    assert got["evictions"] > 0


def test_a_share_is_of_what_the_process_may_have():
    done = run(
        "import dtr_alloc\n"
        "dtr_alloc.enable('50%', device='cpu')\n"
        "print(dtr_alloc.stats()['budget_bytes'], dtr_alloc.stats()['total_bytes'])\n",
        2,
    )
    assert done.stdout == f"{2**30} {2**31}\n"


def test_an_error_names_the_limit_that_stands_in_the_way():
    done = run(
        "import torch, dtr_alloc\n"
        "dtr_alloc.enable('4GiB', device='cpu')\n"
        "torch.empty(2 << 30, dtype=torch.uint8)\n",
        1.5,
        status=1,
    )
    said = done.stderr[done.stderr.index("OutOfMemoryError") :]
    assert "mmap of 2.0 GiB" in said
    assert "the address space of the process is limited to 1.5 GiB" in said
    assert "Raise the budget" not in said


def test_budgets_can_be_raised_and_what_does_not_fit_leaves_the_session_whole():
    """disable() has no limit but what the system grants."""
    done = run(
        textwrap.dedent("""
        import torch, dtr_alloc
        torch.set_num_threads(1)
        MIB = 2**20
        seed = torch.arange(2 << 20, dtype=torch.float32)
        dtr_alloc.enable("256MiB", device="cpu")
        first = seed + 0  # 8 MiB
        results = [first * i for i in range(150)]
        evicted = dtr_alloc.stats()["evictions"]
        assert evicted > 100
        try:
            dtr_alloc.disable()
        except torch.OutOfMemoryError as error:
            assert "limited to 1.5 GiB" in str(error), error
        else:
            raise AssertionError("1.2 GiB fit beside PyTorch in 1.5 GiB")
        assert dtr_alloc.is_enabled()
        assert dtr_alloc.stats()["budget_bytes"] == 256 * MIB
        assert dtr_alloc.stats()["reserved_bytes"] <= 256 * MIB
        dtr_alloc.check_invariants()
        dtr_alloc.set_budget("100GiB")
        assert torch.equal(results[7], seed * 7)
        dtr_alloc.set_budget("512MiB")
        for i in range(0, 150, 10):
            assert torch.equal(results[i], seed * i), i
        results = results[:40]
        dtr_alloc.check_invariants()
        dtr_alloc.disable()
        for i in range(40):
            assert torch.equal(results[i], seed * i), i
        print("whole")
        """),
        1.5,
    )
    assert done.stdout == "whole\n"
