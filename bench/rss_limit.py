"""One training run in a process that may hold so much memory and no more.

    python -m bench.rss_limit --job lstm --size 400 [--wall BYTES] [--plain] [--steps N]

The wall is on the peak resident set: interpreter, PyTorch, tensors, all. (A limit on address
space or data, RLIMIT_AS or RLIMIT_DATA, would count what dtr_alloc's heap reserves and never
touches, and a memory cgroup takes privileges.) `Trial.run` starts the process, ends it when it is
seen above the wall, and afterwards asks for the kernel's own record of the peak, so that nothing
gets through between two looks.

Under dtr_alloc the budget is the wall, minus what the process holds beside tensors, minus a
SLACK of the wall. What it holds is measured before the first step: by one step of the same program
(as long, as deep) on a batch of two, as the peak resident set minus what the pool had mapped.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil
import torch

import dtr_alloc
from bench.demo.worker import peak_resident_bytes
from bench.measure import Thrashing, limited_repeats
from bench.models import JOBS, Job

SLACK = 1 / 25
REPEATS_PER_OPERATOR = 1
"""With more rematerializations in a step than this for each of its operators a run is said to
thrash (the paper leaves out what takes twice as long)."""
LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Input:
    """What grows in a job.

    Attributes:
        noun: what its size counts.
        batch: samples in a batch of scale 1.
        attribute: of the job's class, that the size replaces; None: the size is the batch.
        scale: of the batch, where that is not the size: so large that two samples, which run
            before the budget is known, take far less than the rest.
        unit: sizes are multiples of it.
        power: how many items an input has: size to this power.
    """

    noun: str
    batch: int
    attribute: str | None = None
    scale: float = 1.0
    unit: int = 1
    power: int = 1


INPUTS = {
    "mlp": Input("samples in a batch", batch=384, unit=64),
    "resnet": Input("images in a batch", batch=16),
    "unet": Input("pixels on an image's side", batch=6, attribute="SIDE", scale=4, unit=4, power=2),
    "transformer": Input("tokens in a sequence", batch=8, attribute="TOKENS", scale=4, unit=4),
    "lstm": Input("steps of a sequence", batch=128, attribute="STEPS", scale=32),
    "treelstm": Input("leaves of a tree", batch=128, attribute="LEAVES", scale=32),
}


def build(name: str, size: int, tiny: bool = False) -> Job:
    """The job with its input of that size; tiny: the same program on a batch of two. (With one
    sample some copies are views.)"""
    given = INPUTS[name]
    smallest = 2 / given.batch
    if given.attribute is None:
        return JOBS[name](scale=smallest if tiny else size / given.batch)
    factory: Any = JOBS[name]
    sized = type(factory.__name__, (factory,), {given.attribute: size})
    job: Job = sized(scale=smallest if tiny else given.scale)
    return job


def timed_steps(job: Job, steps: int, most_repeats: int | None = None) -> float:
    """Trains and returns the median seconds of a step after the first: of processor time, which
    on one thread is the time it takes where nobody else wants the processor. Raises Thrashing
    after more rematerializations in one step."""
    seconds = []
    for i in range(steps):
        start = time.process_time()
        with limited_repeats(most_repeats):
            job.step(i)
        seconds.append(time.process_time() - start)
    return median(seconds[1:])


def train_plain(name: str, size: int, steps: int) -> dict[str, Any]:
    """Without dtr_alloc."""
    return {"step_seconds": timed_steps(build(name, size), steps)}


def train_budgeted(name: str, size: int, steps: int, wall: int) -> dict[str, Any]:
    """Under the budget that the wall leaves. Raises torch.OutOfMemoryError and Thrashing."""
    # Never disabled, the process ends: leaving would bring back what is evicted, past the budget.
    dtr_alloc.enable(budget="unlimited", device="cpu")
    build(name, size, tiny=True).step(0)
    warm = dtr_alloc.stats()
    beside = peak_resident_bytes() - warm["peak_reserved_bytes"]
    gc.collect()
    dtr_alloc.trim()
    budget = wall - beside - int(SLACK * wall)
    if budget <= 0:
        raise torch.OutOfMemoryError(f"the wall of {wall} bytes leaves nothing for tensors")
    dtr_alloc.set_budget(budget)
    most_repeats = REPEATS_PER_OPERATOR * warm["recorded_ops"]
    seconds = timed_steps(build(name, size), steps, most_repeats)
    repeats = dtr_alloc.stats()["rematerializations"] - warm["rematerializations"]
    return {
        "beside_bytes": beside,
        "budget_bytes": budget,
        "step_seconds": seconds,
        "rematerializations_per_step": repeats / steps,
    }


@dataclass(frozen=True)
class Trial:
    """One process: a job with an input of some size, with or without dtr_alloc and a wall.

    Attributes:
        wall: bytes; None: no limit (without dtr_alloc only).
    """

    job: str
    size: int
    plain: bool
    wall: int | None
    steps: int = 3

    def run(self) -> dict[str, Any]:
        """What it found, as "outcome" ("trains", "hits the wall", "out of memory", "thrashes") and,
        if it trains, "step_seconds" and "peak_resident_bytes". Raises RuntimeError with its last
        words if it fails for any other reason."""
        command = [sys.executable, "-m", "bench.rss_limit", "--job", self.job]
        command += ["--size", str(self.size), "--steps", str(self.steps)]
        command += ["--plain"] if self.plain else []
        command += [] if self.wall is None else ["--wall", str(self.wall)]
        root = Path(__file__).parents[1]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=root, stdout=pipe, stderr=pipe, text=True) as process:
            if self.wall is not None and not _stays_below(self.wall, process):
                return {"outcome": "hits the wall"}
            printed, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self} ended with {process.returncode}:\n{errors[-2000:]}")
        found: dict[str, Any] = json.loads(printed)
        if self.wall is not None and found["peak_resident_bytes"] > self.wall:
            return {"outcome": "hits the wall"}
        return found


def _stays_below(wall: int, process: subprocess.Popen[str]) -> bool:
    """Waits for the process to end; False if it was seen above the wall, which ends it."""
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            resident = watched.memory_info().rss
        except psutil.NoSuchProcess:
            break
        if resident > wall:
            process.kill()
            return False
        time.sleep(LOOK_SECONDS)
    return True


def largest(
    trains: Callable[[int], bool], low: int, unit: int, resolution: float, most: int
) -> int:
    """The largest size known to train, from `low`, which does: doubled while that trains, up to
    `most`, then bisected, in multiples of `unit`, until the least size that does not train is
    larger by no more than `resolution`, as a part."""
    high = 2 * low
    while high <= most and trains(high):
        low, high = high, 2 * high
    if high > most:
        return low
    while high - low > max(unit, resolution * low):
        middle = (low + high) // (2 * unit) * unit
        if trains(middle):
            low = middle
        else:
            high = middle
    return low


@click.command(help="One training run in a process of its own; used by the study `large`.")
@click.option("--job", type=click.Choice(sorted(INPUTS)), required=True)
@click.option("--size", type=int, required=True)
@click.option("--wall", type=int, default=None, help="Bytes that the process may hold.")
@click.option("--plain", is_flag=True, help="Without dtr_alloc.")
@click.option("--steps", type=click.IntRange(2), default=3)
def main(job: str, size: int, wall: int | None, plain: bool, steps: int) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {"outcome": "trains"}
    try:
        if plain:
            found |= train_plain(job, size, steps)
        elif wall is None:
            raise click.UsageError("--wall is missing: the budget is derived from it")
        else:
            found |= train_budgeted(job, size, steps, wall)
    except Thrashing:
        found["outcome"] = "thrashes"
    except torch.OutOfMemoryError:
        found["outcome"] = "out of memory"
    click.echo(json.dumps({"peak_resident_bytes": peak_resident_bytes()} | found))


if __name__ == "__main__":
    main()
