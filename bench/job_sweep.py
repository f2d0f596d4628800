"""Each job under smaller and smaller budgets: the same bits, and what it costs.

    python -m bench.job_sweep [--job NAME]... [--smoke] [--json PATH]

A budget is what the job keeps between two steps and a fraction of its activation memory. Every run
is compared bit for bit with one without dtr_alloc. The default policy stands beside the one of the
DTR paper (dtr-eqclass with eager eviction): the time of the fastest step in terms of that with
nothing evicted, in the same process, and the recomputed operators in terms of those of the job.
A run that repeats more than MOST_REPEATS operators counts as one that thrashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import torch
from rich.table import Table

from bench import results
from bench.measure import Profile, Run, Thrashing, profile, train, train_plain
from bench.models import JOBS, differences

MOST_REPEATS = 20_000
FRACTIONS = (0.9, 0.7, 0.5, 0.4, 0.3, 0.2)
POLICIES = {
    "default": {},
    "dtr-eqclass, eager": {"heuristic": "dtr-eqclass"},
}


def measure(name: str, steps: int, fractions: tuple[float, ...], **options: Any) -> Iterator[Any]:
    """The rows of one job."""
    reference = train_plain(name, steps, **options)
    shape, free = profile(name, steps, **options)
    if differences(reference, free.state):
        raise SystemExit(f"{name}: other bits without a limit")
    for policy, settings in POLICIES.items():
        for fraction in fractions:
            found = _run(name, shape, fraction, steps, settings, **options)
            row = {"job": name, "policy": policy, "fraction": fraction}
            if isinstance(found, str):
                yield row | {"outcome": found}
                continue
            wrong = differences(reference, found.state)
            yield row | {
                "outcome": "other bits" if wrong else "same bits",
                "step_ratio": found.step_seconds / free.step_seconds,
                "recomputed": found.rematerializations / free.added["recorded_ops"],
                "evictions": found.evictions,
            }


def _run(
    name: str, shape: Profile, fraction: float, steps: int, settings: Any, **options: Any
) -> Run | str:
    try:
        return train(
            name,
            shape.budget(fraction),
            steps,
            most_repeats=MOST_REPEATS,
            settings=settings,
            **options,
        )
    except torch.OutOfMemoryError:
        return "out of memory"
    except Thrashing:
        return "thrashes"


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="Step time / step time without eviction, at fractions of activation memory")
    fractions = list(dict.fromkeys(row["fraction"] for row in rows))
    for column in ("job", "policy", *map(str, fractions)):
        shown.add_column(column, justify="left" if column in ("job", "policy") else "right")
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        good = row["outcome"] == "same bits"
        text = f"{row['step_ratio']:.2f}x" if good else row["outcome"]
        lines.setdefault((row["job"], row["policy"]), []).append(text)
    for names, cells in lines.items():
        shown.add_row(*names, *cells)
    return shown


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option("--steps", default=3, show_default=True)
@click.option("--seed", default=0, show_default=True)
@results.options("One job, two budgets, seconds.")
def main(jobs: tuple[str, ...], steps: int, seed: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    names = jobs or (("mlp",) if smoke else tuple(JOBS))
    fractions = (0.7, 0.3) if smoke else FRACTIONS
    console = results.console()
    rows: list[dict[str, Any]] = []
    for name in names:
        with console.status(f"training {name}"):
            rows.extend(measure(name, steps, fractions, device="cpu", seed=seed))
    console.print(table(rows))
    results.write(path, "job_sweep", seed, steps=steps, results=rows)


if __name__ == "__main__":
    main()
