"""A job's trace says where its memory went."""

import gzip
import json
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from harness import command, environment
from made_up_trace import without_segments
from torch.cuda import _memory_viz

import dtr_alloc
from dtr_alloc.core import StateError
from dtr_alloc.fragment import chrome_trace, formats, report, torch_export, torch_snapshot
from dtr_alloc.traces.trace import Kind, TraceError

JOB = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(1024, 256)
for _ in range(3):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(sum(p.double().sum().item() for p in model.parameters()).hex())
"""


def run(code, folder, *of, **options):
    (folder / "job.py").write_text(code)
    return command(*(of or ("run",)), "job.py", cwd=folder, **options)


def kinds(trace):
    return Counter(Kind(kind).name for kind in trace.kind)


def test_without_a_budget_the_allocator_alone_is_on_until_the_job_fails_children_left_out(tmp_path):
    code = JOB + (
        "import os\n"
        "if os.fork() == 0:\n"
        "    for _ in range(1000): torch.ones(5000).sum()\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "x = torch.ones(12345)\n"
        "raise KeyError(torch._C._len_torch_dispatch_stack())\n"
    )
    failed = run(code, tmp_path, status=1, trace="traces/{rank}.trace")
    assert "KeyError: 0" in failed.stderr  # nothing sees the operators
    trace = formats.read(tmp_path / "traces/0.trace")
    assert trace.meta["mode"] == "light"
    found = kinds(trace)
    assert found["STEP"] == 4
    assert found["ALLOCATE"] > 150
    assert not {"EVICT", "ROOM", "REMATERIALIZE"} & found.keys()
    sizes = Counter(
        size for kind, size in zip(trace.kind, trace.size_bytes, strict=True) if kind == 0
    )
    assert sizes[4 * 12345] == 1
    assert sizes[4 * 5000] == 0


def test_under_a_budget_evictions_and_returns_are_marked_and_allocations_named(tmp_path):
    code = JOB + "import dtr_alloc, json\nprint(json.dumps({**dtr_alloc.stats()}))"
    record = ("run", "--trace", "some.trace", "--budget", "14MiB")
    assert '"evictions": 0,' not in run(code, tmp_path, *record).stdout
    trace = formats.read(tmp_path / "some.trace")
    found = kinds(trace)
    assert trace.meta["mode"] == "budget"
    assert found["EVICT"] > 5
    assert found["REMATERIALIZE"] > 5
    assert found["ROOM"] >= found["EVICT"] // 2
    assert min(size for kind, size in zip(trace.kind, trace.size_bytes, strict=True)
               if kind == Kind.BUDGET) == 14 << 20  # fmt: skip
    named = Counter(
        trace.names[name]
        for kind, name in zip(trace.kind, trace.name, strict=True)
        if kind == Kind.ALLOCATE
    )
    assert named["aten::addmm.default"] >= 24
    assert 8 << 20 < max(report.recorded(trace).series.live_bytes) <= 14 << 20


def test_an_export_has_the_operators_of_a_profile_and_what_ran_again_on_one_time(tmp_path):
    begin, steps = JOB.split("for _ in range(3):")
    code = begin + (
        "from torch.profiler import ProfilerActivity, profile\n"
        "with profile(activities=[ProfilerActivity.CPU]) as profiled:\n"
        "  for _ in range(3):" + steps.replace("\n    ", "\n      ") + "\n"
        "profiled.export_chrome_trace('profile.json')\n"
        "import dtr_alloc\n"
        "print('ran again', dtr_alloc.stats()['rematerializations'])\n"
    )
    output = run(code, tmp_path, trace="some.trace", budget="14MiB").stdout
    trace = formats.read(tmp_path / "some.trace")
    chrome_trace.write(trace, tmp_path / "out.json.gz", profile=tmp_path / "profile.json")
    events = json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes()))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    again = [
        event
        for event in slices
        if event["pid"] == chrome_trace.FIRST_PROCESS and not event["name"].startswith("step")
    ]
    assert again
    assert f"ran again {len(again)}\n" in output
    assert all(event["name"].startswith("aten::") for event in again)
    operators = [event for event in slices if event.get("cat") == "cpu_op"]
    assert sum(event["name"] == "aten::addmm" for event in operators) == 24
    assert min(each["ts"] for each in operators) < min(each["ts"] for each in again)
    assert max(each["ts"] for each in again) < max(each["ts"] for each in operators)


def test_a_job_that_is_killed_leaves_what_was_written(tmp_path):
    code = JOB + "print('ready', flush=True)\nwhile True: torch.ones(1000).sum()"
    (tmp_path / "job.py").write_text(code)
    job = subprocess.Popen(
        [sys.executable, "job.py"],
        env=environment(trace="some.trace"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        job.stdout.readline()
        assert job.stdout.readline() == "ready\n"
        while kinds(formats.read(tmp_path / "some.trace", allow_truncated=True))["STEP"] < 4:
            time.sleep(0.01)
    finally:
        job.send_signal(signal.SIGKILL)
        job.communicate()
    with pytest.raises(TraceError, match="cut off"):
        formats.read(tmp_path / "some.trace")
    trace = formats.read(tmp_path / "some.trace", allow_truncated=True)
    assert trace.meta["truncated"]
    assert kinds(trace)["STEP"] == 4


def test_the_first_out_of_memory_error_leaves_the_last_events_with_call_sites(tmp_path):
    code = JOB + (
        "class Block(torch.nn.Module):\n"
        "    def forward(self, x): return torch.sin(x).bernoulli_()\n"
        "kept = Block()(torch.randn(1 << 21))\n"
        "for _ in range(2):\n"
        "    try: torch.ones(1 << 28)\n"
        "    except torch.OutOfMemoryError: print('caught')\n"
    )
    done = run(code, tmp_path, trace="oom:some.trace", budget="24MiB")
    assert done.stdout.count("caught") == 2
    assert done.stderr.count("out of memory; the last") == 1
    trace = formats.read(tmp_path / "some.trace")
    assert (trace.kind[-1], trace.size_bytes[-1]) == (Kind.OUT_OF_MEMORY, 1 << 30)
    named = "aten::sin.default at job.py:14 (Block)"
    shown = command("fragment", "report", "some.trace", "--json", "out.json", cwd=tmp_path).stdout
    assert "in use then, the largest:" in shown
    assert f"8.00 MiB  {named}" in shown
    row = json.loads((tmp_path / "out.json").read_text())["traces"][0]["rows"][0]
    assert {"size_bytes": 8 << 20, "name": named} in row["worst_in_use"]
    assert row["worst_request_bytes"] == 1 << 30
    export = ("fragment", "export", "some.trace", "-o", "some.pickle", "--to", "torch")
    command(*export, cwd=tmp_path)
    snapshot = pickle.loads((tmp_path / "some.pickle").read_bytes())
    assert named in repr(snapshot["device_traces"])
    assert _memory_viz.segsum(snapshot)


def test_a_trace_alone_has_no_budget_to_set(tmp_path):
    with (
        dtr_alloc.session(trace=tmp_path / "light.trace", device="cpu"),
        pytest.raises(StateError, match="only a trace"),
    ):
        dtr_alloc.set_budget("1GiB")


@pytest.mark.parametrize("has_segments", [True, False])
def test_pytorchs_viewer_reads_the_snapshots_that_we_write(snapshots, tmp_path, has_segments):
    trace = torch_snapshot.read(snapshots / "two_devices.pickle")
    if not has_segments:
        trace = without_segments(trace, 0)
    torch_export.write(trace, tmp_path / "s.pickle")
    snapshot = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    listing = _memory_viz.trace(snapshot)
    assert listing.count(" = ") >= 40
    assert "raise OutOfMemoryError" in listing
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "MemoryViz.js" in plot(snapshot)
