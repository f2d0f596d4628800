"""The largest batch of ResNet-50 that trains in 8 GiB of device memory, without and with us.

Without: PyTorch's allocator under set_per_process_memory_fraction. With: the budget. Both limit
what the allocator takes from the device, not the context. Each trial is a process of its own, and
several run at once: it counts whether two steps train, not how fast. Batches are tried on a grid,
then between the largest that trains and the smallest that does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.gpu.part import Options, Row, run
from bench.gpu.remote import Died
from bench.gpu.shapes import SHAPES
from bench.gpu.trainers import start

JOB = "resnet50"
LIMIT_BYTES = 8 << 30
TINY_LIMIT_BYTES = 4 << 20
AT_ONCE = 6
TRIAL_SECONDS = 75.0
MOST_REPEATS = 20_000
GOAL = 4.0


def trial(way: str, batch: int, options: Options) -> dict[str, Any]:
    """What became of one batch: its "outcome", and the seconds of its second step."""
    unit = SHAPES[JOB][1 if options.tiny else 0].BATCH
    limit = TINY_LIMIT_BYTES if options.tiny else LIMIT_BYTES
    arguments = {} if way == "plain" else {"most_repeats": MOST_REPEATS}
    with start(JOB, way, options, seconds=TRIAL_SECONDS) as trainer:
        try:
            command = "limit" if way == "plain" else "budget"
            for given in (
                lambda: trainer.ask(command, size_bytes=limit),
                lambda: trainer.ask("build", scale=batch / unit),
                lambda: trainer.ask("steps", count=2, **arguments),
            ):
                answer = given()
                if "error" in answer or answer.get("outcome", "trains") != "trains":
                    return {"batch": batch, "outcome": answer.get("error", answer.get("outcome"))}
        except Died as died:
            return {"batch": batch, "outcome": f"{died} (a trial has {TRIAL_SECONDS:.0f} s)"}
    return {"batch": batch, "outcome": "trains", "step_seconds": answer["seconds"][-1]}


def search(
    grid: Sequence[int], between: int, attempt: Callable[[Sequence[int]], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """All that was tried: the grid, and `between` batches between the largest that trains and
    the next that does not."""
    found = attempt(grid)
    best = largest(found)
    beyond = [one["batch"] for one in found if one["batch"] > best]
    if best and beyond:
        step = max(1, (min(beyond) - best) // (between + 1))
        closer = range(best + step, min(beyond), step)[:between]
        found += attempt(closer)
    return found


def largest(found: Sequence[dict[str, Any]]) -> int:
    """The largest batch that trained; 0: none did."""
    return max((one["batch"] for one in found if one["outcome"] == "trains"), default=0)


def rows(options: Options) -> Iterator[Row]:
    unit = SHAPES[JOB][1 if options.tiny else 0].BATCH
    at_once = 1 if options.tiny else min(AT_ONCE, os.cpu_count() or 1)
    between = 1 if options.tiny else AT_ONCE - 1

    def attempts(way: str) -> Callable[[Sequence[int]], list[dict[str, Any]]]:
        def attempt(batches: Sequence[int]) -> list[dict[str, Any]]:
            with ThreadPoolExecutor(at_once) as pool:
                return list(pool.map(lambda batch: trial(way, batch, options), batches))

        return attempt

    grid = [unit // 4, unit // 2] if options.tiny else [32, 64, 96, 128, 192, 256]
    plain = search(grid, between, attempts("plain"))
    without = largest(plain)
    yield {"job": JOB, "way": "plain", "largest_batch": without, "trials": plain}
    if not without:
        raise RuntimeError(f"no batch of {grid} trains without dtr_alloc")
    multiples = [1] if options.tiny else [2, 3, 4, 6, 8, 12]
    grid = [multiple * without for multiple in multiples]
    ours = search(grid, between, attempts("dtr_alloc"))
    row = {"job": JOB, "way": "dtr_alloc", "largest_batch": largest(ours), "trials": ours}
    row["limit_bytes"] = TINY_LIMIT_BYTES if options.tiny else LIMIT_BYTES
    row |= {"ratio": largest(ours) / without, "goals": {"ratio": [">=", GOAL]}}
    yield row


if __name__ == "__main__":
    run(rows)
