"""How long a step takes whose batches come from a data set of NumPy's, by the data set's size.

    python -m bench.data_set [--json PATH] [--smoke]

NumPy may write to such memory past all operators, so it is compared with its last known state. A
perceptron trains on batches of an array that ``torch.from_numpy`` shares, taken in order
(``slice``: a view) or shuffled (``rows``: an operator picks them). Runs with an idle budget and
without dtr_alloc take turns. Times are of the processor, the median over all steps but each run's
first.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import thread_time
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import dtr_alloc
from bench import results
from bench.heap import cpu_name

COLUMNS = 256
BATCH = 256
SIZES_MIB = (1, 16, 256, 1024)
WAYS = ("slice", "rows")


def batch(rows: Tensor, way: str, step: int) -> Tensor:
    """The batch of a step."""
    first = step * BATCH % len(rows)
    if way == "slice":
        return rows[first : first + BATCH]
    return rows[torch.randint(len(rows), (BATCH,), generator=torch.Generator().manual_seed(step))]


def train(rows: Tensor, way: str, steps: int, seed: int) -> tuple[list[float], float]:
    """The seconds of each step but the first, and the last loss."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(COLUMNS, 512), nn.ReLU(), nn.Linear(512, COLUMNS))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    taken = []
    for step in range(steps + 1):
        begin = thread_time()
        target = batch(rows, way, step)
        loss = (net(target + 0.1 * torch.randn_like(target)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken.append(thread_time() - begin)
    return taken[1:], loss.item()


def measure(mib: int, way: str, rounds: int, steps: int, seed: int) -> dict[str, Any]:
    """One row: a size and a way to take batches."""
    count = mib * results.MIB // (4 * COLUMNS)
    data = np.random.default_rng(seed).standard_normal((count, COLUMNS), dtype=np.float32)
    taken: dict[str, list[float]] = defaultdict(list)
    losses = set()
    for _ in range(rounds):
        sessions: dict[str, AbstractContextManager[Any]] = {
            "plain": nullcontext(),
            "dtr_alloc": dtr_alloc.session(budget="unlimited", device="cpu"),
        }
        for name, session in sessions.items():
            gc.collect()
            with session:
                seconds, loss = train(torch.from_numpy(data), way, steps, seed)
            taken[name] += seconds
            losses.add(loss)
    if len(losses) != 1:
        raise RuntimeError(f"{way}, {mib} MiB: the losses differ: {sorted(losses)}")
    plain, ours = (median(taken[name]) for name in ("plain", "dtr_alloc"))
    return {
        "mib": mib,
        "way": way,
        "plain_seconds": plain,
        "dtr_alloc_seconds": ours,
        "ratio": ours / plain,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="A step on batches of a data set of NumPy's, ms of the CPU")
    for column in ("batches", "MiB", "plain", "dtr_alloc", "ratio"):
        table.add_column(column, justify="left" if column == "batches" else "right")
    for row in rows:
        times = (row["plain_seconds"], row["dtr_alloc_seconds"])
        cells = [row["way"], str(row["mib"]), *(f"{1e3 * seconds:.2f}" for seconds in times)]
        table.add_row(*cells, f"{row['ratio']:.2f}x")
    console.print(table)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--rounds", default=5, show_default=True, help="How often the runs take turns.")
@click.option("--steps", default=20, show_default=True, help="Measured steps of a run.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--smoke", is_flag=True, help="One small size, seconds.")
def main(rounds: int, steps: int, seed: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    sizes: tuple[int, ...] = SIZES_MIB
    if smoke:
        sizes, rounds, steps = (1,), 1, 2
    rows = [measure(mib, way, rounds, steps, seed) for way in WAYS for mib in sizes]
    show(rows, results.console())
    if path:
        document = results.environment("cpu", seed) | {"bench": "data_set", "rounds": rounds}
        document |= {"processor": cpu_name(), "steps": steps, "batch": BATCH, "columns": COLUMNS}
        results.write_json(document | {"results": rows}, path)


if __name__ == "__main__":
    main()
