"""Heaps that traces go through, and the measures of known ones."""

import random

import made_up_trace
import pytest

from dtr_alloc.fragment import measures, report
from dtr_alloc.fragment.residency import (
    ALLOCATED,
    EVICTED,
    FREED,
    MOVED_IN,
    MOVED_OUT,
    REMATERIALIZED,
    STAYED,
)
from dtr_alloc.fragment.walk import by_device, walk
from dtr_alloc.traces.trace import Kind, Trace, TraceError


def trace_of(text, source="dtr_alloc"):
    trace = made_up_trace.of_text(text, Trace({"source": source, "time_unit": "ns"}))
    trace.validate()
    return trace


class TestTheHeapOverTime:
    def test_a_block_is_as_large_as_its_end_says_and_live_is_what_was_asked_for(self):
        series = walk(trace_of("S4096:64 A4096:10 F4096:16")).series
        assert list(series.live_bytes) == [0, 10, 0]
        assert list(series.free_bytes) == [64, 48, 64]

    @pytest.mark.parametrize(("source", "largest"), [("torch", 100), ("dtr_alloc", 200)])
    def test_holes_of_two_segments_of_pytorch_are_two(self, source, largest):
        trace = trace_of("S0:100 S100:100 A300:1", source=source)
        assert walk(trace).series.largest_free_bytes[1] == largest

    def test_segments_that_a_block_lies_across_are_one(self):
        trace = trace_of("S0:100 S100:100 A90:20 F90:20", source="torch")
        assert walk(trace).series.largest_free_bytes[-1] == 200

    def test_random_heaps_are_those_of_a_set_of_bytes(self):
        """Segments come and go around blocks and beside them."""
        choose = random.Random(7)
        events, expected, sums = [], [], []
        blocks, reserved = {}, set()
        while len(events) < 600:
            start = choose.randrange(90)
            span = range(start, start + choose.randrange(1, 12))
            used = {at for block in blocks.values() for at in block}
            what = choose.random()
            if what < 0.4 and used.isdisjoint(span):
                events.append(f"A{start}:{len(span)}")
                blocks[start] = span
                reserved.update(span)
            elif what < 0.7 and blocks:
                start = choose.choice(list(blocks))
                events.append(f"F{start}:{len(blocks[start])}")
                del blocks[start]
            elif what < 0.85 and reserved.isdisjoint(span):
                events.append(f"S{start}:{len(span)}")
                reserved.update(span)
            elif what >= 0.85 and used.isdisjoint(span):
                events.append(f"U{start}:{len(span)}")
                reserved.difference_update(span)
            else:
                continue
            free_bytes = reserved - {at for block in blocks.values() for at in block}
            starts = sorted(at for at in free_bytes if at - 1 not in free_bytes)
            ends = sorted(at + 1 for at in free_bytes if at + 1 not in free_bytes)
            expected.append(sorted(end - at for at, end in zip(starts, ends, strict=True)))
            sums.append((sum(map(len, blocks.values())), len(reserved)))
        done = walk(trace_of(" ".join(events)))
        series = done.series
        assert list(series.event) == list(range(600))
        assert list(series.time_ns) == [1000 * event for event in range(600)]
        assert list(zip(series.live_bytes, series.reserved_bytes, strict=True)) == sums
        assert list(series.free_bytes) == [sum(sizes) for sizes in expected]
        assert list(series.largest_free_bytes) == [max(sizes, default=0) for sizes in expected]
        assert list(series.sum_free_squares) == [
            sum(size * size for size in sizes) for sizes in expected
        ]
        for event in range(0, 600, 7):
            assert done.holes_at(event) == expected[event]

    def test_blocks_that_lie_in_each_other_are_an_error(self):
        trace = trace_of("A0:10 A5:10 F0:10 F5:10")
        with pytest.raises(TraceError, match="event 3 at 0x5: part of the block is free already"):
            walk(trace)

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            ((Kind.FREE, 8, 1), "event 1 at 0x8: no block is in use there"),
            ((Kind.ALLOCATE, 0, 2), "event 1 at 0x0: a block is in use there"),
            ((Kind.REMATERIALIZE, 8, 1), "event 1 at 0x8: no block is in use there"),
            ((Kind.MOVE_TO, 8, 1), "event 1 at 0x8: no block is in use there"),
        ],
    )
    def test_a_trace_that_is_not_valid_is_an_error(self, event, reason):
        trace = trace_of("A0:1")
        trace.add(event[0], address=event[1], size_bytes=event[2])
        with pytest.raises(TraceError, match=reason):
            walk(trace)

    def test_each_device_is_a_heap_of_its_own(self):
        trace = Trace({"source": "torch"})
        for device in (0, 1):
            trace.add(Kind.ALLOCATE, address=64, size_bytes=10 + device, device=device)
        trace.add(Kind.STEP, device=2)
        parts = by_device(trace)
        assert [max(walk(part).series.live_bytes) for part in parts.values()] == [10, 11]
        assert list(parts) == [0, 1]


class TestBlocks:
    def test_a_block_says_how_it_began_and_ended(self):
        blocks = walk(trace_of("A0:8 A8:8 A100:8 <8:8 >100:8 F8:8 E0:8 F0:8 A8:8 C8:8 F8:8")).blocks
        assert list(blocks.began) == [ALLOCATED, ALLOCATED, MOVED_IN, REMATERIALIZED]
        assert list(blocks.ended) == [EVICTED, MOVED_OUT, STAYED, FREED]
        assert list(blocks.start) == [0, 1, 2, 8]
        assert list(blocks.end) == [7, 5, 11, 10]


class TestMeasures:
    def test_the_worst_moment_without_failures_is_the_peak_of_reserved_bytes(self):
        trace = trace_of("S0:100 A0:30 A40:30 S100:100 A100:80 F40:30 F0:30")
        found = measures.of_walk(walk(trace))
        assert found.peak_live_bytes == 140
        assert found.peak_reserved_bytes == 200
        assert found.utilization == 0.7
        assert found.worst_event == 4
        assert found.worst_free_bytes == 10 + 30 + 20
        assert found.worst_largest_share == 0.5
        assert found.worst_evenness == (100 + 900 + 400) / 3600
        lost = [100, 70, 40, 140, 60, 90, 120]
        assert found.max_lost_bytes == 140
        assert found.mean_lost_bytes == pytest.approx(sum(lost) / 7)
        shares = [1, 1, 30 / 40, 130 / 140, 30 / 60, 70 / 90, 100 / 120]
        assert found.mean_largest_share == pytest.approx(sum(shares) / 7)
        assert found.completed
        assert found.counts["allocations"] == 3

    def test_the_worst_moment_is_the_first_failure(self):
        trace = trace_of("S0:100 A0:10 A50:10 O0:60 F0:10")
        row = report.recorded(trace)
        assert not row.measures.completed
        assert row.request_bytes == 60
        assert row.holes == [40, 40]
        assert row.measures.worst_evenness == 0.5

    @pytest.mark.parametrize(
        ("events", "lost"),
        [
            # 100 bytes: A [0, 30), hole [30, 40), B [40, 60), hole [60, 75), C [75, 100). A request
            # of 35 evicts B and gets [30, 65): it uses 10 + 5 of the 25 free bytes.
            ("B0:100 S0:100 A0:30 A40:20 A75:25 R0:35 E40:20 F40:20 A30:35", 10),
            ("B0:100 S0:100 A0:80 R0:50 E0:80 F0:80 A50:50", 0),  # it uses all that is free
            # The request of 40 evicts B [40, 60), and C [60, 70) moves to the hole [90, 100).
            (
                "S0:120 A0:30 A40:20 A60:10 A70:20 R0:40 E40:20 F40:20 A90:10 <60:10 >90:10 "
                "F60:10 A30:40",
                20,
            ),
            ("S0:50 A0:50 R0:10 S50:10 A50:10", None),  # no eviction was forced
        ],
    )
    def test_what_is_free_and_not_in_the_block_that_was_made_room_for_is_lost(self, events, lost):
        found = measures.of_walk(walk(trace_of(events)))
        assert found.mean_lost_at_evictions_bytes == found.max_lost_at_evictions_bytes == lost
        if lost == 10:
            assert (found.budget_bytes, found.worst_event) == (100, 5)

    def test_whole_chunks_that_can_be_mapped_elsewhere_are_not_lost(self):
        events = "S0:80 A0:5 A40:20 R0:30 E40:20 F40:20 A40:30"
        trace = trace_of(events)
        assert measures.of_walk(walk(trace)).max_lost_at_evictions_bytes == 35 + 10
        trace.meta["devices"] = [{"chunk_bytes": 10}]
        assert measures.of_walk(walk(trace)).max_lost_at_evictions_bytes == 5
        trace.meta["devices"][0]["fixed"] = True
        assert measures.of_walk(walk(trace)).max_lost_at_evictions_bytes == 35 + 10

    def test_a_trace_that_allocates_nothing_is_an_error(self):
        with pytest.raises(TraceError, match="allocates nothing"):
            measures.of_walk(walk(Trace({"source": "rmm"})))
        with pytest.raises(TraceError, match="allocates nothing"):
            report.reports("empty", trace_of("S0:10"))
