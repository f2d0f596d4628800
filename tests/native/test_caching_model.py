"""The model of PyTorch's caching allocator against histories that real ones recorded.

The histories in tests/data/caching are of PyTorch's own allocator in CUDA builds, over a stand-in
for the device; tests/cuda_emulator/test_caching_allocator.py makes and checks them, and longer
ones.
"""

from pathlib import Path

import pytest
from fidelity import assert_same, run_model

from dtr_alloc.fragment.models import MIB
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace

HISTORIES = sorted((Path(__file__).parents[1] / "data" / "caching").glob("*.trace"))


def test_there_are_histories_of_both_orders_of_ties():
    versions = {trace_file.read(path).meta["torch"] for path in HISTORIES}
    assert versions == {"2.11.0", "2.13.0"}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_every_place_and_segment_is_as_recorded(path):
    trace = trace_file.read(path)
    assert assert_same(trace, **trace.meta["model"]) == 500


def sizes_trace(*rows):
    """A trace of sizes to allocate, and negative indices of the allocation to free."""
    trace = Trace()
    for row in rows:
        if row >= 0:
            trace.add(Kind.ALLOCATE, address=(len(trace) + 1) << 30, size_bytes=row)
        else:
            trace.add(Kind.FREE, address=trace.address[-row - 1])
    return trace


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        *((1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB)),
        *((10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB)),
    ],
)
def test_a_first_request_gets_a_segment_by_its_size(size, segment):
    assert run_model(sizes_trace(size), "pytorch").peak_reserved_bytes == segment


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1, 4, 512),
        (513, 0, 1024),
        (1200, 4, 1536),  # no more than 512 * 4: as without divisions
        *((5000, 4, 5120), (8192, 4, 8192), (9 * MIB, 4, 10 * MIB), (9 * MIB, 1, 9 * MIB)),
    ],
)
def test_requests_are_rounded_by_the_divisions_of_powers_of_two(size, divisions, rounded):
    result = run_model(sizes_trace(size), "pytorch", roundup_power2_divisions=divisions)
    assert result.peak_used_bytes == rounded
