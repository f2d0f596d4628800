"""Op logs of the jobs in bench/models, recorded anew: one step each, with measured costs.

So what is computed from them differs a little from time to time, as the costs do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.studies import checkout
from dtr_alloc.oplog import Program, compile_log

JOBS = (
    *("mlp", "resnet", "densenet", "unet", "transformer", "lstm", "treelstm", "unrolled_gan"),
    *("accumulation", "autocast", "checkpoint", "inplace"),
)


def job_logs(names: Sequence[str] = JOBS) -> dict[str, Program]:
    """The second step of each job, by its name (its label, too), from a process of its own.

    Raises RuntimeError for a job that fails.
    """
    programs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.log"
            process = checkout.start("bench.record", name, str(path))
            _, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(f"the job {name!r} could not be recorded:\n{errors[-2000:]}")
            programs[name] = compile_log(str(path))
            programs[name].path = name
    return programs
