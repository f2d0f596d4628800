"""The log of a pool's events, over every driver: what it says is what the pool is."""

import os
import random
from array import array

import pytest
from made_up_trace import live_at_end
from native_pool import IN_USE, NO_LIMIT, NativePool, OutOfMemory, check, ffi, lib, pools_of

from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.traces import recording, ring, trace_file
from dtr_alloc.traces.trace import COLUMNS, Kind


def events(trace, *kinds):
    return [
        (kind, address, size)
        for kind, address, size in zip(trace.kind, trace.address, trace.size_bytes, strict=True)
        if kind in kinds
    ]


def live(trace, device=0):
    return [block[1:] for block in live_at_end(trace) if block[0] == device]


def in_use(pool):
    return [(b.address, b.requested_bytes) for b in pool.snapshot() if b.state == IN_USE]


def memory(trace):
    """After each event: the ranges with memory, and the budget."""
    ranges, budget = Ranges(), NO_LIMIT
    for kind, address, size in zip(trace.kind, trace.address, trace.size_bytes, strict=True):
        if kind == Kind.SEGMENT_ALLOCATE:
            assert not any(b < address + size and address < e for b, e in ranges), "twice"
            ranges.add(address, address + size)
        elif kind == Kind.SEGMENT_FREE:
            assert ranges.cover(address, address + size), "was not there"
            ranges.remove(address, address + size)
        elif kind == Kind.BUDGET:
            budget = size
        elif kind == Kind.ALLOCATE:
            assert ranges.cover(address, address + size), "a block without memory"
        yield sum(end - begin for begin, end in ranges), budget


def churn(pool, rng, live, steps):
    for _ in range(steps):
        if live and rng.random() < 0.45:
            pool.free(live.pop(rng.randrange(len(live))))
        else:
            size = rng.choice((rng.randrange(1, 3000), rng.randrange(1, 6 * pool.chunk)))
            try:
                live.append(pool.allocate(size, rng.choice((0, 0, 7))))
            except OutOfMemory:
                assert live
                pool.free(live.pop())


def test_a_log_says_what_the_pool_did_from_the_moment_it_was_on(make_pool, record):
    rng = random.Random(5)
    with make_pool(24) as pool:
        blocks = []
        churn(pool, rng, blocks, 60)
        before = len(in_use(pool))
        recorded = record(pool)
        churn(pool, rng, blocks, 300)
        pool.trim()
        churn(pool, rng, blocks, 100)
        trace = recorded.stop()
        assert live(trace) == in_use(pool)
        stats = pool.stats()
        held = list(memory(trace))
        assert held[-1] == (stats.reserved_bytes, 24 * pool.chunk)
        assert all(bytes_ <= budget for bytes_, budget in held)
        assert [kind for kind, _, _ in events(trace, *range(8))[:before]] == [0] * before
        failures = events(trace, Kind.OUT_OF_MEMORY)
        assert len(failures) <= stats.out_of_memory_errors
        assert {0, 7} <= set(trace.stream)


def test_nothing_is_logged_once_the_log_is_off(pool, record):
    recorded = record(pool)
    first = pool.allocate(1000)
    trace = recorded.stop()
    pool.free(first)
    pool.free(pool.allocate(5000))
    assert events(trace, Kind.ALLOCATE, Kind.FREE) == [(Kind.ALLOCATE, first, 1000)]


def test_room_failures_and_budgets_are_events(make_pool, record):
    with make_pool(8) as pool:
        blocks = [pool.allocate(pool.chunk)]

        def give(size, stream):
            if not blocks:
                return False
            pool.free(blocks.pop())
            return True

        pool.set_room(give)
        recorded = record(pool)
        large = pool.allocate(8 * pool.chunk)
        with pytest.raises(OutOfMemory):
            pool.allocate(3 * pool.chunk)
        pool.free(large)
        pool.set_room(None)
        if not pool.is_fixed:
            pool.set_budget(16 * pool.chunk)
        trace = recorded.stop()
    found = [kind for kind, _, _ in events(trace, 0, 1, 6, 7)]
    assert found == [0, Kind.ROOM, Kind.FREE, 0, Kind.ROOM, Kind.OUT_OF_MEMORY, Kind.FREE]
    assert (Kind.OUT_OF_MEMORY, 0, 3 * pool.chunk) in events(trace, 7)
    budgets = [size for _, _, size in events(trace, Kind.BUDGET)]
    assert budgets == [8 * pool.chunk] + [16 * pool.chunk] * (not pool.is_fixed)


def test_the_last_events_before_a_failure_are_a_trace_that_begins_with_what_was_there(
    make_pool, record, monkeypatch, capsys
):
    monkeypatch.setattr(ring, "LEAST_EVENTS", 100)
    rng = random.Random(3)
    with make_pool(24) as one, make_pool(1024) as other:
        recorded = record(one, other, only_at_oom=True)
        blocks = [[], []]
        for _ in range(80):
            blocks[0].append(one.allocate(rng.randrange(1, one.chunk // 4)))
            if len(blocks[0]) > 20:
                one.free(blocks[0].pop(rng.randrange(20)))
            churn(other, rng, blocks[1], 5)
            recorded.drain()
        assert not recorded.path.read_bytes(), "nothing has failed yet"
        before = [in_use(pool) for pool in (one, other)]
        reserved = [pool.stats().reserved_bytes for pool in (one, other)]
        with pytest.raises(OutOfMemory):
            one.allocate(25 * one.chunk)
        churn(other, rng, blocks[1], 50)
        with pytest.raises(OutOfMemory):
            one.allocate(26 * one.chunk)
        trace = recorded.stop()
    assert "the last" in capsys.readouterr().err
    assert (trace.kind[-1], trace.size_bytes[-1]) == (Kind.OUT_OF_MEMORY, 25 * one.chunk)
    assert trace.kind.count(Kind.OUT_OF_MEMORY) == 1
    assert [live(trace, device) for device in (0, 1)] == before
    told = sum(trace.meta["begins_with_events"])
    assert 100 <= len(trace) - told < 250
    assert trace.time_ns[0] == trace.time_ns[told] == 0
    for device in (0, 1):
        rows = [row for row, of in enumerate(trace.device) if of == device]
        assert list(memory(trace.select(rows)))[-1][0] == reserved[device]


def test_a_recording_without_a_failure_leaves_no_file(record, tmp_path):
    with NativePool("simulated") as pool:
        made = recording.Recording(pools_of(pool), tmp_path / "t", "light", str, only_at_oom=True)
        made.start()
        pool.free(pool.allocate(100))
        made.stop()
        assert not (tmp_path / "t").exists()
        (tmp_path / "t").write_text("of an earlier job")
        made = recording.Recording(pools_of(pool), tmp_path / "t", "light", str, only_at_oom=True)
        made.start()
        made.stop()
        assert (tmp_path / "t").read_text() == "of an earlier job"


def test_a_move_that_the_first_kept_event_ends_is_before_it(record, monkeypatch, tmp_path):
    monkeypatch.setattr(ring, "LEAST_EVENTS", 4)
    kept = ring.Ring(tmp_path / "t", {"devices": [{"chunk_bytes": 4096}]})
    name = kept.name("f")
    rows = [
        (Kind.SEGMENT_ALLOCATE, 0, 4096, 8192, 0, 0, 0),
        *((Kind.ALLOCATE, 1, 4096, 64, 0, 0, name), (Kind.ALLOCATE, 2, 8192, 64, 0, 0, 0)),
        *((Kind.MOVE_FROM, 3, 4096, 64, 0, 0, 0), (Kind.MOVE_TO, 3, 8192, 64, 0, 0, 0)),
        *((Kind.FREE, 4, 4096, 64, 0, 0, 0), (Kind.BUDGET, 5, 0, 9000, 0, 0, 0)),
        *((Kind.BUDGET, 6, 0, 9000, 0, 0, 0), (Kind.OUT_OF_MEMORY, 7, 0, 64, 0, 0, 0)),
    ]
    for part in (rows[:4], rows[4:]):
        columns = zip(COLUMNS, zip(*part, strict=True), strict=True)
        kept.write([array(column.typecode, numbers) for column, numbers in columns])
    trace = trace_file.read(tmp_path / "t")
    trace.validate()
    assert [(at, trace.names[trace.name[row]]) for row, at in enumerate(trace.address)
            if trace.kind[row] == Kind.ALLOCATE] == [(4096, "f"), (8192, "f")]  # fmt: skip
    assert Kind.MOVE_TO not in trace.kind
    assert Kind.FREE in trace.kind


def test_many_events_are_written_in_their_order_while_they_come(record):
    with NativePool("counted") as pool:
        recorded = record(pool)
        for _ in range(4):
            for _ in range(5000):
                pool.free(pool.allocate(64))
            recorded.drain()
        trace = recorded.stop()
    assert list(trace.kind[1:]) == [0, 1] * 20000
    assert len(set(trace.address)) == 20001  # and the budget's


def test_events_that_nobody_takes_are_lost_from_one_moment_on_and_counted():
    log = ffi.new("dtr_event_log **")
    check(lib.dtr_event_log_create(log))
    with NativePool("counted") as pool:
        for _ in range(20000):
            address = pool.allocate(64)
        for _ in range(210):  # each begins with the budget and the blocks
            check(lib.dtr_pool_set_log(pool.handle, log[0], 0))
        lost = lib.dtr_event_log_lost(log[0])
        assert 210 * 20001 - lost == 1 << 22
        pool.free(address)
        assert lib.dtr_event_log_lost(log[0]) == lost + 1
        check(lib.dtr_pool_set_log(pool.handle, ffi.NULL, 0))
    lib.dtr_event_log_destroy(log[0])


def test_a_full_disk_ends_the_recording_and_not_the_job(record, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with NativePool("simulated") as pool:
        recorded = record(pool)
        pool.allocate(64)
        recorded.drain()
        monkeypatch.setattr(os, "pwrite", full)
        pool.allocate(64)
        recorded.drain()
        pool.allocate(64)
        recording.Recording.stop(recorded)
        assert "cannot be written to its end: [Errno 28]" in capsys.readouterr().err
        trace = trace_file.read(recorded.path, allow_truncated=True)
    assert len(events(trace, Kind.ALLOCATE)) == 1


def test_one_file_is_one_recording(record, tmp_path, capsys):
    with NativePool("simulated") as pool:
        recorded = record(pool)
        assert recording.start(pools_of(pool), tmp_path / "some.trace", "light") is None
        assert "is being written by another process" in capsys.readouterr().err
        recorded.stop()
