"""A GPT whose attention is a custom operator, under budgets: tried, trusted, and neither.

    python -m bench.custom_operators [--json PATH] [--smoke]

The operator keeps its probabilities for its backward pass, as attention that is not fused does:
most of what the steps need. Not trusted (``dtr_alloc.distrust``), its results are never evicted.
Tried, its first calls run twice. Times are of the thread, the median of all steps but the first
three, in terms of those with nothing evicted; each run's parameters are compared with plain
PyTorch's.
"""

from __future__ import annotations

import gc
from statistics import median
from time import thread_time
from typing import Any

import click
import torch
from rich.table import Table
from torch import Tensor

import dtr_alloc
from bench import results
from bench.models import differences
from bench.models.transformer import GptBlock, TransformerJob

FRACTIONS = (0.7, 0.5, 0.4, 0.3)
WAYS = ("not trusted", "tried", "trusted")
OPERATORS = "dtr_bench"


@torch.library.custom_op(f"{OPERATORS}::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the probabilities (batch, heads, tokens, tokens) for the backward pass."""
    tokens = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    probabilities = scores.masked_fill_(future, float("-inf")).softmax(-1)
    return probabilities @ v, probabilities


@torch.library.custom_op(f"{OPERATORS}::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, probabilities: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    inner = grad @ v.transpose(-1, -2)
    scores = torch.ops.aten._softmax_backward_data(inner, probabilities, -1, q.dtype)
    scores = scores / q.shape[-1] ** 0.5
    return scores @ k, scores.transpose(-1, -2) @ q, probabilities.transpose(-1, -2) @ grad


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
    return attention_backward(grad, *ctx.saved_tensors)


attention.register_autograd(_backward, setup_context=_keep)


class Block(GptBlock):
    """With the operator for its attention."""

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.proj(attention(q, k, v)[0].transpose(1, 2).reshape(batch, tokens, width))


class CustomGpt(TransformerJob):
    """A GPT with long sequences."""

    TOKENS = 192

    def build(self) -> None:
        super().build()
        for block in self.model.get_submodule("blocks").children():
            block.__class__ = Block


def train(steps: int, seed: int) -> tuple[dict[str, Tensor], list[float], int]:
    """The job's state, the seconds of its steps, and what it holds between them, in bytes."""
    gc.collect()
    job = CustomGpt(seed=seed)
    taken, idle = [], 0
    for i in range(steps):
        begin = thread_time()
        job.step(i)
        taken.append(thread_time() - begin)
        if dtr_alloc.is_enabled():
            idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
    return job.state(), taken, idle


def run(way: str, budget: int | str, steps: int, seed: int) -> dict[str, Any] | None:
    """One run under a budget; None if it is out of memory."""
    say = {"not trusted": dtr_alloc.distrust, "trusted": dtr_alloc.trust}.get(way)
    if say is not None:
        say(OPERATORS)
    with dtr_alloc.session(budget=budget, device="cpu"):
        dtr_alloc.reset_peak_stats()
        before = dtr_alloc.stats()
        try:
            state, taken, idle = train(steps, seed)
        except torch.OutOfMemoryError:
            return None
        after = dtr_alloc.stats()
    return {
        "state": state,
        "seconds": median(taken[3:]),
        "idle_bytes": idle,
        "peak_bytes": after["peak_allocated_bytes"],
        "rematerializations": after["rematerializations"] - before["rematerializations"],
    }


def measure(fractions: tuple[float, ...], steps: int, seed: int) -> list[dict[str, Any]]:
    """Rows by fraction of activation memory and way. "tried" comes first, while nobody has said
    anything."""
    expected, _, _ = train(steps, seed)
    free = run("tried", "unlimited", steps, seed)
    assert free is not None
    rows = []
    for way in sorted(WAYS, key=lambda way: way != "tried"):
        for fraction in fractions:
            activations = free["peak_bytes"] - free["idle_bytes"]
            budget = free["idle_bytes"] + round(fraction * activations)
            row: dict[str, Any] = {"fraction": fraction, "way": way, "budget_bytes": budget}
            found = run(way, budget, steps, seed)
            if found is None:
                rows.append(row | {"outcome": "out of memory"})
                continue
            wrong = differences(expected, found["state"])
            rows.append(
                row
                | {
                    "outcome": "other bits" if wrong else "same bits",
                    "ratio": found["seconds"] / free["seconds"],
                    "rematerializations": found["rematerializations"] / steps,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="Step time in terms of that with nothing evicted (operators run again)")
    shown.add_column("operator")
    fractions = list(dict.fromkeys(row["fraction"] for row in rows))
    for fraction in fractions:
        shown.add_column(str(fraction), justify="right")
    for way in WAYS:
        cells = []
        for row in (row for row in rows if row["way"] == way):
            good = row["outcome"] == "same bits"
            cells.append(
                f"{row['ratio']:.2f} ({row['rematerializations']:.0f})" if good else row["outcome"]
            )
        shown.add_row(way, *cells)
    return shown


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--steps", default=12, show_default=True)
@click.option("--seed", default=0, show_default=True)
@results.options("One budget, a few steps.")
def main(steps: int, seed: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    rows = measure((0.5,) if smoke else FRACTIONS, 5 if smoke else steps, seed)
    results.console().print(table(rows))
    results.write(path, "custom_operators", seed, steps=steps, results=rows)


if __name__ == "__main__":
    main()
