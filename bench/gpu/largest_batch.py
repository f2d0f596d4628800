"""The largest batch of ResNet-50 that trains in 8 GiB of device memory, without and with us.

Without: PyTorch's allocator under set_per_process_memory_fraction. With: the budget. Both limit
what the allocator takes from the device, not the context. Each trial is a process of its own, and
several run at once: it counts whether two steps train, not how fast. Batches are tried on a grid,
then between the largest that trains and the smallest that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.gpu.part import Options, Row, run
from bench.gpu.remote import Died
from bench.gpu.shapes import SHAPES
from bench.gpu.trainers import start

JOB = "resnet50"
LIMIT_BYTES = 8 << 30
TINY_LIMIT_BYTES = 4 << 20
GRID = {"plain": [64, 128, 192, 256], "dtr_alloc": [256, 512, 1024, 1536]}
TINY_GRID = {"plain": [8], "dtr_alloc": [16]}
ROUNDS = 2
AT_ONCE = 8
"""Trials; each takes the limit and a context."""
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


def largest(found: Sequence[dict[str, Any]]) -> int:
    """The largest batch that trained; 0: none did."""
    return max((one["batch"] for one in found if one["outcome"] == "trains"), default=0)


def closer(found: Sequence[dict[str, Any]], count: int) -> list[int]:
    """Batches to try next: `count` of them between the largest that trains and the next that does
    not; twice the largest, where all of them train."""
    best = largest(found)
    beyond = [one["batch"] for one in found if one["batch"] > best]
    if not beyond:
        return [2 * best]
    step = max(1, (min(beyond) - best) // (count + 1))
    return list(range(best + step, min(beyond), step))[:count]


def rows(options: Options) -> Iterator[Row]:
    limit = TINY_LIMIT_BYTES if options.tiny else LIMIT_BYTES
    tried = TINY_GRID if options.tiny else GRID
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in tried}
    with ThreadPoolExecutor(1 if options.tiny else AT_ONCE) as pool:
        for _ in range(ROUNDS):
            started = [
                (way, pool.submit(trial, way, batch, options))
                for way, batches in tried.items()
                for batch in batches
            ]
            for way, one in started:
                found[way].append(one.result())
            count = 1 if options.tiny else AT_ONCE // 2
            tried = {way: closer(trials, count) for way, trials in found.items()}
    without = largest(found["plain"])
    row = {"job": JOB, "limit_bytes": limit}
    yield row | {"way": "plain", "largest_batch": without, "trials": found["plain"]}
    if not without:
        raise RuntimeError("no batch that was tried trains without dtr_alloc")
    ours = largest(found["dtr_alloc"])
    row |= {"way": "dtr_alloc", "largest_batch": ours, "trials": found["dtr_alloc"]}
    yield row | {"ratio": ours / without, "goals": {"ratio": [">=", GOAL]}}


if __name__ == "__main__":
    run(rows)
