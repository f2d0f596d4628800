"""What the operating system sees of a budget: a long run holds no more at its end than after it has
warmed up, and the resident set shrinks with the budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import MIB, ROOT, fix_costs

import dtr_alloc
from bench.long_run import Small, growth, soak

STEPS = 2_000


@pytest.mark.long
def test_two_thousand_steps_grow_nothing(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    with dtr_alloc.session(budget="unlimited", device="cpu", costs=costs):
        job = Small(device="cpu", seed=0)
        for i in range(3):
            job.step(i)
    fix_costs(costs)
    budget, rows = soak(STEPS, 20, "cpu", seed=0, costs=costs)
    assert all(row["rematerializations"] > 0 for row in rows)
    assert all(row["peak_allocated_bytes"] <= budget for row in rows)
    assert growth(rows, "live_records") <= 1.05
    resident = [row["resident_set_bytes"] for row in rows]
    assert max(resident[-5:]) - max(resident[5:10]) < 2 * MIB
    # The work of a window is the same, too: nothing is recomputed more often as history grows.
    # Measured costs would not tell, as another process on the machine changes them.
    assert growth(rows, "rematerializations") <= 1.01


def run_demo(budget: str) -> dict[str, Any]:
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
    free = run_demo("unlimited")
    activations = free["peak_allocated_bytes"] - free["idle_bytes"]
    assert activations > 80 * MIB
    budget = free["idle_bytes"] + int(0.4 * activations)
    tight = run_demo(str(budget))
    assert tight["peak_allocated_bytes"] <= budget
    saved = free["peak_resident_bytes"] - tight["peak_resident_bytes"]
    assert saved > 40 * MIB
    assert tight["digest"] == free["digest"] == run_demo("plain")["digest"]
