"""Traces as memory snapshots for PyTorch's viewer. Needs nothing, not even PyTorch."""

import pickle
import pickletools
from pathlib import Path

import pytest
from made_up_trace import a_life, live_at_end, memory_at_end, without_segments

from dtr_alloc.fragment import formats, torch_export, torch_snapshot
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind

HISTORIES = sorted((Path(__file__).parents[1] / "data/caching").glob("*.trace"))


def test_a_trace_without_segments_gets_some_around_its_blocks():
    trace = without_segments(a_life(), 1)
    snapshot = torch_export.to_snapshot(trace)
    assert snapshot["segments"]
    found = torch_snapshot.to_trace(snapshot)
    found.validate()
    assert live_at_end(found) == live_at_end(trace)
    memory = memory_at_end(found)
    for device, address, size in live_at_end(found):
        assert any(begin <= address and address + size <= end for begin, end in memory[device])


def rows(trace, *, without=()):
    """What must survive: all but times below a microsecond, and sizes that say nothing."""
    return [
        (kind, time // 1000, address, size if kind in (0, 6, 7, 8, 9, 10) else None, device)
        for kind, time, address, size, device in zip(
            trace.kind, trace.time_ns, trace.address, trace.size_bytes, trace.device, strict=True
        )
        if kind not in without
    ]


def test_what_pytorch_has_a_word_for_survives_the_way_there_and_back(tmp_path):
    trace = a_life()
    formats.write(trace, tmp_path / "s.pickle", "torch")
    found = formats.read(tmp_path / "s.pickle")
    others = {Kind.EVICT, Kind.REMATERIALIZE, Kind.MOVE_FROM, Kind.MOVE_TO}
    others |= {Kind.ROOM, Kind.BUDGET, Kind.MARK}
    expected = rows(trace, without=others)
    begin = expected[0][1]
    assert rows(found, without=others) == [(kind, at - begin, *of) for kind, at, *of in expected]
    named = [found.names[n] for k, n in zip(found.kind, found.name, strict=True) if k == 0]
    assert "aten::mm (dtr_alloc:0)" in named


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_history_of_pytorchs_allocator_survives_whole_and_from_its_middle(path):
    """Segments of the allocator, or the pages that its expandable ones map and unmap."""
    trace = trace_file.read(path)
    snapshot = torch_export.to_snapshot(trace)
    assert rows(torch_snapshot.to_trace(snapshot)) == rows(trace)
    (events,) = snapshot["device_traces"]
    for kept in (2, 40, 300, 700):
        kept += events[-kept]["action"] == "free_completed"  # with what requested it
        late = torch_snapshot.to_trace(snapshot | {"device_traces": [events[-kept:]]})
        began = late.meta["begins_with"] + late.meta.get("begins_with_segments", 0)
        behind = rows(late)[began:]
        assert [row[0:1] + row[2:] for row in behind] == [
            row[0:1] + row[2:] for row in rows(trace)[len(trace) - len(behind) :]
        ]
        assert live_at_end(late) == live_at_end(trace)
        assert memory_at_end(late) == memory_at_end(trace)


def test_a_snapshot_is_made_of_plain_values_and_says_what_was_evicted_moved_and_came_back(tmp_path):
    torch_export.write(a_life(), tmp_path / "s.pickle")
    data = (tmp_path / "s.pickle").read_bytes()
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert not opcodes & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "INST", "OBJ"}
    events = pickle.loads(data)["device_traces"][0]
    said = {event.get("user_metadata", "") for event in events}
    assert {"evict", "remat: größe"} <= said
    assert any(text.startswith("move to 0x4000") for text in said)
    evicted = next(event for event in events if event.get("user_metadata") == "evict")
    assert [frame["name"] for frame in evicted["frames"]] == ["evict", "aten::mm"]
