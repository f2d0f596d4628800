"""Whole jobs on "cuda" compute the same bits in less memory."""

from __future__ import annotations

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


OUT_OF_MEMORY = """
import sys, torch, dtr_alloc
dtr_alloc.enable(budget="8MiB", device="cuda", trace=f"oom:{sys.argv[1]}")
kept = torch.nn.ReLU()(torch.randn(1 << 20, device="cuda"))
try:
    torch.ones(1 << 22, device="cuda")
except torch.OutOfMemoryError:
    dtr_alloc.disable()
"""


def test_an_out_of_memory_error_leaves_the_heap_and_the_call_sites(machine, tmp_path):
    from dtr_alloc.fragment import report
    from dtr_alloc.traces import trace_file

    machine.run(OUT_OF_MEMORY, tmp_path / "some.trace")
    trace = trace_file.read(tmp_path / "some.trace")
    (found,) = report.reports("some", trace)
    row = found.rows[0]
    assert row.request_bytes == 4 << 22
    assert row.blocks is not None
    (size, name) = row.in_use[0]
    assert size == 4 << 20
    assert name.startswith("aten::relu.default at script-")
    assert name.endswith(".py:4 (ReLU)")
