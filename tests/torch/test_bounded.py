"""What the operating system sees of a budget: a long run holds no more at its end than after it has
warmed up."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from harness import MIB, fix_costs
from torch import Tensor, nn
from torch.nn import functional as F

import dtr_alloc
from bench.models.job import Job
from bench.models.mlp import mlp

STEPS, WINDOWS = 2_000, 20
WIDTH = 32


class Small(Job):
    """Six blocks of width 32 with dropout in front of the head, and two running averages."""

    def build(self) -> None:
        self.model = self.add_module("mlp", mlp(6, WIDTH))
        self.optimizers["sgd"] = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x = self.randn(self.batch(128), WIDTH)
        self.y = self.randint(10, self.batch(128))
        self.average = torch.zeros((), device=self.device)
        self.features = torch.zeros(WIDTH, device=self.device)

    def train(self, i: int) -> Tensor:
        self.optimizers["sgd"].zero_grad()
        hidden = F.dropout(self.x, 0.1)
        loss = F.cross_entropy(self.model(hidden), self.y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers["sgd"].step()
        self.average = 0.99 * self.average + 0.01 * loss.detach()
        self.features = torch.lerp(self.features, hidden.mean(0), 0.01)
        return loss

    def step(self, i: int) -> Tensor:
        """Keeps the last loss alone: a list of losses would grow by design."""
        self.losses = [self.train(i).detach()]
        return self.losses[0]


def train(budget: int, costs: Path) -> list[dict[str, Any]]:
    """A row a window: the most records and the largest resident set seen at the end of a step, and
    how much was computed again."""
    process, rows = psutil.Process(), []
    with dtr_alloc.session(budget=budget, device="cpu", costs=costs):
        job = Small(device="cpu", seed=0)
        for _ in range(WINDOWS):
            before = dtr_alloc.stats()["rematerializations"]
            records = resident = 0
            for i in range(STEPS // WINDOWS):
                job.step(i)
                if i % 10 == 0:
                    records = max(records, dtr_alloc.stats()["live_records"])
                    resident = max(resident, process.memory_info().rss)
            dtr_alloc.check_invariants()
            after = dtr_alloc.stats()
            row = {"live_records": records, "resident_set_bytes": resident}
            row["rematerializations"] = after["rematerializations"] - before
            rows.append(row | {"peak_allocated_bytes": after["peak_allocated_bytes"]})
    return rows


def growth(rows: list[dict[str, Any]], key: str) -> float:
    """The largest value in the last quarter of the windows over that in the second quarter; the
    first quarter warms up."""
    quarter = len(rows) // 4
    early = max(row[key] for row in rows[quarter : 2 * quarter])
    return max(row[key] for row in rows[-quarter:]) / early


@pytest.mark.long
def test_two_thousand_steps_grow_nothing(tmp_path):
    costs = tmp_path / "costs.json"
    with dtr_alloc.session(budget="unlimited", device="cpu", costs=costs):
        dtr_alloc.reset_peak_stats()
        job = Small(device="cpu", seed=0)
        for i in range(3):
            job.step(i)
        stats = dtr_alloc.stats()
    del job  # its memory would count to the next session
    fix_costs(costs)
    budget = (stats["allocated_bytes"] + stats["peak_allocated_bytes"]) // 2
    rows = train(budget, costs)
    assert all(row["rematerializations"] > 0 for row in rows)
    assert all(row["peak_allocated_bytes"] <= budget for row in rows)
    assert growth(rows, "live_records") <= 1.05
    resident = [row["resident_set_bytes"] for row in rows]
    assert max(resident[-5:]) - max(resident[5:10]) < 2 * MIB
    # The work of a window is the same, too: nothing is recomputed more often as history grows.
    # Measured costs would not tell, as another process on the machine changes them.
    assert growth(rows, "rematerializations") <= 1.01
