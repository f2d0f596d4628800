"""What the operating system sees of a budget: a long run holds no more at its end than after it has
warmed up."""

from collections.abc import Callable
from itertools import pairwise

import psutil
import pytest
import torch
from harness import MIB, fix_costs
from torch import nn
from torch.nn import functional as F

import dtr_alloc
from bench.models.mlp import mlp

STEPS, WINDOWS = 2_000, 20
WIDTH = 32


def job() -> Callable[[], None]:
    """Steps of six blocks behind dropout, with two running averages."""
    torch.manual_seed(0)
    model = mlp(6, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(128, WIDTH), torch.randint(10, (128,))
    averages = [torch.zeros(()), torch.zeros(WIDTH)]

    def step() -> None:
        optimizer.zero_grad()
        hidden = F.dropout(x, 0.1)
        loss = F.cross_entropy(model(hidden), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        averages[0] = 0.99 * averages[0] + 0.01 * loss.detach()
        averages[1] = torch.lerp(averages[1], hidden.mean(0), 0.01)

    return step


@pytest.mark.long
def test_two_thousand_steps_grow_nothing(tmp_path):
    """The first quarter warms up; the last one is compared with the second."""
    costs = tmp_path / "costs.json"
    with dtr_alloc.session(budget="unlimited", device="cpu", costs=costs):
        dtr_alloc.reset_peak_stats()
        step = job()
        for _ in range(3):
            step()
        stats = dtr_alloc.stats()
    del step  # its memory would count to the next session
    fix_costs(costs)
    budget = (stats["allocated_bytes"] + stats["peak_allocated_bytes"]) // 2
    repeats, records, resident = [0], [], []  # of each window
    with dtr_alloc.session(budget=budget, device="cpu", costs=costs):
        step = job()
        for _ in range(WINDOWS):
            seen = []
            for _ in range(STEPS // WINDOWS):
                step()
                live = dtr_alloc.stats()["live_records"]
                seen.append((live, psutil.Process().memory_info().rss))
            most = [max(each) for each in zip(*seen, strict=True)]
            records.append(most[0])
            resident.append(most[1])
            repeats.append(dtr_alloc.stats()["rematerializations"])
            dtr_alloc.check_invariants()
        assert dtr_alloc.stats()["peak_allocated_bytes"] <= budget
    repeated = [after - before for before, after in pairwise(repeats)]
    early, late = slice(WINDOWS // 4, WINDOWS // 2), slice(-WINDOWS // 4, None)
    assert min(repeated) > 0
    assert max(records[late]) <= 1.05 * max(records[early])
    assert max(resident[late]) - max(resident[early]) < 2 * MIB
    # The work of a window is the same, too: nothing is recomputed more often as history grows.
    # Measured costs would not tell, as another process on the machine changes them.
    assert max(repeated[late]) <= 1.01 * max(repeated[early])
