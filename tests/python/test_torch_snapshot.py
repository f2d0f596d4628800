"""PyTorch's memory snapshots as traces: real ones, and made-up ones. Needs nothing."""

import gzip
import json
import os
import pickle
import random
from itertools import pairwise

import pytest
from made_up_trace import live_at_end, memory_at_end

from dtr_alloc.fragment import formats, torch_snapshot
from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.traces.trace import Kind, TraceError

MIB = 1 << 20


def in_use(snapshot):
    return sorted(
        (segment["device"], block["address"], block["requested_size"])
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )


@pytest.mark.parametrize("name", ["two_devices", "last_20_events"])
def test_the_blocks_and_segments_at_the_end_of_a_real_history_are_those_of_the_snapshot(
    snapshots, name
):
    snapshot = torch_snapshot.load(snapshots / f"{name}.pickle")
    trace = formats.read(snapshots / f"{name}.pickle")
    assert live_at_end(trace) == in_use(snapshot)
    memory = [Ranges(), Ranges()]
    for segment in snapshot["segments"]:
        begin = segment["address"]
        memory[segment["device"]].add(begin, begin + segment["total_size"])
    assert memory_at_end(trace) == [list(of) for of in memory]


def test_a_real_history_has_names_steps_failures_and_frees_that_others_waited_for(snapshots):
    trace = torch_snapshot.read(snapshots / "two_devices.pickle")
    named = {trace.names[number] for number in trace.name}
    assert {"train (job.py:15)", "<module> (job.py:32)"} <= named
    assert [trace.names[n] for k, n in zip(trace.kind, trace.name, strict=True) if k == 11] == [
        "Optimizer.step#SGD.step"
    ] * 2
    assert list(trace.size_bytes)[trace.kind.index(Kind.OUT_OF_MEMORY)] == 1 << 42
    waited = [n for k, n in zip(trace.kind, trace.name, strict=True) if k == Kind.MARK]
    assert [trace.names[n] for n in waited].count("free completed") == 1
    assert trace.meta["allocator_settings"]["max_split_size"] == -1
    assert len(set(trace.stream)) == 2
    assert set(trace.device) == {0, 1}


def test_what_was_there_before_a_history_that_begins_in_the_middle_is_found(snapshots):
    whole = torch_snapshot.read(snapshots / "two_devices.pickle")
    late = torch_snapshot.read(snapshots / "last_20_events.pickle")
    assert whole.meta["begins_with"] == 4
    assert late.meta["begins_with"] == 18
    # Two runs of one job: the same blocks are there at the end, but for the second device's.
    sizes = sorted(size for device, _, size in live_at_end(whole) if device == 0)
    assert sizes == sorted(size for _, _, size in live_at_end(late))
    assert "which order" in late.meta["unknown"][0]


def event(action, addr=0, size=0, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}


def segment(address, *blocks, **more):
    """blocks: (size, requested or 0 if free)"""
    return {
        "device": 0,
        "address": address,
        "total_size": sum(size for size, _ in blocks),
        "stream": 0,
        "blocks": [
            {
                "size": size,
                "requested_size": requested,
                "state": "active_allocated" if requested else "inactive",
            }
            for size, requested in blocks
        ],
        **more,
    }


def made(*events, segments=(), **more):
    return {
        "segments": list(segments),
        "device_traces": [list(events)],
        "allocator_settings": {},
        "external_annotations": [],
        **more,
    }


def test_memory_of_an_expandable_segment_is_followed_backwards_in_parts():
    base = 64 * MIB
    trace = torch_snapshot.to_trace(
        made(
            event("segment_map", base + 4 * MIB, 2 * MIB),
            event("segment_unmap", base, 2 * MIB),
            event("segment_unmap", base + 8 * MIB, 4 * MIB),
            segments=[segment(base + 2 * MIB, (6 * MIB, 0), is_expandable=True)],
        )
    )
    at_begin = trace.meta["begins_with_segments"]
    assert [(a - base, s) for a, s in zip(trace.address, trace.size_bytes, strict=True)][
        :at_begin
    ] == [(0, 4 * MIB), (6 * MIB, 6 * MIB)]
    assert memory_at_end(trace)[0] == [(base + 2 * MIB, base + 8 * MIB)]


def test_a_snapshot_without_history_is_what_is_in_use(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps([segment(4096, (1024, 1000), (512, 0), (512, 5))]))
    trace = formats.read(path)
    assert list(trace.kind) == [Kind.SEGMENT_ALLOCATE, Kind.ALLOCATE, Kind.ALLOCATE]
    assert list(trace.address) == [4096, 4096, 5632]
    assert list(trace.size_bytes) == [2048, 1000, 5]
    assert trace.meta["unknown"] == ["device 0: everything before the snapshot: no history"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize("form", ["json", *range(4, pickle.HIGHEST_PROTOCOL + 1)])
def test_a_snapshot_is_the_same_as_json_and_in_every_protocol_and_compressed(tmp_path, form, pack):
    stack = [frame("größe", "a.py", 3)]
    snapshot = made(
        event("segment_alloc", 2**47, 4 * MIB, time_us=2**50),
        event("alloc", 2**47, 5, frames=stack, time_us=2**50 + 1),
        event("free_requested", 2**47, 5, frames=stack, time_us=2**50 + 2),
        segments=[segment(2**47, (4 * MIB, 0), segment_pool_id=(0, 0), is_expandable=False)],
        allocator_settings={"expandable_segments": True, "threshold": 0.5, "roundup": None},
    )
    data = json.dumps(snapshot).encode() if form == "json" else pickle.dumps(snapshot, form)
    (tmp_path / "s").write_bytes(pack(data))
    trace = formats.read(tmp_path / "s")
    expected = torch_snapshot.to_trace(snapshot)
    assert trace.columns() == expected.columns()
    assert (trace.names, trace.meta) == (expected.names, expected.meta)


def test_a_text_that_no_file_can_hold_has_a_question_mark_there():
    stack = [frame("\ud800", "a.py")]
    trace = torch_snapshot.to_trace(made(event("oom", 0, 5, frames=stack, device_free=1)))
    assert trace.names == ["", "? (a.py:1)"]


def test_each_device_knows_how_many_of_its_rows_were_there_when_the_history_begins():
    snapshot = made(event("alloc", 4096, 5), segments=[segment(4096, (512, 5), (512, 7))])
    snapshot["segments"].append(segment(4096, (512, 1), (512, 2), (512, 0), device=1))
    trace = torch_snapshot.to_trace(snapshot)
    assert trace.meta["begins_with_events"] == [2, 3]
    starts = [trace.start_rows(device) for device in (0, 1, 2)]
    assert [(trace.device[row - 1], row) for row in starts if row] == [(0, 2), (1, 6)]


def frame(name, filename, line=1):
    return {"name": name, "filename": filename, "line": line}


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([], ""),
        ([frame("mm", "/lib/torch/a.py"), frame("f", "/home/x/net.py", 7)], "f (net.py:7)"),
        ([frame("mm", "/lib/torch/a.py", 3), frame("g", "/lib/torch/b.py")], "mm (a.py:3)"),
        ([frame("at::mm", "Ops.cpp", 0), frame("f", "C:\\x\\net.py", 7)], "f (net.py:7)"),
        ([frame("at::mm", "Ops.cpp", 0)], "at::mm (Ops.cpp:0)"),
        (["nonsense"], ""),
    ],
)
def test_a_stack_has_the_name_of_the_innermost_function_that_is_not_pytorchs(frames, name):
    trace = torch_snapshot.to_trace(made(event("oom", 0, 5, frames=frames, device_free=1)))
    assert trace.names[trace.name[0]] == name


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (made(event("alloc", 512, 5), event("alloc", 512, 5)), "event 1, ALLOCATE of 0x200: a bl"),
        (
            made(event("alloc", 512, 5), event("free_requested", 512, 5), event("free", 0)),
            r"Invalid enum value 'free' - at `\$\.device_traces\[0\]\[2\]\.action`",
        ),
        (
            made(event("free_requested", 512, 5), event("free_requested", 512, 5)),
            "event 2, FREE of 0x200: no block",
        ),
        (made(event("segment_alloc", 512, 5)), "the segment at 0x200 is neither freed later"),
        (made(segments=[segment(512, (512, 1), total_size=2)]), "blocks of the segment at 0x200"),
        (17, "no memory snapshot of PyTorch: Expected `object`, got `int`"),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_named(tmp_path, snapshot, reason):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    with pytest.raises(TraceError, match=reason) as caught:
        formats.read(path)
    assert str(path) in str(caught.value)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(made(Touch(str(tmp_path / "made")))))
    with pytest.raises(TraceError, match=r"it asks for posix\.mkdir"):
        formats.read(path)
    assert not (tmp_path / "made").exists()


def test_ranges_are_what_a_set_of_numbers_is():
    rng = random.Random(3)
    ranges, numbers = Ranges(), set()
    for _ in range(2000):
        begin = rng.randrange(60)
        end = begin + rng.randrange(12)
        if rng.random() < 0.5:
            ranges.add(begin, end)
            numbers |= set(range(begin, end))
        else:
            ranges.remove(begin, end)
            numbers -= set(range(begin, end))
        listed = list(ranges)
        assert {n for b, e in listed for n in range(b, e)} == numbers
        assert all(end < begin for (_, end), (begin, _) in pairwise(listed))
        if begin < end:
            assert ranges.cover(begin, end) == (set(range(begin, end)) <= numbers)
