"""A job on a fixed heap. Needs torch and the core.

The job runs in a process of its own, as a process keeps its heap.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
pytest.importorskip(
    "dtr_alloc._core", reason="the core is not built here (pip install -e .)", exc_type=ImportError
)

ROOT = Path(__file__).resolve().parent.parent.parent

JOB = """
import json
import torch
import dtr_alloc
from bench.measure import profile, train, train_plain
from bench.models import differences

torch.set_num_threads(1)
reference = train_plain("transformer", 2)
with dtr_alloc.session(budget="unlimited", device="cpu", pool="fixed"):
    pass
shape, _ = profile("transformer", 2)
run = train("transformer", shape.budget(0.6), 2, check=True)
print(json.dumps({"wrong": differences(reference, run.state), "evictions": run.evictions,
                  "remaps": run.stats["remaps"], "repeats": run.rematerializations,
                  "peak": run.stats["peak_reserved_bytes"], "budget": shape.budget(0.6)}))
"""


def test_a_job_on_a_fixed_heap_has_the_same_bits():
    result = subprocess.run(
        [sys.executable, "-c", JOB], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["wrong"] == []
    assert found["evictions"] > 0
    assert found["repeats"] > 0
    assert found["remaps"] == 0
    assert found["peak"] <= found["budget"]
