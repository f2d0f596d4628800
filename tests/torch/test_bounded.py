"""A long run under eviction holds no more at its end than after it has warmed up."""

from __future__ import annotations

import pytest
from harness import MIB, one_thread  # noqa: F401

from bench.long_run import growth, soak

STEPS = 2_000


@pytest.mark.long
def test_two_thousand_steps_grow_nothing() -> None:
    """Records and the resident set stay level, and the budget holds all along."""
    budget, rows = soak(STEPS, 20, "cpu", seed=0)
    assert all(row["rematerializations"] > 0 for row in rows)
    assert all(row["peak_allocated_bytes"] <= budget for row in rows)
    assert growth(rows, "live_records") <= 1.05
    resident = [row["resident_set_bytes"] for row in rows]
    assert max(resident[-5:]) - max(resident[5:10]) < 2 * MIB
    # The work of a window is the same, too: nothing is recomputed more often as history grows.
    assert growth(rows, "rematerializations") <= 1.25
