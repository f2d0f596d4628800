"""Train a small model under eviction for very many steps and watch what must not grow.

    python -m bench.long_run [--steps 20000] [--smoke] [--json PATH]

Watched: the engine's records, the process's resident set, the step time. The model has dropout
(generator states are recorded), momentum (state that mutates) and running averages that are
never read (chains of history without an end).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import dtr_alloc
from bench import results
from bench.models.job import Job
from bench.models.mlp import mlp

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
        """As `Job.step`, keeping only the last loss: a list of losses would grow by design."""
        self.losses = [self.train(i).detach()]
        return self.losses[0]


def tight_budget(fraction: float, device: str, seed: int) -> int:
    """The budget in bytes that leaves this fraction of the small model's activation memory."""
    with dtr_alloc.session(budget="unlimited", device=device):
        dtr_alloc.reset_peak_stats()
        job = Small(device=device, seed=seed)
        for i in range(3):
            job.step(i)
        stats = dtr_alloc.stats()
    idle, peak = stats["allocated_bytes"], stats["peak_allocated_bytes"]
    return idle + int(fraction * (peak - idle))


def soak(
    steps: int,
    windows: int,
    device: str,
    seed: int,
    tick: Callable[[range], Any] = iter,
    costs: Path | None = None,
) -> tuple[int, list[dict[str, Any]]]:
    """Train at half of the activation memory; the budget in bytes and a row per window of steps.

    With a file of costs (`dtr_alloc.session`) two runs decide alike. A row has the most records and
    the largest resident set seen at the end of a step in the window, the median step time and how
    much was evicted and rematerialized.
    """
    budget = tight_budget(0.5, device, seed)
    process = psutil.Process()
    rows: list[dict[str, Any]] = []
    per_window = steps // windows
    with dtr_alloc.session(budget=budget, device=device, costs=costs):
        job = Small(device=device, seed=seed)
        for window in tick(range(windows)):
            before = dtr_alloc.stats()
            times, records, resident = [], 0, 0
            for i in range(window * per_window, (window + 1) * per_window):
                start = time.perf_counter()
                job.step(i)
                times.append(time.perf_counter() - start)
                if i % 10 == 0:
                    records = max(records, dtr_alloc.stats()["live_records"])
                    resident = max(resident, process.memory_info().rss)
            dtr_alloc.check_invariants()
            after = dtr_alloc.stats()
            rows.append(
                {
                    "first_step": window * per_window,
                    "live_records": records,
                    "resident_set_bytes": resident,
                    "step_seconds": statistics.median(times),
                    "evictions": after["evictions"] - before["evictions"],
                    "rematerializations": after["rematerializations"]
                    - before["rematerializations"],
                    "peak_allocated_bytes": after["peak_allocated_bytes"],
                }
            )
    return budget, rows


def growth(rows: list[dict[str, Any]], key: str) -> float:
    """The largest value in the last quarter of the windows over that in the second quarter; the
    first quarter warms up."""
    quarter = len(rows) // 4
    early = max(row[key] for row in rows[quarter : 2 * quarter])
    return max(row[key] for row in rows[-quarter:]) / early


def main() -> None:
    parser = argparse.ArgumentParser(description="Train for long under eviction.")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write results there, - for stdout")
    parser.add_argument("--smoke", action="store_true", help="400 steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = results.pick_device(args.device)
    steps = 400 if args.smoke else args.steps
    console = results.console()
    budget, rows = soak(
        steps, 20, device, args.seed, lambda r: track(r, "training", console=console)
    )
    table = Table(title=f"{steps} steps under {budget / results.MIB:.2f} MiB")
    for column in ("from step", "records", "resident MiB", "step ms", "evictions", "remats"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["first_step"]),
            str(row["live_records"]),
            f"{row['resident_set_bytes'] / results.MIB:.1f}",
            f"{1e3 * row['step_seconds']:.2f}",
            str(row["evictions"]),
            str(row["rematerializations"]),
        )
    console.print(table)
    grown = {
        key: growth(rows, key) for key in ("live_records", "resident_set_bytes", "step_seconds")
    }
    console.print("last quarter over second quarter:", {k: round(v, 3) for k, v in grown.items()})
    if args.json:
        document = results.environment(device, args.seed) | {"bench": "long_run", "steps": steps}
        document |= {"budget_bytes": budget, "growth": grown, "results": rows}
        results.write_json(document, args.json)


if __name__ == "__main__":
    main()
