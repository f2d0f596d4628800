"""PyTorch's own tools read the snapshots that we write. Needs torch."""

import pickle

import pytest

pytest.importorskip("torch", reason="torch is not installed here")

from torch.cuda import _memory_viz

from dtr_alloc.fragment import rmm, torch_export, torch_snapshot


@pytest.fixture(params=["with segments", "without"])
def snapshot(request, snapshots, tmp_path):
    trace = torch_snapshot.read(snapshots / "two_devices.pickle")
    if request.param == "without":
        rmm.write(trace, tmp_path / "log.csv", device=0)
        trace = rmm.read(tmp_path / "log.csv")
    torch_export.write(trace, tmp_path / "s.pickle")
    return pickle.loads((tmp_path / "s.pickle").read_bytes())


def test_its_summaries_plots_and_listings_are_made(snapshot):
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    listing = _memory_viz.trace(snapshot)
    assert listing.count(" = ") >= 40
    assert "raise OutOfMemoryError" in listing
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "MemoryViz.js" in plot(snapshot)
