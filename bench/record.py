"""Record one step of a job as an op log: ``python -m bench.record JOB FILE``."""

from __future__ import annotations

import click
import torch

import dtr_alloc
from bench.models import JOBS


@click.command()
@click.argument("job", type=click.Choice(list(JOBS)))
@click.argument("file", type=click.Path(dir_okay=False))
def main(job: str, file: str) -> None:
    """Writes what the second step of JOB computes, on the CPU without a budget, to FILE."""
    torch.set_num_threads(1)
    with dtr_alloc.session(budget="unlimited", device="cpu", log=file, log_steps="2"):
        running = JOBS[job]()
        for step in range(3):
            running.step(step)
        running.drop_gradients()


if __name__ == "__main__":
    main()
