"""Wherever operator new fails, the engine's rules hold, and the job ends right. Needs the native
build.

In processes of their own, in which the core uses an operator new that counts and fails
(counted_new.cpp).
"""

import json
import os
import sys
from pathlib import Path

import pytest
from commands import python
from native_fixtures import ROOT


def run_jobs(*arguments):
    script = Path(__file__).with_name("failing_new.py")
    return json.loads(python(script, *arguments, PYTHONPATH=os.pathsep.join(sys.path)).stdout)


@pytest.mark.parametrize("step", [100, pytest.param(3, marks=pytest.mark.long)])
def test_a_job_survives_an_operator_new_that_fails(counted_new, step):
    found = run_jobs(counted_new, "deep", step, 0)
    assert found["jobs"] * step > 2000  # as many are called
    assert found["refused"] > found["jobs"] / 2


@pytest.mark.long
def test_a_job_survives_one_that_fails_for_much(counted_new):
    found = run_jobs(counted_new, "wide", 1, 1 << 20)
    assert found["jobs"] > 5


# ---- A search for what to evict allocates nothing ----


AUTO, SINGLE, WINDOW = range(3)
FEW = 4  # Deferred keeps so many blocks without allocating


@pytest.mark.parametrize("room", [AUTO, SINGLE, WINDOW])
@pytest.mark.parametrize(
    "heuristic", [pytest.param("lru", marks=pytest.mark.long), "dtr-eqclass", "marginal"]
)
def test_a_search_allocates_nothing(counted_new, heuristic, room):
    script = Path(__file__).with_name("count_allocations.py")
    done = python(script, counted_new, heuristic, room, PYTHONPATH=str(ROOT))
    seen = json.loads(done.stdout)
    (unsearched,) = {news for searches, _, _, news in seen if not searches}
    assert unsearched > 0  # the tensor itself
    searched = [entry for entry in seen if entry[0]]
    assert len(searched) > 100
    assert any(windows for _, windows, _, _ in searched) == (room != SINGLE)
    # The summed cost of components has a record for each evicted storage.
    records = heuristic == "dtr-eqclass"
    growing = [
        entry
        for entry in searched
        if entry[2] <= FEW and entry[3] - unsearched != (entry[2] if records else 0)
    ]
    # Now and then a list of the engine is longer than ever before.
    assert len(growing) <= len(searched) / 100
