"""The operating system sees the budget, too: the process's resident set shrinks with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import MIB

ROOT = Path(__file__).parents[2]


def run(budget: str) -> dict[str, Any]:
    """The last line of one run of the demo's character model in a process of its own."""
    steps = 4
    options = ["--job", "gpt", "--steps", str(steps), "--budget", budget]
    command = [sys.executable, "-m", "bench.demo.worker", *options]
    done = subprocess.run(command, cwd=ROOT, input="\n" * steps, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_peak_resident_set_shrinks_by_what_the_budget_takes_away() -> None:
    """About 100 MiB of activations: at 40 % of them the peak resident set is at least 40 MiB
    smaller, and the bits are those of a run without dtr_alloc."""
    free = run("unlimited")
    activations = free["peak_allocated_bytes"] - free["idle_bytes"]
    assert activations > 80 * MIB
    budget = free["idle_bytes"] + int(0.4 * activations)
    tight = run(str(budget))
    assert tight["peak_allocated_bytes"] <= budget
    saved = free["peak_resident_bytes"] - tight["peak_resident_bytes"]
    assert saved > 40 * MIB
    assert tight["digest"] == free["digest"] == run("plain")["digest"]
