"""The conformance run: what it says of a case, and that a crash takes no other case along."""

import sys
from typing import Any

import pytest
import torch

pytest.importorskip("numpy", reason="PyTorch's samples need numpy")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")

from bench.conformance.__main__ import reports
from bench.conformance.cases import Case, report_of
from bench.conformance.report import markdown, summary

pytestmark = pytest.mark.filterwarnings("ignore")


def test_other_bits_are_found():
    """A function that draws anew each time it runs, and says that it does not."""
    from dtr_alloc import run_as_operator

    count = iter(range(100))

    def run() -> Any:
        return run_as_operator(lambda x: x + next(count), torch.arange(100.0))

    report = report_of(Case("operators", "of nobody", lambda: iter([run])))
    assert len(report["wrong"]) == 2
    assert "came back with other bits" in report["wrong"][0]


def test_a_case_that_ends_its_process_is_named_and_the_others_go_on():
    child = """
import json, os, sys
first = int(sys.argv[1])
print(json.dumps([["operators", str(i)] for i in range(4)]), flush=True)
for i in range(first, 4):
    if i in (1, 2):
        os.abort()
    print(json.dumps({"evicted": {"64": 0, "0": 2}, "resident": {"64": 2, "0": 0}, "kept": [],
                      "wrong": []}), flush=True)
"""
    found = [
        {"kind": kind, "name": name, **report}
        for _, kind, name, report in reports([sys.executable, "-c", child])
    ]
    document = summary(found)
    assert document["errors"] == [
        ["operators", name, "its process ended: status -6"] for name in ("1", "2")
    ]
    counts = document["counts"]["operators"]
    assert (counts["64"]["none"], counts["0"]["all"]) == (2, 2)
    document |= {"torch": "2", "dtr_alloc": "1", "commit": "c", "date": "today"}
    assert "| operators | 1 | its process ended: status -6 |" in markdown(document)
