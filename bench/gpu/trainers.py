"""Starting trainers (bench/gpu/trainer.py), and what several parts ask of them."""

from __future__ import annotations

from bench.gpu.part import Options
from bench.gpu.remote import Remote
from bench.measure import Profile


def start(job: str, way: str, options: Options, seconds: float | None = None) -> Remote:
    """A process that trains `job`; it still has to build it. Killed after `seconds`."""
    arguments = ["--job", job, "--way", way, "--device", options.device]
    arguments += ["--tiny"] if options.tiny else []
    return Remote("bench.gpu.trainer", *arguments, seconds=seconds)


def profiled(trainer: Remote) -> Profile:
    """What the job holds with nothing evicted; of a trainer that has warmed up."""
    answer = trainer.need("steps", count=2)
    return Profile(answer["idle_bytes"], answer["peak_bytes"])
