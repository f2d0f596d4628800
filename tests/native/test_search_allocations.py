"""A search for what to evict allocates nothing.

In a process of its own, in which the core uses an operator new that counts (counted_new.cpp).
"""

import json
from pathlib import Path

import pytest
from commands import python
from native_fixtures import ROOT

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
