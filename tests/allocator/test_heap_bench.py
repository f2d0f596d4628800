"""The heap's micro-benchmark runs. Needs g++."""

import json
import subprocess
import sys

import pytest
from native_fixtures import ROOT


@pytest.mark.long
def test_the_heap_bench_writes_its_figures(tmp_path):
    output = tmp_path / "heap.json"
    script = ROOT / "bench/heap.py"
    subprocess.run([sys.executable, str(script), "--smoke", "--json", str(output)], check=True)
    report = json.loads(output.read_text())
    assert {entry["allocator"] for entry in report["results"]} == {"heap", "pool", "glibc"}
    assert all(entry["median_ns"] > 0 for entry in report["results"])
    assert report["smoke"] is True
    assert report["cpu"]
