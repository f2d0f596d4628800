"""Inputs larger than the plain job can hold: the largest that each job trains in a wall.

    python -m bench.large_inputs [--json PATH] [--job NAME]... [--wall MIB] [--smoke]

The wall is on everything that a process holds (bench/walled.py). For each job: the largest input
that trains in it without dtr_alloc, and the largest under dtr_alloc, by doubling and bisection,
each trial a process of its own; what the plain job holds, without a wall, to train the latter; and
seconds of processor time per item (a sample, a token, a pixel, ...) there and here.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import results
from bench.heap import cpu_name
from bench.walled import INPUTS, REPEATS_PER_OPERATOR, SLACK, Trial, largest
from dtr_alloc.config import Config

STARTS = {"mlp": 2048, "resnet": 128, "unet": 32, "transformer": 32, "lstm": 12, "treelstm": 8}
"""Sizes that train in a wall that leaves ROOM, in both ways."""
ROOM_MIB = 80
"""For tensors, where the wall is not given: trials take seconds."""
NO_MOST = 2**30


def default_wall() -> int:
    """What a process holds that trains next to nothing, with ROOM, up to the next 10 MiB."""
    held: int = Trial("mlp", INPUTS["mlp"].unit, True, None).run()["peak_resident_bytes"]
    tens = math.ceil((held / results.MIB + ROOM_MIB) / 10)
    return 10 * tens * results.MIB


class Search:
    """The trials of one job in one wall, with or without dtr_alloc."""

    def __init__(self, name: str, plain: bool, wall: int) -> None:
        self.name, self.plain, self.wall = name, plain, wall
        self._found: dict[int, dict[str, Any]] = {}

    def found(self, size: int) -> dict[str, Any]:
        """What the trial of that size found."""
        if size not in self._found:
            self._found[size] = Trial(self.name, size, self.plain, self.wall).run()
        return self._found[size]

    def trains(self, size: int) -> bool:
        return self.found(size)["outcome"] == "trains"

    def require(self, size: int) -> None:
        """Raises RuntimeError if not even that size trains."""
        if not self.trains(size):
            raise RuntimeError(
                f"{self.name} with {size} {INPUTS[self.name].noun} "
                f"{'without' if self.plain else 'under'} dtr_alloc: {self.found(size)['outcome']} "
                f"in a wall of {self.wall} bytes; allowed: a wall in which that trains"
            )

    def beyond(self) -> str | None:
        """What became of the smallest size that did not train; None if all did."""
        failed = [size for size in self._found if not self.trains(size)]
        return self.found(min(failed))["outcome"] if failed else None


def measure(
    name: str, wall: int, resolution: float, doublings: int | None, references: bool
) -> dict[str, Any]:
    """One row: a job in the wall. `doublings` limits the search under dtr_alloc; `references`: also
    the plain job's largest under dtr_alloc, and ours without dtr_alloc and a wall."""
    given = INPUTS[name]
    plain, ours = Search(name, True, wall), Search(name, False, wall)
    plain.require(STARTS[name])
    plain_size = largest(plain.trains, STARTS[name], given.unit, resolution, NO_MOST)
    if references:
        ours.require(plain_size)
    most = NO_MOST if doublings is None else plain_size * 2**doublings
    size = largest(ours.trains, plain_size, given.unit, resolution, most)
    ours.require(size)
    free = Trial(name, size, True, None).run() if references else None

    def per_item(found: dict[str, Any], size: int) -> float:
        return found["step_seconds"] / size**given.power

    row = {
        "job": name,
        "input": given.noun,
        "plain_size": plain_size,
        "size": size,
        "plain_beyond": plain.beyond(),
        "beyond": ours.beyond(),
        "items_ratio": (size / plain_size) ** given.power,
        "beside_bytes": ours.found(size)["beside_bytes"],
        "budget_bytes": ours.found(size)["budget_bytes"],
        "peak_resident_bytes": ours.found(size)["peak_resident_bytes"],
        "rematerializations_per_step": ours.found(size)["rematerializations_per_step"],
        "plain_seconds_per_item": per_item(plain.found(plain_size), plain_size),
        "seconds_per_item": per_item(ours.found(size), size),
    }
    if free is not None:
        row["same_size_seconds_per_item"] = per_item(ours.found(plain_size), plain_size)
        row["needed_bytes"] = free["peak_resident_bytes"]
        row["needed_seconds_per_item"] = per_item(free, size)
    return row


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    table = Table(title="Largest inputs in the wall")
    for column in ("job", "input"):
        table.add_column(column)
    for column in ("plain", "dtr_alloc", "needs MiB", "plain µs/item", "same size", "largest"):
        table.add_column(column, justify="right")
    for row in rows:
        needs = f"{row['needed_bytes'] / results.MIB:.0f}" if "needed_bytes" in row else "-"
        keys = ("plain_seconds_per_item", "same_size_seconds_per_item", "seconds_per_item")
        times = [f"{row[key] * 1e6:.2f}" if key in row else "-" for key in keys]
        table.add_row(
            row["job"], row["input"], str(row["plain_size"]), str(row["size"]), needs, *times
        )
    console.print(table)


@click.command(help="The largest inputs that jobs train in a wall.")
@click.option("--job", "jobs", multiple=True, type=click.Choice(sorted(INPUTS)))
@click.option("--wall", type=int, help="MiB that a process may hold, all in all.")
@click.option("--resolution", default=1 / 8, help="A larger input by this part does not train.")
@click.option("--at-once", default=1, help="Jobs whose trials run at the same time.")
@results.options("One job, a few trials, seconds.")
def main(
    jobs: tuple[str, ...],
    wall: int | None,
    resolution: float,
    at_once: int,
    path: str | None,
    smoke: bool,
) -> None:
    names: tuple[str, ...] = jobs or tuple(INPUTS)
    doublings = None
    if smoke:
        names, resolution, doublings = ("mlp",), 1.0, 1

    wall_bytes = default_wall() if wall is None else wall * results.MIB

    def row(name: str) -> dict[str, Any]:
        return measure(name, wall_bytes, resolution, doublings, references=not smoke)

    console = results.console()
    with console.status("enlarging inputs"), ThreadPoolExecutor(at_once) as workers:
        rows = list(workers.map(row, names))
    show(rows, console)
    if path:
        document = results.environment("cpu", 0) | {"bench": "large_inputs", "threads": 1}
        document |= {"processor": cpu_name(), "wall_bytes": wall_bytes, "slack": SLACK}
        document |= {"resolution": resolution, "repeats_per_operator": REPEATS_PER_OPERATOR}
        document |= {"heuristic": str(Config.heuristic), "results": rows}
        results.write_json(document, path)


if __name__ == "__main__":
    main()
