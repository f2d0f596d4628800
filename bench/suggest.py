"""Whether `dtr_alloc.suggest` is right: what it says of jobs, beside what is measured of them.

    python -m bench.suggest [--job NAME]... [--smoke] [--json PATH]

Of each job a row has the smallest budget that is suggested and the smallest that trains, found by
bisection, over each other; and for some of the budgets that suggest lists the compute of its first
steps, as predicted, beside the processor time of the fastest of STEPS steps over that of a run with
nothing evicted, in the same process, and the compute that was really repeated.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Any

import click
import torch
from rich.table import Table

import dtr_alloc
from bench import results
from bench.measure import profile, try_train
from bench.models import JOBS
from bench.smallest_budget import bisect

STEPS = 8
SHARES = (0.7, 0.5, 0.3)
"""Of the activation memory, at which costs are measured."""
RESOLUTION = 0.01
SCALED = ("mlp", "resnet", "transformer", "unet", "densenet", "accumulation", "autocast")
"""Jobs that are tried with a batch of twice the size, too."""


def _suggested(name: str, scale: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    job = JOBS[name](scale=scale)
    suggestion: dict[str, Any] = dtr_alloc.suggest(
        partial(lambda numbers: job.step(next(numbers)), count()), device="cpu"
    ).document()["suggestion"]
    return suggestion


def measure(name: str, scale: float) -> dict[str, Any]:
    """The row of a job."""
    torch.set_num_threads(1)
    with get_context("spawn").Pool(1) as pool:  # it knows nothing of what is measured
        suggestion = pool.apply(_suggested, (name, scale))
    outlooks = suggestion["outlooks"]
    shape, free = profile(name, STEPS, scale=scale)
    worked = bisect(name, shape, STEPS, RESOLUTION, scale=scale)
    smallest = worked[-1][0] if worked else shape.peak_bytes
    costs = []
    for outlook in outlooks:
        share = min(SHARES, key=lambda share: abs(share - outlook["share"]))
        if abs(share - outlook["share"]) > 0.01 or outlook["first"] is None:
            continue
        run = try_train(name, outlook["budget_bytes"], STEPS, scale=scale)
        costs.append(
            {
                "share": share,
                "predicted": outlook["first"],
                "step_ratio": None if run is None else run.step_seconds / free.step_seconds,
                "computed": None if run is None else 1 + _repeated(run.added),
            }
        )
    return {
        "job": name,
        "scale": scale,
        "peak_bytes": shape.peak_bytes,
        "suggested_peak_bytes": suggestion["peak_bytes"],
        "smallest_bytes": smallest,
        "suggested_smallest_bytes": outlooks[-1]["budget_bytes"] if outlooks else None,
        "resolution_bytes": int(RESOLUTION * shape.activation_bytes),
        "costs": costs,
    }


def _repeated(added: dict[str, Any]) -> float:
    return float(added["recompute_cost_ns"] / added["total_cost_ns"])


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="As suggested / as measured: smallest budget, step (compute)")
    for column in ("job", "smallest MiB", "ratio", *map(str, SHARES)):
        shown.add_column(column, justify="left" if column == "job" else "right")
    for row in rows:
        said, is_so = row["suggested_smallest_bytes"], row["smallest_bytes"]
        cells = {each["share"]: _cell(each) for each in row["costs"]}
        shown.add_row(
            f"{row['job']} x {row['scale']:g}",
            "none" if said is None else f"{said / results.MIB:.2f} / {is_so / results.MIB:.2f}",
            "" if said is None else f"{said / is_so:.2f}",
            *(cells.get(share, "-") for share in SHARES),
        )
    return shown


def _cell(cost: dict[str, Any]) -> str:
    if cost["step_ratio"] is None:
        return f"{cost['predicted']:.2f} / fails"
    return f"{cost['predicted']:.2f} / {cost['step_ratio']:.2f} ({cost['computed']:.2f})"


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option("--json", "path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--smoke", is_flag=True, help="One job.")
def main(jobs: tuple[str, ...], path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    names = jobs or (("mlp",) if smoke else tuple(JOBS))
    cells = [(name, 1.0) for name in names]
    if not smoke:
        cells += [(name, 2.0) for name in names if name in SCALED]
    console = results.console()
    rows = []
    for name, scale in cells:
        with console.status(f"{name} x {scale:g}"):
            rows.append(measure(name, scale))
    console.print(table(rows))
    if path:
        document = results.environment("cpu", 0) | {"bench": "suggest", "steps": STEPS}
        results.write_json(document | {"results": rows}, path)


if __name__ == "__main__":
    main()
