"""The smallest budget under which each job still trains, by bisection.

    python -m bench.smallest_budget [--job NAME]... [--smoke] [--json PATH]

A budget is stated in bytes and as the fraction of activation memory that it leaves (activation
memory is the unconstrained peak minus what is allocated between steps). Every run that fits is
compared bit for bit with a run without dtr_alloc. A run that repeats more than MOST_REPEATS
operators counts as one that does not work: it would, but nobody would wait for it.

Two figures say what could be. By bytes is the smallest budget, in whole percents of the activation
memory, at which any of RULES runs the job's log if bytes alone count, and computes no more than the
engine lets a step (DTR_ALLOC_THRASH). The bound is what no schedule goes below: the most that one
operator reads, makes and needs meanwhile, beside the constants that are alive then
(bench/studies/floor.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import click
import torch

from bench import results
from bench.measure import Profile, Run, Thrashing, profile, train_plain, try_train
from bench.models import JOBS, differences
from bench.studies.floor import least_bytes
from dtr_alloc.oplog import Program, compile_log
from dtr_alloc.simulation import simulate

STEPS = 3
RESOLUTION = 0.01
"""Of activation memory."""
MOST_REPEATS = 20_000
MOST_COMPUTE = 4
"""By bytes: all compute, in terms of the log's."""
COSTS = ("marginal", "neighborhood", "component", "ancestors")
RULES = [f"c={cost},m=size,s={s}" for cost, s in product(COSTS, (0.5, 1))]
"""The published policies, and what lies between them: what the engine chooses among."""
R = TypeVar("R")


def bisect(
    shape: Profile, resolution: float, train: Callable[[int], R | None]
) -> list[tuple[int, R]]:
    """The budgets that worked with their runs, the smallest last; `resolution` is a fraction
    of activation memory. train: a run under a budget, None where it does not work."""
    worked: list[tuple[int, R]] = []
    low, high = 0.0, 1.0
    while high - low > resolution:
        middle = (low + high) / 2
        budget = shape.budget(middle)
        run = train(budget)
        if run is None:
            low = middle
        else:
            high = middle
            worked.append((budget, run))
    return worked


def least_by_bytes(program: Program, shape: Profile, bound: int) -> int:
    """The smallest budget with which a rule runs the log, if bytes alone count."""
    whole = simulate.run_log(program, semantics="runtime", outputs=False).total_cost

    def runs(rule: str, dealloc: str, budget: int) -> bool:
        most = (MOST_COMPUTE - 1) * whole
        options: dict[str, Any] = {"semantics": "runtime", "outputs": False, "max_recompute": most}
        return simulate.run_log(program, rule, budget, dealloc=dealloc, **options).status == "ok"

    least, percent = shape.peak_bytes, 99
    while (budget := shape.budget(percent / 100)) >= bound:
        if any(runs(*rule, budget) for rule in product(RULES, ("eager", "lazy"))):
            least = budget
        percent -= 1
    return least


def measure(name: str, resolution: float, device: str) -> dict[str, Any]:
    """One row: the job's memory, its smallest budget and what training there costs."""
    reference = train_plain(name, STEPS, device=device)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        shape, free = profile(name, STEPS, settings={"log": log}, device=device)
        program = compile_log(log)
        bound = least_bytes(program)
        by_bytes = least_by_bytes(program, shape, bound)

    def train(budget: int) -> Run | None:
        try:
            return try_train(name, budget, STEPS, most_repeats=MOST_REPEATS, device=device)
        except Thrashing:
            return None

    runs = bisect(shape, resolution, train)
    budget, tightest = runs[-1] if runs else (shape.peak_bytes, free)
    wrong = [bad for _, run in [(0, free), *runs] for bad in differences(reference, run.state)]
    return {
        "job": name,
        "idle_bytes": shape.idle_bytes,
        "peak_bytes": shape.peak_bytes,
        "activation_bytes": shape.activation_bytes,
        "bound_bytes": bound,
        "bound_fraction": shape.fraction(bound),
        "by_bytes_fraction": shape.fraction(by_bytes),
        "smallest_budget_bytes": budget,
        "smallest_fraction": shape.fraction(budget),
        "peak_allocated_bytes": tightest.peak_bytes,
        "evictions": tightest.evictions,
        "rematerializations": tightest.rematerializations,
        "slowdown": tightest.step_seconds / free.step_seconds,
        "same_bits": not wrong,
    }


COLUMNS = {
    "job": "{job}",
    "idle MiB": "{idle_mib:.2f}",
    "activations MiB": "{activation_mib:.2f}",
    "smallest MiB": "{smallest_budget_mib:.2f}",
    "of activations": "{smallest_fraction:.1%}",
    "by bytes": "{by_bytes_fraction:.1%}",
    "bound": "{bound_fraction:.1%}",
    "evictions": "{evictions:}",
    "remats": "{rematerializations:}",
    "slowdown": "{slowdown:.2f}x",
    "same bits": "{same_bits}",
}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@results.options("Two jobs, coarse, seconds.")
def main(jobs: tuple[str, ...], device: str, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    device = results.pick_device(device)
    names = jobs or (("mlp", "inplace") if smoke else tuple(JOBS))
    resolution = 0.25 if smoke else RESOLUTION
    console = results.console()
    rows = []
    for name in names:
        with console.status(f"bisecting {name}"):
            rows.append(measure(name, resolution, device))
    console.print(results.table("Smallest budget that trains", COLUMNS, rows))
    if path:
        document = results.environment(device, 0) | {"bench": "smallest_budget", "steps": STEPS}
        results.write_json(document | {"resolution": resolution, "results": rows}, path)


if __name__ == "__main__":
    main()
