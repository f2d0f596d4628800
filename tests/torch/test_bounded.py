"""A long run under eviction holds no more at its end than after it has warmed up."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import MIB, fix_costs, one_thread  # noqa: F401

import dtr_alloc
from bench.long_run import Small, growth, soak

STEPS = 2_000


@pytest.mark.long
def test_two_thousand_steps_grow_nothing(tmp_path: Path) -> None:
    """Records and the resident set stay level, and the budget holds all along."""
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
