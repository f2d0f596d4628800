"""Whole jobs on "cuda" compute the same bits in less memory."""

from functools import cache

import pytest
from emulated import run

# Prints a digest of all that a user can compare, the state of the CUDA generator included. "fused"
# is the transformer with memory-efficient attention, whose dropout is inside the kernel.
JOB = """
import sys
import torch
import dtr_alloc
from bench.models import JOBS, digest

name = sys.argv[1]
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
"""
MODELS = ("mlp", "resnet", "transformer", "fused")


@cache
def plain(model):
    """A job with PyTorch's own allocator, and what it needs with ours."""
    expected = run(JOB, model)
    measured = run(JOB, model, budget="unlimited")
    assert measured.output == expected.output
    assert measured.stats["evictions"] == 0
    return expected.output, measured.report["resident_bytes"], measured.report["peak_bytes"]


@pytest.mark.parametrize("share", [1.0, 0.6, 0.3])
@pytest.mark.parametrize("model", MODELS)
def test_a_job_computes_the_same_bits_in_a_share_of_its_activation_memory(model, share):
    output, resident, peak = plain(model)
    # A few chunks for what shares its chunk with something of another size.
    budget = resident + int(share * (peak - resident)) + (16 * 65536)
    done = run(JOB, model, budget=budget)
    assert done.output == output
    assert done.report["peak_bytes"] <= budget
    if share < 1:
        assert done.stats["evictions"] > 0
        assert done.stats["rematerializations"] > 0
