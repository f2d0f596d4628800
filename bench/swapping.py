"""What learning a job's step is worth where parameters and states are swapped to host memory.

    python -m bench.swapping [--job NAME]... [--share SHARE]... [--smoke] [--json PATH]

Jobs whose parameters and optimizer states are most of what they hold train by the rule and with
learning, at shares of their peak memory, in a process of its own each time. Of the last eight steps
a row has, per step, the bytes that went to host memory and back, the share of the compute that was
repeated, and the processor time of the fastest, in terms of the same job's with nothing evicted.
`missing_bytes` is what the budget lacks to the peak. Bits are compared with those of the job
without dtr_alloc.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import torch
from rich.table import Table

import dtr_alloc
from bench import results
from bench.learning import LAST, POLICIES, in_last_steps, train_steps
from bench.measure import in_own_process
from bench.models.job import Job, digest
from bench.models.large import LARGE_JOBS

SHARES = (0.8, 0.6, 0.4)
HOST_MEMORY = "8GiB"


def _content(job: Job) -> str:
    """Of losses and parameters, read one by one: there may be no room for copies of all."""
    found = {f"loss/{i}": loss for i, loss in enumerate(job.losses)}
    for module in job.modules.values():
        found |= module.state_dict()
    return digest(found)


def _plain(name: str, steps: int) -> str:
    """What the job ends with without dtr_alloc."""
    torch.set_num_threads(1)
    job = LARGE_JOBS[name]()
    for step in range(steps):
        job.step(step)
    return _content(job)


def _steps(name: str, budget: int | str, heuristic: str, steps: int) -> dict[str, Any]:
    """A run in this process: how it ended, and its counters and times."""
    torch.set_num_threads(1)
    with dtr_alloc.session(budget=budget, device="cpu", swap=HOST_MEMORY, heuristic=heuristic):
        job = LARGE_JOBS[name]()
        outcome, trained = train_steps(job, steps)
        if outcome != "trains":
            return {"outcome": outcome}
        content = _content(job)
    last = trained[-1].counters
    return {
        "outcome": outcome,
        "content": content,
        "peak_bytes": last["peak_allocated_bytes"],
        "swapped_out_bytes": in_last_steps(trained, "swapped_out_bytes"),
        "swapped_in_bytes": in_last_steps(trained, "swapped_in_bytes"),
        "repeated": in_last_steps(trained, "recompute_cost_seconds")
        / in_last_steps(trained, "total_cost_seconds"),
        "learned": last["learned"],
        "planned": in_last_steps(trained, "planned"),
        "seconds": min(step.seconds for step in trained[-LAST:]),
    }


def measure(name: str, steps: int, shares: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    """The rows of one job."""
    expected = in_own_process(_plain, name, steps)
    free = in_own_process(_steps, name, "unlimited", POLICIES[0], steps)
    for share in shares:
        budget = int(share * free["peak_bytes"])
        for heuristic in POLICIES:
            found = in_own_process(_steps, name, budget, heuristic, steps)
            if "content" in found:
                if found.pop("content") != expected:
                    found["outcome"] = "other bits"
                found["step_ratio"] = found.pop("seconds") / free["seconds"]
            row = {"job": name, "share": share, "policy": heuristic}
            yield row | {"missing_bytes": free["peak_bytes"] - budget} | found


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="MiB that come back in a step (step time), by the rule / learned")
    for column in ("job", "of its peak", "missing", "by the rule", "learned"):
        shown.add_column(column, justify="left" if column == "job" else "right")
    for rule, learned in zip(rows[::2], rows[1::2], strict=True):
        cells = [
            f"{row['swapped_in_bytes'] / results.MIB:.0f} ({row['step_ratio']:.2f})"
            if row["outcome"] == "trains"
            else row["outcome"]
            for row in (rule, learned)
        ]
        missing = f"{rule['missing_bytes'] / results.MIB:.0f}"
        shown.add_row(rule["job"], str(rule["share"]), missing, *cells)
    return shown


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(LARGE_JOBS)))
@click.option(
    "--share",
    "shares",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help=f"Of the peak memory.  [default: {SHARES}]",
)
@click.option("--steps", default=24, show_default=True, type=click.IntRange(LAST + 2))
@results.options("One job, one budget, few steps.")
def main(
    jobs: tuple[str, ...], shares: tuple[float, ...], steps: int, path: str | None, smoke: bool
) -> None:
    names = jobs or tuple(LARGE_JOBS)[: 1 if smoke else None]
    steps = LAST + 2 if smoke else steps
    shares = shares or SHARES[: 1 if smoke else None]
    console = results.console()
    rows: list[dict[str, Any]] = []
    for name in names:
        with console.status(f"training {name}"):
            rows.extend(measure(name, steps, shares))
    console.print(table(rows))
    results.write(path, "swapping", steps=steps, results=rows)


if __name__ == "__main__":
    main()
