"""Whether the driver agrees that the budget holds: what is in use on the device, at most.

A thread asks cudaMemGetInfo every two milliseconds while a job trains under a budget that leaves
half of its activation memory. That may be as much as the budget and what a process of PyTorch
takes beside its allocator (the CUDA context, the code of kernels, what others hold), which is
measured first: the same steps without us, the driver's number minus memory_reserved().
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.gpu.part import Options, Row, Wrong, run
from bench.gpu.trainers import profiled, start

FRACTION = 0.5
JOBS = ("resnet50", "gpt2_medium")
SLACK_BYTES = 64 << 20
"""What a context may differ by from process to process: code that is loaded when it is needed."""


def rows(options: Options) -> Iterator[Row]:
    above = []
    for job in ("gpt2_medium",) if options.tiny else JOBS:
        try:
            row = measure(job, options)
        except RuntimeError as error:
            row = {"job": job, "error": str(error)}
        yield row
        if options.device == "cuda" and row.get("above_bytes", 0) > SLACK_BYTES:
            above.append(f"{job} by {row['above_bytes']} bytes")
    if above:
        raise Wrong("more in use than the budget and the context: " + ", ".join(above))


def measure(job: str, options: Options) -> Row:
    count = 2 if options.tiny else 4
    with start(job, "plain", options) as plain:
        plain.need("build")
        plain.need("steps", count=count)
        beside = plain.need("beside")["beside_bytes"]
    with start(job, "dtr_alloc", options) as ours:
        ours.need("build")
        ours.need("steps", count=1)
        shape = profiled(ours)
        budget = shape.budget(FRACTION)
        ours.need("budget", size_bytes=budget)
        ours.need("steps", count=1)
        watched = ours.need("watch", count=count)
    return {
        "job": job,
        "budget_fraction": FRACTION,
        "budget_bytes": budget,
        "context_bytes": beside,
        "driver_peak_bytes": watched["driver_peak_bytes"],
        "above_bytes": watched["driver_peak_bytes"] - budget - beside,
        "slack_bytes": SLACK_BYTES,
        "peak_reserved_bytes": watched["peak_reserved_bytes"],
        "samples": watched["samples"],
        "goals": {"above_bytes": ["<=", SLACK_BYTES]} if options.device == "cuda" else {},
    }


if __name__ == "__main__":
    run(rows)
