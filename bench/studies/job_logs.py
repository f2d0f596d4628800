"""Op logs of the jobs in bench/models, recorded anew: one step each, with measured costs.

So what is computed from them differs a little from time to time, as the costs do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from dtr_alloc.oplog import Program, compile_log

JOBS = (
    *("mlp", "resnet", "densenet", "unet", "transformer", "lstm", "treelstm", "unrolled_gan"),
    *("accumulation", "autocast", "checkpoint", "inplace"),
)


def record(name: str, path: str) -> None:
    """Writes what the second step of a job computes, on the CPU without a budget."""
    import torch

    import dtr_alloc
    from bench.models import JOBS as KINDS

    torch.set_num_threads(1)
    with dtr_alloc.session(budget="unlimited", device="cpu", log=path, log_steps="2"):
        job = KINDS[name]()
        for step in range(3):
            job.step(step)
        job.drop_gradients()


def job_logs(names: Sequence[str] = JOBS) -> dict[str, Program]:
    """The second step of each job, by its name (its label, too), from a process of its own."""
    from bench.measure import in_own_process

    programs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.log"
            in_own_process(record, name, str(path))
            programs[name] = compile_log(str(path))
            programs[name].path = name
    return programs
