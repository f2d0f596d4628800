"""Bench scripts run in their smoke modes and write JSON with what they promise.

The studies are in tests/studies.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from commands import python

import dtr_alloc
from bench.frameworks.report import cells, kept
from bench.frameworks.worker import kept_now
from bench.peers.report import markdown
from bench.sweep import EXPERIMENTS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"dtr_alloc", "torch", "python", "platform", "device", "threads", "seed", "bench"}


def run(module: str, *options: str, has: set[str]) -> dict[str, Any]:
    """The JSON document that ``python -m module --smoke --json -`` prints, which has these keys."""
    done = python("-m", module, "--smoke", "--json", "-", *options, cwd=ROOT)
    document = json.loads(done.stdout)
    assert document.keys() >= ENVIRONMENT | has
    return document


def test_smallest_budget() -> None:
    """Bisects two jobs coarsely, bits compared at every budget."""
    document = run(
        "bench.smallest_budget", "--device", "cpu", has={"results", "steps", "resolution"}
    )
    for row in document["results"]:
        assert row["same_bits"]
        assert row["peak_allocated_bytes"] <= row["smallest_budget_bytes"]
        assert row["smallest_fraction"] <= 0.5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_sweep(name: str) -> None:
    """One job in one budget under each setting of an experiment, bits compared."""
    document = run("bench.sweep", name, has={"results", "rounds", "scale", "steps"})
    rows = {row["policy"]: row for row in document["results"]}
    outcomes = {name: row["outcome"] for name, row in rows.items()}
    if name == "custom-operators":
        assert outcomes.pop("not trusted") == "out of memory"
    assert outcomes.keys() >= {"plain", "unlimited"}
    assert set(outcomes.values()) == {"same bits"}
    assert all(rows[setting]["step_ratio"] > 0 for setting in outcomes)
    moved = "swapped_in_bytes" if name == "swapping" else "repeated_in_all"
    assert all(rows[setting][moved] > 0 for setting in outcomes.keys() - {"plain", "unlimited"})


def test_suggest() -> None:
    """What is suggested for one job, and what it takes."""
    document = run("bench.suggest", has={"results", "steps"})
    (row,) = document["results"]
    assert row["suggested_smallest_bytes"] < row["peak_bytes"]
    assert len(row["costs"]) == 3


def test_soak() -> None:
    """A few rounds: each job ends with its bits, whatever came before."""
    document = run("bench.soak", has={"counts", "resident_set_bytes", "seconds"})
    assert document["failures"] == []
    counts = document["counts"]
    assert counts["compared"] == counts["rounds"] > 0
    assert counts["differences"] == 0


def test_heap() -> None:
    """Pairs of malloc and free on our heap, our pool and glibc. Needs g++."""
    document = run("bench.heap", has={"results"})
    assert {row["allocator"] for row in document["results"]} == {"heap", "pool", "glibc"}
    assert all(row["median_ns"] > 0 for row in document["results"])


def test_search() -> None:
    """Searches among a few hundred candidates."""
    document = run("bench.search", has={"results", "processor"})
    for row in document["results"]:
        assert row["requests"] > 0
        assert 0 < row["median_us"] <= row["p90_us"]
        assert row["evaluations_per_search"] > 0


def test_overhead() -> None:
    """What an idle dtr_alloc adds, per operator and per step, at rest and recording."""
    document = run("bench.overhead", has={"commit", "command", "cases", "jobs"})
    for row in document["cases"]:
        assert row["operators"] >= 1
        assert row["plain_ns_per_op"] > 0
    (job,) = document["jobs"]
    assert job["operators"] > 1000
    for way in ("rest", "recording"):
        key = f"{way}_added_ns_per_op"
        assert document[key] == median(row[key] for row in document["cases"])
        for row in (*document["cases"], job):
            ratio = 1 + row[key] / row["plain_ns_per_op"]
            assert row[f"{way}_ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("job", ["digits", "gpt"])
def test_demo(job: str) -> None:
    """Both jobs of the demo at two budgets; a table's worth of numbers."""
    document = run("bench.demo", "--device", "cpu", "--job", job, has={"jobs"})
    (result,) = document["jobs"]
    rows = result["runs"]
    assert rows[0]["label"] == "plain"
    wanted = {"budget_bytes", "peak_allocated_bytes", "peak_resident_bytes", "step_seconds"}
    wanted |= {"slowdown", "evictions", "rematerializations", "same_bits"}
    assert all(row.keys() >= wanted for row in rows)
    assert all(row["same_bits"] for row in rows if row["fits"])


def test_peers() -> None:
    """A tiny job under every method, each beside ours in the memory that it takes."""
    document = run("bench.peers", has={"cells", "lines", "processor", "rounds"})
    assert len({row["method"] for row in document["cells"]}) == len(document["cells"]) == 7
    text = markdown(document)
    for row in document["cells"]:
        assert row["peer"]["outcome"] == "trains"
        assert row["ours"]["outcome"] in ("trains", "out of memory", "thrashes")
        assert row["share"] == row["peer"]["peak"] / row["plain"]["peak"] > 0
        if row["ours"]["outcome"] == "trains":
            assert row["ours"]["peak"] <= row["peer"]["peak"]
            assert row["ours"]["differs"] == []
            assert row["ours_over_peer"] > 0
        assert f"{row['job']}, {row['method']}: takes" in text or f"| {row['method']} |" in text


def test_foreign() -> None:
    """A job of PyTorch alone under each heuristic, at half its activations, bits compared."""
    document = run("bench.foreign", has={"jobs", "cells", "processor", "steps"})
    (job,) = document["jobs"]
    assert job["operators"] > 1000
    assert job["activations"] == job["peak"] - job["idle"] > 0
    rows = {row["method"]: row for row in document["cells"]}
    assert rows.keys() == {"plain", "default", "dtr-full", "dtr-eqclass"}
    assert rows["plain"]["budget"] == job["idle"] + job["activations"] // 2
    for method in rows.keys() - {"plain"}:
        assert rows[method]["outcome"] == "trains"
        assert rows[method]["differs"] == []
        assert rows[method]["evictions"] > 0
        assert min(rows[method][part] for part in ("first", "late")) > 0


def test_a_foreign_job_whose_checkout_is_not_named_is_skipped_with_the_reason() -> None:
    options = ("--job", "tts_angular", "--json", "-")
    document = json.loads(python("-m", "bench.foreign", *options, cwd=ROOT).stdout)
    assert document["cells"] == []
    assert "--checkout torchbench=PATH" in document["jobs"][0]["skipped"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--checkout", "torchbench"), "'torchbench' is none of torchbench=PATH"),
        (("--checkout", "other=."), "'other=.' is none of torchbench=PATH"),
        (("--checkout", "examples=/no/such/folder"), "/no/such/folder is not a folder"),
        (("--job", "no_such_job"), "'no_such_job' is not one of"),
        (("--share", "0"), "0.0 is not in the range 0<x<=1"),
    ],
)
def test_what_bench_foreign_cannot_use_is_named(options: tuple[str, str], reason: str) -> None:
    done = python("-m", "bench.foreign", *options, cwd=ROOT, status=2)
    assert reason in " ".join(done.stderr.split())


def test_frameworks() -> None:
    """A compiled job of PyTorch alone, as it is and in three budgets."""
    document = run("bench.frameworks", has={"results", "versions", "processor", "rounds"})
    (row,) = document["results"]
    assert row["ways"].keys() == {"plain", "no limit", "70%", "50%"}
    assert {way["outcome"] for way in row["ways"].values()} == {"trains"}
    assert row["smallest"]["part"] == 0.5
    assert row["ways"]["50%"]["peak"] <= row["smallest"]["bytes"]
    ((_, state, activations, bits, *_),) = cells(document)
    assert bits == "same"
    assert 0 < float(state) < float(activations)


def test_what_a_framework_keeps_has_its_reason() -> None:
    with dtr_alloc.session("unlimited", device="cpu"):
        given = [torch.randn(2**18).relu() for _ in range(2)]
        addresses = [each.data_ptr() for each in given]
        found = [(size_bytes, *of) for of, size_bytes in kept_now().items()]
    assert len(set(addresses)) == 2
    assert kept(found, least_bytes=2**20).startswith("2.0 MiB: ")


def test_conformance() -> None:
    """A handful of operators, modules and optimizers, in a child."""
    document = run("bench.conformance", has={"counts", "kept"})
    assert document["errors"] == document["other bits"] == []
    cases = [sum(limits["0"].values()) for limits in document["counts"].values()]
    assert cases == [4, 1, 1]
