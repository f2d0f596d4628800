"""How long training steps take under dtr_alloc, against PyTorch's own allocator without it.

For each job, processes that take turns on the device, block by block of steps, so that clocks and
temperatures are shared; the medians of all steps but the first of a block are compared. First
with a budget that never binds, and what explains the difference: the allocator alone, without the
recorder. Then at fractions of the activation memory: the first steps (`first_ratio`), and, once the
engine had time to learn the step, those that follow.

Device seconds are between CUDA events; host seconds are what it takes to queue a step: what the
host does beside that costs nothing as long as it is less than the device's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

from bench.gpu.part import Options, Row, run
from bench.gpu.remote import Remote
from bench.gpu.shapes import jobs
from bench.gpu.trainers import profiled, start

UNBOUND_GOAL = 1.01
BUDGET_GOALS = {0.7: 1.03, 0.5: 1.12, 0.3: 1.3}
MOST_REPEATS = 50_000
LEARNING_STEPS = 80


class Turns:
    """Blocks of steps by turns, and what each took."""

    def __init__(self, block: int) -> None:
        self._block = block
        self.seconds: dict[str, list[float]] = {}
        self.host: dict[str, list[float]] = {}

    def take(self, way: str, trainer: Remote, **arguments: Any) -> dict[str, Any]:
        """One block, and one step before it that does not count."""
        answer = trainer.ask("steps", count=self._block + 1, **arguments)
        if answer.get("outcome") == "trains":
            self.seconds.setdefault(way, []).extend(answer["seconds"][1:])
            self.host.setdefault(way, []).extend(answer["host_seconds"][1:])
        return answer

    def row(self, way: str) -> Row:
        seconds, plain = median(self.seconds[way]), median(self.seconds["plain"])
        return {
            "way": way,
            "steps": len(self.seconds[way]),
            "step_seconds": seconds,
            "plain_step_seconds": plain,
            "host_seconds": median(self.host[way]),
            "ratio": seconds / plain,
            "spread": (max(self.seconds[way]) - min(self.seconds[way])) / seconds,
        }


def rows(options: Options) -> Iterator[Row]:
    for job in jobs(tiny="resnet50" if options.tiny else None):
        try:
            yield from measure(job, options)
        except RuntimeError as error:  # one job that fails leaves the others
            yield {"job": job, "error": str(error)}


def measure(job: str, options: Options) -> Iterator[Row]:
    """The rows of one job."""
    rounds, block = (1, 1) if options.tiny else (4, 6)
    with ExitStack() as started:
        trainers = {
            way: started.enter_context(start(job, way, options))
            for way in ("plain", "allocator", "dtr_alloc")
        }
        for trainer in trainers.values():  # they start and build at the same time
            trainer.send("build")
        for trainer in trainers.values():
            trainer.receive()
        for trainer in trainers.values():
            trainer.need("steps", count=1 if options.tiny else 4)
        turns = Turns(block)
        for _ in range(rounds):
            for way, trainer in trainers.items():
                turns.take(way, trainer)
        for way in turns.seconds:
            goals = {"ratio": ["<=", UNBOUND_GOAL]} if way == "dtr_alloc" else {}
            yield {"job": job, "budget_fraction": None, **turns.row(way), "goals": goals}
        trainers.pop("allocator").close()
        shape = profiled(trainers["dtr_alloc"])
        for fraction, goal in BUDGET_GOALS.items():
            budget = shape.budget(fraction)
            row: Row = {"job": job, "budget_fraction": fraction, "way": "dtr_alloc"}
            row |= {"budget_bytes": budget, "activation_bytes": shape.activation_bytes}
            learning = 1 if options.tiny else LEARNING_STEPS
            yield row | _under(budget, trainers, rounds, block, learning, goal)


def _under(
    budget_bytes: int,
    trainers: dict[str, Remote],
    rounds: int,
    block: int,
    learning: int,
    goal: float,
) -> Row:
    """Step times under a budget, beside plain ones of the same minute."""
    ours = trainers["dtr_alloc"]
    given = ours.ask("budget", size_bytes=budget_bytes)
    if given.get("outcome") == "trains":
        given = ours.ask("steps", count=2, most_repeats=MOST_REPEATS)
    first = Turns(block)
    if given.get("outcome") == "trains":
        first.take("plain", trainers["plain"])
        given = first.take("dtr_alloc", ours, most_repeats=MOST_REPEATS)
    if given.get("outcome") == "trains":
        given = ours.ask("steps", count=learning, most_repeats=learning * MOST_REPEATS)
    turns = Turns(block)
    last: dict[str, Any] = {}
    for _ in range(max(1, rounds // 2)):
        if given.get("outcome") != "trains":
            break
        turns.take("plain", trainers["plain"])
        last = given = turns.take("dtr_alloc", ours, most_repeats=MOST_REPEATS)
    if given.get("outcome") != "trains":
        if "error" in given:
            raise RuntimeError(given["error"])
        return {"outcome": given["outcome"], "message": given.get("message"), "ratio": None}
    return {
        "outcome": "trains",
        **turns.row("dtr_alloc"),
        "first_ratio": first.row("dtr_alloc")["ratio"],
        "peak_bytes": last["peak_bytes"],
        "steps_added_up": block + 1,
        "added": last["added"],
        "goals": {"ratio": ["<=", goal]},
    }


if __name__ == "__main__":
    run(rows)
