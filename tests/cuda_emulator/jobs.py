"""Jobs of bench/models on "cuda" for the emulator: ``python jobs.py NAME``.

Each prints a digest of all that a user can compare, the state of the CUDA generator included, so
that two runs can be compared bit by bit. "fused" is the transformer with memory-efficient
attention, whose dropout is inside the kernel.
"""

import sys

import torch

import dtr_alloc
from bench.models import JOBS, digest

FACTS: dict[str, int] = globals().get("FACTS", {})
"""For start.py: ``peak_bytes``, and ``resident_bytes``, which the job holds between two steps."""


def train(name: str) -> None:
    if name == "fused":
        torch.backends.cuda.enable_mem_efficient_sdp(True)
        torch.backends.cuda.enable_math_sdp(False)
        name = "transformer"
    job = JOBS[name](device="cuda")
    for i in range(3):
        job.step(i)
    job.drop_gradients()
    FACTS["resident_bytes"] = torch.cuda.memory_allocated()
    FACTS["peak_bytes"] = torch.cuda.max_memory_allocated()
    if dtr_alloc.is_enabled():
        dtr_alloc.set_budget("unlimited")  # for the copies of the state
    print(digest(job.state()))


if __name__ == "__main__":
    train(sys.argv[1])
