"""Inputs larger than the plain job can hold: the largest that each job trains in a wall.

The study `large` runs it, and draws it.

The wall is on everything that a process holds (bench/rss_limit.py). For each job: the largest input
that trains in it without dtr_alloc, and the largest under dtr_alloc, by doubling and bisection,
each trial a process of its own; what the plain job holds, without a wall, to train the latter; and
seconds of processor time per item (a sample, a token, a pixel, ...) there and here.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench import results
from bench.rss_limit import INPUTS, REPEATS_PER_OPERATOR, SLACK, Trial, largest
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


def document(smoke: bool, at_once: int) -> dict[str, Any]:
    """All rows, with what they were measured by. Trials of so many jobs run at the same time."""
    names: tuple[str, ...] = tuple(INPUTS)
    resolution, doublings = 1 / 8, None
    if smoke:
        names, resolution, doublings = ("mlp",), 1.0, 1
    wall_bytes = default_wall()

    def row(name: str) -> dict[str, Any]:
        return measure(name, wall_bytes, resolution, doublings, references=not smoke)

    with ThreadPoolExecutor(1 if smoke else at_once) as workers:
        rows = list(workers.map(row, names))
    facts: dict[str, Any] = {"wall_bytes": wall_bytes, "slack": SLACK, "resolution": resolution}
    facts |= {"repeats_per_operator": REPEATS_PER_OPERATOR, "heuristic": str(Config.heuristic)}
    return results.environment("cpu", 0) | facts | {"results": rows}
