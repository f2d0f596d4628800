"""RMM's CSV log: read and refused; and the commands that convert. Needs nothing."""

import gzip

import pytest
from commands import fragment

from dtr_alloc.fragment import formats, rmm
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace, TraceError

HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"

    def write(*lines):
        path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
        return path

    return write


def test_a_log_is_read_event_by_event(log):
    trace = rmm.read(
        log(
            "1,23:59:59.999000,allocate,0x7f0000000200,1000,0",
            "2,23:59:59.999250,allocate,0x7f0000000800,5,0x55aa",
            "1,23:59:59.999100,allocate failure,(nil),99999999,0",
            "1,00:00:00:000500,free,0x7f0000000200,1000,21930",
            "1,00:00:00.5,allocate,(nil),0,0",
        )
    )
    trace.validate()
    assert list(trace.kind) == [Kind.ALLOCATE, Kind.ALLOCATE, Kind.OUT_OF_MEMORY, Kind.FREE]
    assert list(trace.time_ns) == [0, 250_000, 250_000, 1_500_000]
    assert list(trace.size_bytes) == [1000, 5, 99999999, 1000]
    assert list(trace.stream) == [0, 0x55AA, 0, 0x55AA]
    assert trace.address[0] == trace.address[3] == 0x7F0000000200
    assert trace.meta["empty_requests"] == 1


def test_seconds_since_1970_and_deallocate_are_read_as_rmms_manual_has_them(log):
    trace = rmm.read(
        log(
            "140573312345856,1634567890.123456,allocate,0x7f8a40000000,1024,0x7f8a38001020",
            "140573312345856,1634567890.345678,deallocate,0x7f8a40000000,1024,0x7f8a38001020",
        )
    )
    assert list(trace.time_ns) == [0, 222_222_000]
    assert list(trace.kind) == [0, 1]


def test_spark_writes_no_columns_and_a_failure_may_have_no_pointer(tmp_path):
    path = tmp_path / "log.csv.gz"
    lines = ["1,00:00:00.5,allocate,0x200,8,0x2", "1,00:00:01.5,allocate failure,,99,0x2"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    trace = formats.read(path)
    assert list(trace.kind) == [Kind.ALLOCATE, Kind.OUT_OF_MEMORY]
    assert list(trace.address) == [0x200, 0]


@pytest.mark.parametrize("cut", ["1,00:00:01.0,fr", "1,00:00:01.0,free,0x10,8,0"])
def test_a_line_without_its_end_is_left_out_if_that_is_allowed(log, cut):
    path = log("1,00:00:00.0,allocate,0x10,8,0", cut)
    path.write_bytes(path.read_bytes()[:-1])
    trace = formats.read(path, allow_truncated=True)
    assert list(trace.kind) == [Kind.ALLOCATE]
    assert trace.meta["truncated"]


def test_a_line_that_is_wrong_before_the_last_is_an_error_in_a_truncated_log_too(log):
    path = log("1,00:00:00.0,allocate,0x10,8,0", "1,00:00", "1,00:00:00.0,allo")
    with pytest.raises(TraceError, match=r"line 3: 2 fields; .* --allow-truncated, reads the"):
        formats.read(path, allow_truncated=True)


def a_trace():
    trace = Trace({"source": "dtr_alloc"}, ["", "aten::mm"])
    trace.add(Kind.SEGMENT_ALLOCATE, address=1 << 40, size_bytes=2 << 20)
    trace.add(Kind.ALLOCATE, time_ns=1000, address=1 << 40, size_bytes=1000, name=1, stream=3)
    trace.add(Kind.ALLOCATE, time_ns=2000, address=1 << 41, size_bytes=7)
    trace.add(Kind.EVICT, time_ns=3000, address=1 << 40, size_bytes=1024)
    trace.add(Kind.FREE, time_ns=3000, address=1 << 40, size_bytes=1024, stream=3)
    trace.add(Kind.OUT_OF_MEMORY, time_ns=90_000_000_000_000, size_bytes=1 << 60)
    return trace


def test_the_command_makes_a_trace_of_a_log(log, tmp_path):
    path = log("1,00:00:00.0,allocate,0x10,8,0", "1,00:00:01.0,allocate,0x20,7,0")
    fragment("import", path, "-o", tmp_path / "c.trace")
    assert list(trace_file.read(tmp_path / "c.trace").lifetimes().size_bytes) == [8, 7]


def test_a_command_that_fails_names_the_file_and_leaves_what_was_there(tmp_path):
    (tmp_path / "a.csv").write_text("Thread,Size\n1,2\n")
    (tmp_path / "out").write_text("mine")
    done = fragment("import", tmp_path / "a.csv", "-o", tmp_path / "out", status=2)
    assert "a.csv, line 1: the columns are 'Thread,Size'" in done.output
    (tmp_path / "picture").write_bytes(b"\x89PNG")
    done = fragment("import", tmp_path / "picture", "-o", tmp_path / "out", status=2)
    assert "picture" in done.output
    assert (tmp_path / "out").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "out", "picture"]


def test_what_a_killed_job_left_is_exported_only_if_that_is_said(tmp_path):
    trace_file.write(a_trace(), tmp_path / "a.trace")
    whole = (tmp_path / "a.trace").read_bytes()
    (tmp_path / "a.trace").write_bytes(whole[:-1])
    line = ("export", tmp_path / "a.trace", "--to", "torch", "-o", tmp_path / "b")
    assert "cut off" in fragment(*line, status=2).output
    fragment(*line, "--allow-truncated")
