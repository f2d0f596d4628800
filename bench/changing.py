"""A job whose steps all differ: what it costs that the engine listens for one that repeats.

    python -m bench.changing [--smoke] [--json PATH]

A GPT draws for each step its batch and its depth, and an evaluation before one in four. It trains
by the rule and with learning, in processes of their own that take turns. A row has the median over
the rounds of the time learned / by the rule, of the wall clock and of the processor (which counts
what is played beside the job), and what was computed again of the job's own compute. Bits are
compared with those of the job without dtr_alloc.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import click
import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import dtr_alloc
from bench import results
from bench.measure import Profile, in_own_process
from bench.models import digest
from bench.models.transformer import TransformerJob

FRACTIONS = (0.5, 0.3, 0.2)
POLICIES = ("marginal", "adaptive")


class ChangingJob(TransformerJob):
    """No two steps need be alike."""

    def logits(self, ids: Tensor, depth: int) -> Tensor:
        gpt: Any = self.model
        places = torch.arange(ids.shape[1], device=ids.device)
        x = gpt.drop(gpt.token(ids) + gpt.position(places))
        return gpt.head(gpt.norm(gpt.blocks[:depth](x)))

    def train(self, i: int) -> Tensor:
        batch, depth, evaluates = (
            int(torch.randint(most, (), generator=self.generator))
            for most in (self.batch(self.BATCH), TransformerJob.LAYERS, 4)
        )
        ids = self.randint(self.VOCABULARY, batch + 1, self.TOKENS + 1)
        if evaluates == 0:
            with torch.no_grad():
                self.logits(ids[:, :-1], depth + 1)
        self.optimizers["adamw"].zero_grad()
        logits = self.logits(ids[:, :-1], depth + 1)
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self.optimizers["adamw"].step()
        return loss


def _train(budget: int | str | None, heuristic: str, scale: float, steps: int) -> dict[str, Any]:
    """A run in this process; without dtr_alloc if there is no budget."""
    torch.set_num_threads(1)
    if budget is not None:
        dtr_alloc.enable(budget=budget, device="cpu", heuristic=heuristic)
    job = ChangingJob(scale=scale)
    idle = 0
    wall, cpu = time.perf_counter(), time.process_time()
    for step in range(steps):
        job.step(step)
        idle = max(idle, dtr_alloc.stats()["allocated_bytes"] if budget is not None else 0)
    found: dict[str, Any] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    if budget is not None:
        stats = dtr_alloc.stats()
        found["repeated"] = stats["recompute_cost_seconds"] / stats["total_cost_seconds"]
        found |= {key: stats[key] for key in ("learned", "planned")}
        found |= {"idle": idle, "peak": stats["peak_allocated_bytes"]}
        dtr_alloc.disable()
    return found | {"digest": digest(job.state())}


def measure(
    scale: float, steps: int, rounds: int, fractions: tuple[float, ...]
) -> list[dict[str, Any]]:
    plain = in_own_process(_train, None, "", scale, steps)
    free = in_own_process(_train, "unlimited", "marginal", scale, steps)
    shape = Profile(free["idle"], free["peak"])
    rows = []
    for fraction in fractions:
        runs = [
            {
                policy: in_own_process(_train, shape.budget(fraction), policy, scale, steps)
                for policy in POLICIES
            }
            for _ in range(rounds)
        ]
        rule, learned = ([each[policy] for each in runs] for policy in POLICIES)
        row: dict[str, Any] = {"fraction": fraction}
        for clock in ("wall", "cpu"):
            both = zip(learned, rule, strict=True)
            row[f"{clock}_ratio"] = median(a[clock] / b[clock] for a, b in both)
        row |= {key: median(each[key] for each in learned) for key in ("learned", "planned")}
        row["repeated"] = median(each["repeated"] for each in rule)
        row["repeated_learned"] = median(each["repeated"] for each in learned)
        row["same_bits"] = all(each["digest"] == plain["digest"] for each in rule + learned)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="Steps that all differ: learned, against the rule")
    for column in ("activations", "wall clock", "processor", "repeated", "learned", "same bits"):
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(
            f"{row['fraction']:.0%}",
            f"{row['wall_ratio']:.3f}",
            f"{row['cpu_ratio']:.3f}",
            f"{row['repeated']:.2f}",
            f"{row['repeated_learned']:.2f}",
            "yes" if row["same_bits"] else "NO",
        )
    return shown


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--steps", default=600, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--scale", default=2.0, show_default=True, help="Of the batches.")
@results.options("One budget, few steps.")
def main(steps: int, rounds: int, scale: float, path: str | None, smoke: bool) -> None:
    if smoke:
        steps, rounds, scale = 6, 1, 1.0
    console = results.console()
    with console.status("training"):
        rows = measure(scale, steps, rounds, FRACTIONS[:1] if smoke else FRACTIONS)
    console.print(table(rows))
    results.write(path, "changing", scale=scale, steps=steps, rounds=rounds, results=rows)


if __name__ == "__main__":
    main()
