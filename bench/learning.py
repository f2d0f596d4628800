"""What learning a job's step is worth: the policy and the plan that are learned, beside the rule.

    python -m bench.learning [--job NAME]... [--fraction SHARE]... [--smoke] [--json PATH]

A job trains under both, at fractions of its activation memory, in a process of its own each time.
Of the last eight steps a row has the compute that was repeated, in terms of the job's own, and the
processor time of the fastest, in terms of the same job's with nothing evicted; per step, evictions,
remaps, and requests that a plan placed, and that it could not. `learned_in` and `planned_in` are
the first steps in which a policy or a plan was followed, `planned_after` the seconds until then,
`by_plan` the share of the steps since that found all their places and remapped once at most.
Until something is followed, `waiting_step` is the median time of a step on the job's own thread.
`resident_bytes` is the most that the process had in memory. Bits are compared with those of the job
without dtr_alloc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import click
import torch
from rich.table import Table

import dtr_alloc
from bench import results
from bench.demo.worker import peak_resident_bytes
from bench.measure import in_own_process, profile, train_plain
from bench.models import JOBS, Job, differences

FRACTIONS = (0.5, 0.3, 0.2)
POLICIES = ("marginal", "adaptive")
LAST = 8
"""Steps that count."""


@dataclass(frozen=True)
class Step:
    """What a step took, and what there was at its end."""

    seconds: float
    """Of the process, by the processor's clock."""
    own_seconds: float
    """Of the job's own thread."""
    end: float
    counters: dict[str, Any]


def train_steps(job: Job, steps: int) -> tuple[str, list[Step]]:
    """How the job ended, and the steps that it trained."""
    trained: list[Step] = []
    try:
        for i in range(steps):
            begin, own_begin = time.process_time(), time.thread_time()
            job.step(i)
            seconds, own_seconds = time.process_time() - begin, time.thread_time() - own_begin
            trained.append(Step(seconds, own_seconds, time.perf_counter(), dtr_alloc.stats()))
    except torch.OutOfMemoryError as error:
        return "grinds" if "is too small" in str(error) else "out of memory", trained
    return "trains", trained


def in_last_steps(trained: list[Step], key: str) -> float:
    """What a counter grew by in each of the last steps, on average."""
    return (trained[-1].counters[key] - trained[-1 - LAST].counters[key]) / LAST


def _steps(name: str, budget: int | str, heuristic: str, steps: int) -> dict[str, Any]:
    """A run in this process: how it ended, and its counters and times."""
    torch.set_num_threads(1)
    with dtr_alloc.session(budget=budget, device="cpu", heuristic=heuristic):
        job = JOBS[name]()
        outcome, trained = train_steps(job, steps)
    if outcome != "trains":
        return {"outcome": outcome}
    counters = [step.counters for step in trained]
    learned_in, planned_in = (
        next((i for i, at in enumerate(counters) if at[key]), None)
        for key in ("learned", "planned")
    )
    planned_after = None if planned_in is None else trained[planned_in].end - trained[0].end
    return {
        "outcome": outcome,
        "repeated": in_last_steps(trained, "recompute_cost_seconds")
        / in_last_steps(trained, "total_cost_seconds"),
        **{
            key: in_last_steps(trained, key)
            for key in ("remaps", "evictions", "planned", "plan_misses")
        },
        "learned": counters[-1]["learned"],
        "learned_in": learned_in,
        "planned_in": planned_in,
        "planned_after": planned_after,
        "by_plan": _by_plan(counters[planned_in:] if planned_in is not None else []),
        "waiting_step": median(step.own_seconds for step in trained[1:learned_in]),
        "resident_bytes": peak_resident_bytes(),
        "seconds": min(step.seconds for step in trained[-LAST:]),
        "state": job.state(),
    }


def _by_plan(counters: list[dict[str, Any]]) -> float | None:
    """The share of the steps after the first of these that a plan served wholly."""
    steps = [
        [after[key] - before[key] for key in ("planned", "plan_misses", "remaps")]
        for before, after in pairwise(counters)
    ]
    went = sum(planned > 0 and missed == 0 and remaps <= 1 for planned, missed, remaps in steps)
    return went / len(steps) if steps else None


def measure(name: str, steps: int, fractions: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    """The rows of one job."""
    torch.set_num_threads(1)
    reference = train_plain(name, steps)
    shape, _free = profile(name, 3)
    free = in_own_process(_steps, name, "unlimited", "marginal", steps)
    for fraction in fractions:
        for heuristic in POLICIES:
            found = in_own_process(_steps, name, shape.budget(fraction), heuristic, steps)
            row = {"job": name, "fraction": fraction, "policy": heuristic}
            if "state" in found:
                if differences(reference, found.pop("state")):
                    found["outcome"] = "other bits"
                found["step_ratio"] = found.pop("seconds") / free["seconds"]
            yield row | found


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="Compute repeated (step time), by the rule / learned")
    fractions = list(dict.fromkeys(row["fraction"] for row in rows))
    for column in ("job", *map(str, fractions)):
        shown.add_column(column, justify="left" if column == "job" else "right")
    for job in dict.fromkeys(row["job"] for row in rows):
        cells = []
        for fraction in fractions:
            pair = [row for row in rows if (row["job"], row["fraction"]) == (job, fraction)]
            told = [
                f"{row['repeated']:.2f} ({row['step_ratio']:.2f})"
                if row["outcome"] == "trains"
                else row["outcome"]
                for row in pair
            ]
            cells.append(" / ".join(told))
        shown.add_row(job, *cells)
    return shown


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option(
    "--fraction",
    "fractions",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True),
    help=f"Of the activation memory.  [default: {FRACTIONS}]",
)
@click.option("--steps", default=60, show_default=True, type=click.IntRange(LAST + 2))
@results.options("One job, one budget, few steps.")
def main(
    jobs: tuple[str, ...], fractions: tuple[float, ...], steps: int, path: str | None, smoke: bool
) -> None:
    torch.set_num_threads(1)
    names = jobs or (("mlp",) if smoke else tuple(JOBS))
    steps = LAST + 2 if smoke else steps
    fractions = fractions or (FRACTIONS[:1] if smoke else FRACTIONS)
    console = results.console()
    rows: list[dict[str, Any]] = []
    for name in names:
        with console.status(f"training {name}"):
            rows.extend(measure(name, steps, fractions))
    console.print(table(rows))
    results.write(path, "learning", steps=steps, results=rows)


if __name__ == "__main__":
    main()
