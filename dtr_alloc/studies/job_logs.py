"""Op logs of the jobs in bench/models, recorded anew: one step each, with measured costs.

So what is computed from them differs a little from time to time, as the costs do.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dtr_alloc.oplog import Program, compile_log
from dtr_alloc.studies.study import Unavailable

JOBS = (
    *("mlp", "resnet", "densenet", "unet", "transformer", "lstm", "treelstm", "unrolled_gan"),
    *("accumulation", "autocast", "checkpoint", "inplace"),
)

_RECORD = """
import sys
import torch
import dtr_alloc
from bench.models import JOBS

torch.set_num_threads(1)
with dtr_alloc.session(budget="unlimited", device="cpu", log=sys.argv[2], log_steps="2"):
    job = JOBS[sys.argv[1]]()
    for step in range(3):
        job.step(step)
    job.drop_gradients()
"""


def job_logs(names: Sequence[str] = JOBS) -> dict[str, Program]:
    """The second step of each job, by its name, from a process of its own. Raises Unavailable."""
    for module in ("torch", "bench"):
        if importlib.util.find_spec(module) is None:
            raise Unavailable(f"needs the package {module!r} (bench: of a checkout, in its folder)")
    programs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.log"
            command = [sys.executable, "-c", _RECORD, name, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"the job {name!r} could not be recorded:\n{done.stderr}")
            programs[name] = compile_log(str(path))
    return programs
