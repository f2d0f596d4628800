"""How often a steady training step makes the host wait for the device, with and without us.

Calls that wait (cudaStreamSynchronize and its like) are counted by PyTorch's profiler, which does
not see those of the driver interface that our core makes: it counts those itself, as `host_waits`
of its statistics. The profiler waits once at its end, in both ways.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.gpu.part import Options, Row, run
from bench.gpu.shapes import jobs
from bench.gpu.trainers import profiled, start


def rows(options: Options) -> Iterator[Row]:
    for job in jobs(tiny="unet" if options.tiny else None):
        try:
            yield from measure(job, options)
        except RuntimeError as error:
            yield {"job": job, "error": str(error)}


def measure(job: str, options: Options) -> Iterator[Row]:
    warm, count = (1, 2) if options.tiny else (4, 5)
    with start(job, "plain", options) as plain, start(job, "dtr_alloc", options) as ours:
        for trainer in (plain, ours):
            trainer.need("build")
            trainer.need("steps", count=warm)
        least = plain.need("waits", count=count)
        without = sum(least["calls"].values())
        yield {"job": job, "way": "plain", "steps": count, "waits": without, **least}
        for fraction in (None, 0.5):
            if fraction is not None:
                ours.need("budget", size_bytes=profiled(ours).budget(fraction))
                ours.need("steps", count=warm)
            found = ours.need("waits", count=count)
            waits = sum(found["calls"].values()) + (found["host_waits"] or 0)
            row = {"job": job, "way": "dtr_alloc", "budget_fraction": fraction, "steps": count}
            row |= {"waits": waits, "added_waits": waits - without, **found}
            yield row | {"goals": {"added_waits": ["<=", 0]}}


if __name__ == "__main__":
    run(rows)
