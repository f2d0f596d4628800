"""Pictures of heaps: the right colors at known places, and one of each kind is drawn."""

import json
import random
import re

import made_up_trace
import numpy as np
import pytest
from commands import fragment

from dtr_alloc.cli.fragment.report import stems
from dtr_alloc.fragment import charts, heap_map, report
from dtr_alloc.fragment.raster import CutAxis, coverage
from dtr_alloc.fragment.walk import walk
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace

WHITE = (1.0, 1.0, 1.0)


class TestCoverage:
    def test_random_boxes_cover_what_each_covers_alone(self):
        choose = random.Random(5)
        boxes, values, expected = [], [], np.zeros((6, 9, 2))
        for _ in range(80):
            left, right = sorted(choose.uniform(-1, 10) for _ in range(2))
            low, high = sorted(choose.uniform(-1, 7) for _ in range(2))
            value = [choose.random(), choose.random()]
            boxes.append([left, right, low, high])
            values.append(value)
            for y in range(6):
                for x in range(9):
                    wide = max(0, min(right, x + 1) - max(left, x))
                    tall = max(0, min(high, y + 1) - max(low, y))
                    expected[y, x] += np.array(value) * wide * tall
        assert np.allclose(coverage(boxes, values, (6, 9)), expected)


class TestTheAxis:
    def test_long_unused_ranges_are_cut_out_and_short_ones_stay(self):
        axis = CutAxis(np.array([1000, 0, 1 << 50]), np.array([2000, 990, (1 << 50) + 500]))
        assert axis.length_bytes == 2000 + 500
        assert list(axis.offsets) == [0, 2000]
        assert list(axis.place(np.array([10, 1000, 2000, (1 << 50) + 1]))) == [10, 1000, 2000, 2001]

    def test_addresses_near_the_top_are_exact(self):
        top = (1 << 64) - 4096
        axis = CutAxis(np.array([top], dtype=np.uint64), np.array([top + 4000], dtype=np.uint64))
        assert list(axis.place(np.array([top + 3], dtype=np.uint64))) == [3]


def scene():
    """8 events and 100 bytes: a block of [0, 40) bytes from event 1 to 4, evicted then; it is back
    at [50, 90) at event 5. Of [0, 100), [90, 100) is reserved from event 2 on."""
    trace = Trace({"source": "dtr_alloc"}, ["", "conv"])
    for kind, time, address, size, name in (
        (Kind.SEGMENT_ALLOCATE, 0, 0, 90, 0),
        (Kind.ALLOCATE, 20, 0, 40, 1),
        (Kind.SEGMENT_ALLOCATE, 50, 90, 10, 0),
        (Kind.EVICT, 60, 0, 40, 0),
        (Kind.FREE, 60, 0, 40, 0),
        (Kind.ALLOCATE, 80, 50, 40, 1),
        (Kind.REMATERIALIZE, 80, 50, 40, 0),
        (Kind.MARK, 100, 0, 0, 0),
    ):
        trace.add(kind, time_ns=time, address=address, size_bytes=size, name=name)
    trace.validate()
    return trace


class TestTheMap:
    def test_each_place_has_the_color_of_what_was_there(self):
        from matplotlib.colors import to_rgb

        trace = scene()
        drawn = heap_map.heap_map(trace, walk(trace).blocks, color="operator", shape=(100, 80))
        ((label, color),) = drawn.classes
        assert label == "conv"
        image = drawn.image
        assert image[20, 25] == pytest.approx(to_rgb(color))  # the first block has no white in it
        assert image[20, 5] == pytest.approx(heap_map.FREE)  # before it
        assert image[20, 45] == pytest.approx(heap_map.FREE)  # after it
        assert image[45, 25] == pytest.approx(heap_map.FREE)  # beside it
        assert image[95, 10] == pytest.approx(WHITE)  # not reserved yet
        assert image[95, 45] == pytest.approx(heap_map.FREE)
        assert image[20, 38] == pytest.approx(to_rgb(heap_map.EVICTED))
        assert image[70, 51] == pytest.approx(to_rgb(heap_map.REMATERIALIZED))
        assert {name for name, _ in drawn.marks} == {"evicted", "computed again"}

    def test_without_segments_what_was_touched_stays_reserved(self):
        trace = Trace({"source": "rmm"})
        trace.add(Kind.ALLOCATE, time_ns=0, address=0, size_bytes=50)
        trace.add(Kind.ALLOCATE, time_ns=10, address=50, size_bytes=50)
        trace.add(Kind.FREE, time_ns=20, address=0, size_bytes=50)
        trace.add(Kind.FREE, time_ns=40, address=50, size_bytes=50)
        image = heap_map.heap_map(trace, walk(trace).blocks, shape=(10, 40)).image
        assert image[7, 5] == pytest.approx(WHITE)
        assert image[2, 30] == pytest.approx(heap_map.FREE)
        assert image[7, 25] != pytest.approx(heap_map.FREE)

    def test_a_part_of_a_segment_that_goes_back_is_white_again(self):
        trace = Trace({"source": "dtr_alloc"})
        trace.add(Kind.SEGMENT_ALLOCATE, time_ns=0, address=0, size_bytes=100)
        trace.add(Kind.ALLOCATE, time_ns=0, address=0, size_bytes=10)
        trace.add(Kind.SEGMENT_FREE, time_ns=50, address=40, size_bytes=20)
        trace.add(Kind.MARK, time_ns=100)
        image = heap_map.heap_map(trace, walk(trace).blocks, shape=(100, 100)).image
        assert image[50, 75] == pytest.approx(WHITE)
        assert image[50, 25] == pytest.approx(heap_map.FREE)
        assert image[30, 75] == pytest.approx(heap_map.FREE)
        assert image[70, 75] == pytest.approx(heap_map.FREE)

    def test_classes_of_sizes_are_named_by_their_limits(self):
        trace = Trace({"source": "rmm"})
        for at, size in enumerate((100, 5 << 10, 2 << 30)):
            trace.add(Kind.ALLOCATE, time_ns=at, address=at << 40, size_bytes=size)
        drawn = heap_map.heap_map(trace, walk(trace).blocks)
        assert [name for name, _ in drawn.classes] == [
            "below 4 KiB", "4 KiB to 64 KiB", "from 1 GiB",
        ]  # fmt: skip


def test_a_thinned_line_keeps_its_peaks():
    series = report.recorded(made_up_trace.a_life(devices=1)).series
    for name in ("event", "time_ns", "live_bytes", "reserved_bytes"):
        column = getattr(series, name)
        while len(column) < 3 * charts.MOST_POINTS:
            column.extend(column)
    series.live_bytes[4321] = 1 << 40
    _, live, _ = charts.thinned(series, charts.MOST_POINTS)
    assert len(live) <= 2 * charts.MOST_POINTS
    assert live.max() == 1 << 40
    assert live.min() == 0


class TestTheCommand:
    def test_it_draws_each_picture_and_writes_the_numbers(self, tmp_path):
        trace = made_up_trace.a_life(devices=1)
        trace_file.write(trace, tmp_path / "job.trace")
        json_file, out = tmp_path / "report.json", tmp_path / "pictures"
        options = ("--model", "first-fit", "--maps", "--json", json_file, "--out", out)
        fragment("report", tmp_path / "job.trace", *options)
        names = {
            *("job-map.png", "job-map-first-fit.png", "job-operators.png", "job-live.png"),
            "job-holes.png",
        }
        assert {path.name for path in out.iterdir()} == names
        from matplotlib.image import imread

        for path in out.iterdir():
            pixels = imread(path)[::4, ::4, :3] @ np.array([1.0, 0.1, 0.01])
            assert len(np.unique(pixels)) > 10, path
        document = json.loads(json_file.read_text())
        assert document["format"] == report.FORMAT
        assert document["version"] == report.VERSION == 1
        row, model = document["traces"][0]["rows"]
        assert (row["name"], model["name"]) == ("as recorded", "first-fit")
        assert row["peak_live_bytes"] == max(report.recorded(trace).series.live_bytes)
        assert row["counts"]["evictions"] == trace.kind.count(Kind.EVICT) > 0
        assert set(row["series"]) == set(report.SERIES)
        assert max(row["series"]["live_bytes"]) == row["peak_live_bytes"]

    def test_two_traces_of_one_name_have_pictures_of_their_own(self):
        trace = made_up_trace.a_life(devices=1)
        found = [part for name in ("a b", "job", "job") for part in report.reports(name, trace)]
        assert stems(found) == ["a-b", "job", "job~2"]

    def test_all_of_it_is_on_one_page_that_stands_alone(self, tmp_path):
        trace_file.write(made_up_trace.a_life(devices=1), tmp_path / "job.trace")
        path = tmp_path / "new" / "report.html"
        fragment("report", tmp_path / "job.trace", "--model", "pytorch", "--page", path)
        text = path.read_text()
        assert "as recorded" in text
        assert "<script" not in text
        assert text.count("<svg") >= 4
        sources = re.findall(r'(?:src|href)="([^#"][^"]{0,21})', text)
        assert set(sources) == {"data:image/png;base64,"}, "the maps"

    def test_a_file_where_the_folder_should_be_is_an_error(self, tmp_path):
        trace_file.write(made_up_trace.a_life(devices=1), tmp_path / "job.trace")
        path = tmp_path / "job.trace"
        done = fragment("report", path, "--out", path, status=2)
        assert "which is no folder" in done.output
