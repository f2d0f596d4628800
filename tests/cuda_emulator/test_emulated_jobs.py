"""Whole jobs on "cuda" compute the same bits in less memory."""

from functools import cache
from pathlib import Path

import pytest

JOBS = Path(__file__).parent / "jobs.py"
MODELS = ("mlp", "resnet", "transformer", "fused")


@pytest.fixture(scope="session")
def plain(machine):
    """A job with PyTorch's own allocator, and what it needs with ours."""

    @cache
    def of(model):
        expected = machine.run(JOBS, model)
        measured = machine.run(JOBS, model, budget="unlimited")
        assert measured.output == expected.output
        assert measured.stats["evictions"] == 0
        return expected.output, measured.report["resident_bytes"], measured.report["peak_bytes"]

    return of


@pytest.mark.parametrize("share", [1.0, 0.6, 0.3])
@pytest.mark.parametrize("model", MODELS)
def test_a_job_computes_the_same_bits_in_a_share_of_its_activation_memory(
    machine, plain, model, share
):
    output, resident, peak = plain(model)
    # A few chunks for what shares its chunk with something of another size.
    budget = resident + int(share * (peak - resident)) + (16 * 65536)
    run = machine.run(JOBS, model, budget=budget)
    assert run.output == output
    assert run.report["peak_bytes"] <= budget
    if share < 1:
        assert run.stats["evictions"] > 0
        assert run.stats["rematerializations"] > 0
