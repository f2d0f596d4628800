"""A job that needs one piece of memory where there are many (test_moved_jobs.py), in fixed pools.

Every other one of some models is dropped, so that what is free lies between the others, whose
parameters cannot be computed again. What comes then is larger than each of the holes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import dtr_alloc

BUDGET = "6MiB"


def train() -> list[Tensor]:
    torch.manual_seed(0)
    models = [nn.Linear(256, 256) for _ in range(16)]
    x = torch.randn(64, 256)
    for model in models:
        model(x).square().mean().item()
    models = models[1::2]
    x = torch.randn(1024, 256)
    for _ in range(3):
        for model in models:
            model(x).sigmoid().square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    return [parameter.detach() for model in models for parameter in model.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    expected = train()
    try:
        with dtr_alloc.session(budget=BUDGET, device="cpu", debug="no-moves"):
            train()
    except torch.OutOfMemoryError:
        print("out of memory")
    with dtr_alloc.session(budget=BUDGET, device="cpu"):
        got = train()
        stats = dtr_alloc.stats()
        dtr_alloc.check_invariants()
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert stats["moves"] > 0, stats
    assert stats["peak_reserved_bytes"] <= stats["budget_bytes"], stats
    print("trained")


if __name__ == "__main__":
    main()
