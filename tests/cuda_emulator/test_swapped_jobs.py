"""A job whose parameters and states exceed the budget runs on "cuda", with the same bits."""

from __future__ import annotations

JOB = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
layers = [part for _ in range(16) for part in (nn.Linear(128, 128), nn.GELU())]
model = nn.Sequential(*layers).to("cuda")
x, y = torch.randn(32, 128).to("cuda"), torch.randint(0, 128, (32,)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False, foreach=False)
for _ in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
optimizer.zero_grad()
FACTS = {"resident_bytes": torch.cuda.memory_allocated()}
for weight in model.parameters():
    print(weight.detach().cpu().numpy().tobytes().hex())
"""


def test_a_job_that_holds_more_than_the_budget_between_two_steps_swaps(machine):
    """With late streams: nobody touches a block or host memory before a copy is done."""
    expected = machine.run(JOB)
    measured = machine.run(JOB, budget="unlimited")
    budget = measured.report["resident_bytes"] // 2
    without = machine.run(JOB, budget=budget, clean=False)
    assert "out of memory" in without.errors
    swapped = machine.run(JOB, budget=budget, swap="1GiB")
    assert swapped.output == expected.output
    assert swapped.report["peak_bytes"] <= budget
    assert swapped.stats["swapped_in_bytes"] > 0
