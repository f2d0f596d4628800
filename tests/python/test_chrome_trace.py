"""Traces as Chrome's trace events. Needs nothing."""

import gzip
import json

import pytest

from dtr_alloc.lab.fragment import chrome_trace, formats
from dtr_alloc.traces.trace import Kind, Trace

KIB = 1 << 10


@pytest.fixture
def trace():
    """Two blocks in a budget, of which one is evicted and comes back, in two steps."""
    made = Trace({"source": "dtr_alloc", "time_unit": "ns"}, ["", "aten::mm"])
    for time, (kind, address, size) in enumerate(
        [
            (Kind.BUDGET, 0, 16 * KIB),
            (Kind.SEGMENT_ALLOCATE, 0, 8 * KIB),
            (Kind.STEP, 0, 0),
            (Kind.ALLOCATE, 0, KIB),
            (Kind.ALLOCATE, KIB, 2 * KIB),
            (Kind.EVICT, KIB, 2 * KIB),
            (Kind.FREE, KIB, 0),
            (Kind.STEP, 0, 0),
            (Kind.ALLOCATE, 4 * KIB, 2 * KIB),
            (Kind.REMATERIALIZE, 4 * KIB, 2 * KIB),
        ]
    ):
        made.add(kind, time_ns=1000 * time, address=address, size_bytes=size, name=1)
    made.validate()
    return made


def test_counters_instants_and_steps(trace, tmp_path):
    path = tmp_path / "trace.json.gz"
    formats.write(trace, path, "chrome")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    assert [event["args"]["live"] // KIB for event in counters] == [0, 0, 1, 3, 1, 3]
    assert counters[-1]["args"] == {"live": 3 * KIB, "reserved": 8 * KIB, "budget": 16 * KIB}
    evicted, back = (event for event in events if event["ph"] == "i")
    assert (evicted["name"], evicted["ts"], back["name"]) == ("evict", 5, "computed again")
    assert evicted["args"]["what"] == "aten::mm"
    assert evicted["args"]["bytes"] == 2 * KIB
    steps = [(event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert steps == [(2, 5), (7, 2)]


def test_a_trace_without_steps_has_none():
    without = Trace({"source": "rmm"})
    without.add(Kind.ALLOCATE, address=8, size_bytes=8)
    assert not [event for event in chrome_trace.to_events(without) if event["ph"] == "X"]


def test_a_long_trace_is_thinned_and_has_its_peak(trace, monkeypatch):
    monkeypatch.setattr(chrome_trace, "MOST", 2)
    events = chrome_trace.to_events(trace)
    live = [event["args"]["live"] for event in events if event["ph"] == "C"]
    assert len(live) == 2
    assert max(live) == 3 * KIB
