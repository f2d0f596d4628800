"""Traces as Chrome's trace events. Needs nothing."""

import gzip
import json

import pytest
from commands import fragment
from made_up_trace import of_text

from dtr_alloc.fragment import chrome_trace
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Trace, TraceError

KIB = 1 << 10
BEGAN_NS = 1_790_000_000_000_000_000


def made(text, began=True):
    """Events of names[1] unless the text says otherwise."""
    meta = {"source": "dtr_alloc", "time_unit": "ns"} | (
        {"began_unix_ns": BEGAN_NS} if began else {}
    )
    trace = of_text(text, Trace(meta, ["", "aten::mm", "aten::relu_"]), name=1)
    trace.validate()
    return trace


@pytest.fixture
def trace():
    """Two blocks in a budget, of which one is evicted and comes back, in two steps."""
    return made("B:16K S0:8K T A0:1K A1K:2K/2 E1K:2K F1K T A4K:2K C4K:2K")


@pytest.fixture
def written(tmp_path):
    def write(trace, profile=None):
        path = tmp_path / "trace.json.gz"
        left_out = chrome_trace.write(trace, path, profile)
        return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"], left_out

    return write


@pytest.fixture
def profile(tmp_path):
    def write(*slices, base=True):
        """Of torch.profiler: names, begins and durations in microseconds."""
        events = [{"ph": "M", "name": "thread_name", "pid": 7, "tid": 9, "args": {"name": "main"}}]
        for name, ts, dur in slices:
            of = {"ph": "X", "cat": "cpu_op", "pid": 7, "tid": 9}
            events.append({**of, "name": name, "ts": ts, "dur": dur, "args": {}})
        path = tmp_path / "profile.json"
        document = {"traceEvents": events} | ({"baseTimeNanoseconds": BEGAN_NS} if base else {})
        path.write_text(json.dumps(document))
        return path

    return write


def slices(events, track):
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    return [
        (event["name"], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X" and names[event["pid"], event["tid"]] == track
    ]


def test_counters_instants_steps_and_what_was_computed_again(trace, written):
    events, left_out = written(trace)
    assert not left_out
    counters = [event for event in events if event["ph"] == "C"]
    assert [event["args"]["live"] // KIB for event in counters] == [0, 0, 1, 3, 1, 3]
    assert counters[-1]["args"] == {"live": 3 * KIB, "reserved": 8 * KIB, "budget": 16 * KIB}
    (evicted,) = (event for event in events if event["ph"] == "i")
    assert (evicted["name"], evicted["ts"]) == ("evict", 5)
    assert evicted["args"]["allocated by"] == "aten::relu_"
    assert evicted["args"]["for"] == "aten::mm"
    assert evicted["args"]["bytes"] == 2 * KIB
    assert slices(events, "steps") == [("step 1", 2, 5), ("step 2", 7, 2)]
    assert slices(events, "computed again") == [("aten::mm", 8, 1)]


@pytest.mark.parametrize(
    ("text", "again", "lanes"),
    [
        ("A0:1K A1K:2K C0:1K C1K:2K", [("aten::mm", 0, 3, 3)], 1),
        ("A0:1K C0:1K C0:1K/2", [("aten::mm", 0, 1, 1), ("aten::relu_", 2, 0, 1)], 1),
        ("A0:1K A1K:1K C0:1K R0:1K C1K:1K", [("aten::mm", 0, 2, 1), ("aten::mm", 1, 3, 1)], 2),
    ],
    ids=["brought back at once", "overwritten at once", "two threads that overlap"],
)
def test_what_an_operator_brings_back_is_one_slice_in_a_lane(written, text, again, lanes):
    found = [event for event in written(made(text))[0] if event["ph"] == "X"]
    assert [
        (each["name"], each["ts"], each["dur"], each["args"]["bytes"] // KIB) for each in found
    ] == again
    assert len({each["tid"] for each in found}) == lanes


def test_devices_do_not_mix_and_a_name_that_events_share_is_cut(written):
    trace = made("A0:1K A1K:1K C0:1K C1K:1K")
    trace.device[1] = trace.device[3] = 255
    trace.names[1] = "n" * 100_000
    trace.validate()
    events, _ = written(trace)
    assert max(len(event["name"]) for event in events) < 1000
    first = chrome_trace.FIRST_PROCESS
    again = [(each["pid"] - first, each["ts"], each["dur"]) for each in events if each["ph"] == "X"]
    assert again == [(0, 0, 2), (255, 1, 2)]


def test_a_profile_has_the_events_of_the_trace_at_its_own_time(trace, written, profile):
    operators = [("aten::linear", 3, 4), ("aten::mm", 3, 2.5), ("later", 99, 1)]
    events, _ = written(trace, profile(*operators))
    assert slices(events, "main") == operators
    assert slices(events, "steps") == [("step 1", 2, 5), ("step 2", 7, 2)]
    assert len({event["pid"] for event in events}) == 2


def test_a_profile_that_is_none_or_of_another_run_is_named(trace, tmp_path, profile):
    out = tmp_path / "out"

    def refused(reason, path, trace=trace):
        with pytest.raises(TraceError, match=f"profile.json.*{reason}"):
            chrome_trace.write(trace, out, profile=path)

    path = profile(("aten::mm", 3, 1))
    refused("does not say when it began", path, made("", began=False))
    refused("none of them in the time of the trace", profile(("aten::mm", 3, 1), base=False))
    refused("is no trace of torch.profiler", profile(("aten::mm", "later", 1)))
    for text in ("[]", "{}", "{", "[" * 100_000, '{"traceEvents": 1}', '{"traceEvents": [1]}'):
        path.write_text(text)
        refused("is no trace of torch.profiler", path)
    path.write_bytes(b"\x1f\x8bpacked")
    refused("it cannot be unpacked", path)


def test_of_a_long_trace_the_longest_and_the_largest_and_the_peak_stay(tmp_path, monkeypatch):
    text = "".join(
        f" A0:{size} E0:{size} F0:{size} A0:1 {'R0:1' * (size == 500)} C0:1 F0:1"
        for size in range(1, 1000)
    )
    trace_file.write(made(f"B:{1 << 40}{text}"), tmp_path / "a.trace")
    monkeypatch.setattr(chrome_trace, "MOST", 100)
    done = fragment("export", tmp_path / "a.trace", "--to", "chrome", "-o", tmp_path / "out")
    assert "899 of evict, 899 of computed again" in done.stderr
    events = json.loads(gzip.decompress((tmp_path / "out").read_bytes()))["traceEvents"]
    evicted = sorted(event["args"]["bytes"] for event in events if event["ph"] == "i")
    assert evicted == list(range(900, 1000))
    counters = [event["args"]["live"] for event in events if event["ph"] == "C"]
    assert len(counters) <= 100
    assert max(counters) == 999
    assert max(event["dur"] for event in events if event["ph"] == "X") == 2


def test_a_profile_is_for_one_format(trace, tmp_path, profile):
    trace_file.write(trace, tmp_path / "a.trace")
    options = ("--to", "torch", "--profile", profile(), "-o", tmp_path / "out")
    done = fragment("export", tmp_path / "a.trace", *options, status=2)
    assert "--profile is for --to chrome, not for --to torch" in done.output
