"""Traces in memory and in files: what they hold, and what is refused. Needs nothing."""

from array import array

import pytest
from made_up_trace import a_life, of_text

from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import TraceError


def made_up(events):
    """So many events, of every kind, of two devices."""
    life = a_life()
    return life.select([row % len(life) for row in range(events)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.trace"


@pytest.mark.parametrize("events", [0, 1, 1000, trace_file.BLOCK_EVENTS + 3])
def test_a_trace_comes_back_from_its_file_as_it_was(path, events):
    trace = made_up(events)
    trace_file.write(trace, path)
    assert trace_file.read(path) == trace


def test_a_stream_of_events_is_a_trace_with_what_was_said_at_its_end(path):
    trace = made_up(3000)
    with trace_file.TraceWriter(path, {"source": "dtr_alloc"}) as writer:
        assert [writer.name(text) for text in trace.names[:2]] == [0, 1]
        for begin in range(0, 1000, 500):
            part = [column[begin : begin + 500] for column in trace.columns()]
            part[-1] = array("I", [1] * 500)
            writer.write(part)
        assert [writer.name(text) for text in ("aten::mm", "later")] == [1, 2]
        part[-1] = array("I", [2] * 500)
        writer.write(part)
        writer.close({"lost_events": 3})
    found = trace_file.read(path)
    assert found.names == ["", "aten::mm", "later"]
    assert found.meta == {"source": "dtr_alloc", "lost_events": 3}
    assert list(found.name) == [1] * 1000 + [2] * 500


# ---- files that are not whole ----


def test_a_file_that_is_cut_off_anywhere_is_named_and_can_be_read_up_to_there(path):
    trace = made_up(40)
    with trace_file.TraceWriter(path, trace.meta) as writer:
        for text in trace.names:
            writer.name(text)
        for begin in range(0, 40, 10):
            writer.write([column[begin : begin + 10] for column in trace.columns()])
    whole = path.read_bytes()
    counts = set()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=str(path)):
            trace_file.read(path)
        if length < 100:  # the head and the meta, which must be there
            continue
        found = trace_file.read(path, allow_truncated=True)
        assert found.meta.pop("truncated") is True
        assert found.columns() == trace.select(range(len(found))).columns()
        counts.add(len(found))
    assert counts == {0, 10, 20, 30, 40}


def test_a_byte_that_changed_anywhere_is_noticed(path):
    trace = made_up(300)
    trace_file.write(trace, path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(TraceError) as caught:
            trace_file.read(path, allow_truncated=False)
        assert f"{path}, at byte " in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "is empty"), (b"PK\x03\x04" + bytes(100), "begins with b'PK")]
)
def test_what_is_no_trace_is_refused_by_name(path, content, reason):
    path.write_bytes(content)
    with pytest.raises(TraceError, match=f"{path}.* {reason}"):
        trace_file.read(path)


# ---- traces that make no sense ----


def test_each_allocation_has_its_end_and_a_moved_one_is_one():
    trace = of_text("A512 A1024 F1024 A2048 <512 >2048 F512 A512 E2048 F2048", size=8)
    trace.validate()
    lifetimes = trace.lifetimes()
    assert list(lifetimes.start) == [0, 1, 7]
    assert list(lifetimes.end) == [9, 2, -1]
    assert list(lifetimes.size_bytes) == [8, 8, 8]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ("A8 A8", "event 1, ALLOCATE of 0x8: a block is in use there since event 0"),
        ("A8 F8 F8", "event 2, FREE of 0x8: no block is in use there"),
        ("F8", "event 0, FREE of 0x8: no block"),
        ("E8", "event 0, EVICT of 0x8: no block"),
        ("A8 E8 C8", "event 2, REMATERIALIZE of 0x8: the FREE that event 1 annou"),
        ("A8 <8 F8", "event 1, MOVE_FROM of 0x8: no MOVE_TO follows it: event 2"),
        ("A8 <8", "event 1, MOVE_FROM of 0x8: no MOVE_TO follows it: the trace ends"),
        ("A8 >8", "event 1, MOVE_TO of 0x8: no MOVE_FROM"),
    ],
)
def test_events_without_their_partner_are_named(events, message):
    with pytest.raises(TraceError, match=message):
        of_text(events).validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trace: trace.kind.__setitem__(1, 13), "event 1 is of kind 13"),
        (lambda trace: trace.time_ns.__setitem__(5, -1), "event 5 is at -1 ns, before event 4"),
        (lambda trace: trace.name.__setitem__(3, 9), "event 3 has name 9; allowed: 0 to 2"),
        (lambda trace: trace.device.pop(), r"different lengths: .*'device': 9"),
        (lambda trace: trace.names.__setitem__(0, "x"), "allowed: the empty string"),
        (
            lambda trace: setattr(trace, "time_ns", array("Q", trace.time_ns)),
            "time_ns is no array of 'q'",
        ),
    ],
)
def test_columns_kinds_names_and_times_are_checked(change, message):
    trace = made_up(10)
    change(trace)
    with pytest.raises(TraceError, match=message):
        trace.validate()
