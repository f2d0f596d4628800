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


def check_as_the_viewer_does(snapshot):
    """Undoes the events one by one from the end, as MemoryViz.js does to show a moment."""
    for device, events in enumerate(snapshot["device_traces"]):
        segments, blocks = {}, {}
        for segment in snapshot["segments"]:
            if segment["device"] != device:
                continue
            segments[segment["address"]] = segment["address"] + segment["total_size"]
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at, "blocks do not tile"
                at += block["size"]
                if block["state"] != "inactive":
                    assert block["requested_size"] <= block["size"]
                    blocks[block["address"]] = [block["size"], False]
            assert at == segments[segment["address"]]

        def within(begin, end, segments=segments):
            return [b for b, e in segments.items() if b <= begin and end <= e]

        for event in reversed(events):
            action, begin = event["action"], event.get("addr")
            end = begin + event["size"] if begin is not None else None
            if action == "alloc":
                del blocks[begin]
            elif action == "free_completed":
                assert begin not in blocks
                blocks[begin] = [event["size"], True]
            elif action == "free_requested":
                assert blocks[begin][1], "not completed"
                blocks[begin][1] = False
            elif action in ("segment_alloc", "segment_map"):
                (of,) = within(begin, end)
                of_end = segments.pop(of)
                if action == "segment_alloc":
                    assert (of, of_end) == (begin, end)
                if of < begin:
                    segments[of] = begin
                if end < of_end:
                    segments[end] = of_end
            elif action in ("segment_free", "segment_unmap"):
                assert not within(begin, begin + 1)
                for of, of_end in list(segments.items()):  # neighbors join
                    if action == "segment_unmap" and begin in (of_end,):
                        begin = of
                        del segments[of]
                    elif action == "segment_unmap" and of == end:
                        end = segments.pop(of)
                segments[begin] = end
            for address, (size, _) in blocks.items():
                assert within(address, address + size), "a block outside of all segments"
        assert not blocks


def test_a_snapshot_fits_together_at_every_moment():
    check_as_the_viewer_does(torch_export.to_snapshot(a_life()))


@pytest.mark.parametrize("name", ["two_devices", "last_20_events"])
def test_a_snapshot_of_pytorchs_own_trace_fits_together_too(snapshots, name):
    trace = torch_snapshot.read(snapshots / f"{name}.pickle")
    check_as_the_viewer_does(torch_export.to_snapshot(trace))


def test_a_trace_without_segments_gets_some_around_its_blocks():
    trace = without_segments(a_life(), 1)
    snapshot = torch_export.to_snapshot(trace)
    check_as_the_viewer_does(snapshot)
    assert snapshot["segments"]


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
