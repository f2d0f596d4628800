"""simrd's semantics against the published simulator: every counter and decision of its runs.

What the files are, and how they were made: tests/data/simrd/README.md.
"""

import json
import lzma
import os
import random
import threading
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_fixtures import cpp_program
from simrd_names import of_simrd

from bench.studies.linear_network import linear_network
from bench.studies.log import Log
from dtr_alloc.oplog import compile_log
from dtr_alloc.simulation import simulate

DATA = Path(__file__).parents[1] / "data" / "simrd"
DEALLOCS = {
    "RuntimeV2EagerOptimized": "eager",
    "RuntimeV1": "banish",
    "RuntimeV2Optimized": "ignore",
}
COUNTERS = {
    **{name: name for name in ("status", "clock", "model_ops", "remat_ops", "collateral")},
    "model_compute": "model_cost",
    "remat_compute": "remat_cost",
    "evict_forced": "forced",
    "evict_other": "other",
    "banish": "banished",
    "peak_memory": "peak_bytes",
    "end_memory": "end_bytes",
    "evals": "evaluations",
    "accesses": "accesses",
    "sha256": "decisions_sha256",
}


def rows(name):
    with lzma.open(DATA / name, "rt") as lines:
        return [json.loads(line) for line in lines]


def differences(row, program, max_recompute):
    run = simulate.run_log(
        program,
        budget_bytes=row["budget"],
        **of_simrd(row["heuristic"]),
        dealloc="ignore" if row.get("no_dealloc") else DEALLOCS[row["runtime"]],
        seed=row.get("seed", 0),
        max_recompute=max_recompute,
        decisions=isinstance(row.get("events"), str),
    )
    found = {
        theirs: (row[theirs], getattr(run, ours))
        for theirs, ours in COUNTERS.items()
        if theirs in row and row[theirs] != getattr(run, ours)
    }
    if "Eq" in row["heuristic"]:
        found.pop("accesses", None)
    # All of them, or their number; their hash is among the counters.
    events = row.get("events")
    made = run.model_ops + run.remat_ops + run.forced + run.other + run.banished
    if run.decisions is not None:
        made = run.decisions.replace("\n", " ")
    if events is not None and events != made:
        found["events"] = (events, made)
    return found


def check(row, program, max_recompute):
    found = differences(row, program, max_recompute)
    assert not found, {key: value for key, value in row.items() if key != "events"}


MICRO = rows("micro_traces.jsonl.xz") + rows("fuzz_traces.jsonl.xz")


@pytest.mark.parametrize("micro", MICRO, ids=[micro["id"] for micro in MICRO])
def test_every_decision_on_a_tiny_program(micro, tmp_path):
    log = tmp_path / "micro.log"
    log.write_text("\n".join(micro["lines"]) + "\n")
    program = compile_log(log)
    base = micro["baseline"]["baseline_compute"]
    for row in micro["runs"]:
        check(row, program, 9 * base)


SYNTHETIC = json.loads((DATA / "synthetic_baselines.json").read_text())


def check_baseline(program, expected):
    base = simulate.run_log(program, "lru", dealloc="banish")
    assert (base.peak_bytes, base.model_cost) == (
        expected["baseline_memory"],
        expected["baseline_compute"],
    )
    assert (base.model_ops, base.end_bytes) == (expected["baseline_ops"], expected["end_memory"])
    assert simulate.baseline(program).peak_bytes == base.peak_bytes


@pytest.mark.parametrize("log", SYNTHETIC)
def test_every_row_of_a_generated_log(log):
    program = compile_log(DATA / "synthetic_logs" / f"{log}.log.xz")
    check_baseline(program, SYNTHETIC[log])
    for row in rows("synthetic_expected.jsonl.xz"):
        if row["log"] != log:
            continue
        check(row, program, int(row["remat_limit"]))


PUBLISHED_LOGS = {
    "ResNet-32 (56)": "resnet32",
    "U-Net (6)": "unet",
    "Transformer (10)": "transformer",
    "LSTM (512)": "lstm",
    "DenseNet-121 (84)": "densenet121",
    "InceptionV4 (64)": "inceptionv4",
    "TreeLSTM (D.6)": "treelstm",
    "Unrolled GAN": "unroll_gan",
}
PUBLISHED = json.loads((DATA / "published_baselines.json").read_text())


def published(model):
    folder = os.environ.get("SIMRD_LOGS")
    if not folder:
        pytest.skip("SIMRD_LOGS is not set to a folder with the logs of the DTR paper")
    return compile_log(Path(folder) / f"{PUBLISHED_LOGS[model]}.log.xz")


@pytest.mark.parametrize("model", PUBLISHED)
def test_every_row_of_a_published_log(model):
    program = published(model)
    check_baseline(program, PUBLISHED[model])
    for row in rows("published_expected.jsonl.xz"):
        if row["model"] == model:
            check(row, program, PUBLISHED[model]["baseline_compute"])


@pytest.mark.parametrize("name", ["theory_linear", "theory_traces"])
def test_every_row_of_the_linear_network(name):
    network = cache(linear_network)
    for row in rows(f"{name}_expected.jsonl.xz"):
        check(row, network(row["n"]), 64 * row["n"])


def test_the_random_choice_is_that_of_python():
    """``random.seed(seed)``, then ``pool[random.randrange(len(pool))]``."""
    log = Log()
    for i in range(10):
        log.call("", {f"x{i}": 1})
    for seed in (0, 1, 2**32, 2**63 - 1):
        run = simulate.run_log(log.program, "random", 3, seed=seed, decisions=True)
        theirs = random.Random(seed)
        pool = []
        expected = []
        for tensor in range(10):
            if len(pool) == 3:
                expected.append(f"E{pool.pop(theirs.randrange(len(pool)))}")
            pool.append(tensor)
            expected.append(f"M{tensor}")
        for tensor in range(10):
            if tensor not in pool:
                break  # the outputs are wanted back, and pinned: from here on the pool differs
        assert run.decisions.split()[: len(expected)] == expected


# ---- what no row has ----


def decisions(log, heuristic, budget, **options):
    return simulate.run_log(
        log.program, heuristic, budget, decisions=True, **options
    ).decisions.split()


def test_the_last_of_equal_scores_goes_but_the_first_of_zero():
    log = Log()
    for name in ("a", "b", "c"):
        log.call("", {name: 1}, time=0)
    log.call("", {"d": 1}, time=5)
    log.call("", {"e": 1}, time=5)
    assert decisions(log, "lru", 4)[4] == "E2"
    assert decisions(log, "dtr-local", 4)[4] == "E0"


def test_a_storage_of_zero_bytes_and_one_of_no_age_are_chosen_last():
    log = Log()
    log.call("", {"zero": 0}, time=5)
    log.call("", {"old": 1}, time=5)
    log.call("", {"new": 1}, time=5)
    log.call("", {"more": 1}, time=5)
    assert decisions(log, "dtr-local", 2)[3] == "E1"


def test_parts_beyond_simrd_have_defined_scores():
    program = compile_log(DATA / "synthetic_logs" / "resnet_chain.log.xz")
    budget = simulate.baseline(program).peak_bytes // 2
    hashes = set()
    for text in ("c=ancestors,m=size,s=0.5", "c=ancestors,m=size,s=0.25", "megengine", "coop"):
        run = simulate.run_log(program, text, budget)
        assert run.status == "ok"
        assert run.clock == 1 + run.total_cost
        hashes.add(run.decisions_sha256)
    assert len(hashes) == 4


STATIC = [json.loads(row) for row in (DATA / "static_graphs_expected.jsonl").open()]


@pytest.mark.parametrize("row", STATIC, ids=lambda row: f"{row['graph']}-{row['frac']}")
def test_a_static_graph_makes_every_decision_of_the_published_comparison(
    row,
):
    program = compile_log(DATA / "static_graphs" / f"{row['graph']}.log.xz")
    base = simulate.baseline(program)
    assert base.peak_bytes == row["simrd_V1inf_peak"]
    for heuristic, theirs in row["simrd"].items():
        options = of_simrd(heuristic)
        run = simulate.run_log(
            program, budget_bytes=row["budget"], max_recompute=base.compute, **options
        )
        assert (run.status, run.remat_ops, run.peak_bytes, run.decisions_sha256) == (
            theirs["status"],
            theirs["remat_ops"],
            theirs["peak"],
            theirs["sha256"],
        )
        assert round(run.total_cost / base.compute, 6) == theirs["overhead"]


def test_deep_chains_need_no_recursion():
    """A backward pass that finds nothing left of a forward pass of 4,000 layers, on a stack with
    room for 64 bytes a layer."""
    log = Log()
    layers = 4_000
    for i in range(layers):
        log.call(f"f{i - 1}" if i else "", {f"f{i}": 1})
    for i in range(layers - 1):
        log.release(f"f{i}")
    log.release(f"f{layers - 1}")
    log.call("", {"full": 1})
    log.call(f"f{layers - 2} full", {"last": 1})
    runs = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(
            target=lambda: runs.append(simulate.run_log(log.program, "lru", 8))
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert [(run.status, run.chain_depth) for run in runs] == [("ok", layers - 1)]


numbers = st.integers(-(2**62), 2**62)
divisors = st.one_of(st.integers(1, 2**53), st.integers(2**53, 2**66), st.integers(1, 2**124))


@pytest.fixture(scope="module")
def quotients(tmp_path_factory):
    return cpp_program(tmp_path_factory.mktemp("quotients"), "tests/native/quotients.cpp")


@settings(max_examples=30)
@given(pairs=st.lists(st.tuples(numbers, divisors), min_size=100, max_size=200))
def test_quotients_are_rounded_as_python_rounds_them(quotients, pairs):
    lines = "".join(f"{a} {b >> 64} {b & (2**64 - 1)}\n" for a, b in pairs)
    ours = [float.fromhex(line) for line in quotients(text=lines).split()]
    assert ours == [a / b for a, b in pairs]


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_has_the_square_root_of_the_candidates(seed):
    log = Log()
    for i in range(40):
        log.call("", {f"x{i}": 1})
    for i in range(40):
        log.release(f"x{i}")
    rng = random.Random(seed)
    pool = list(range(10))  # the oldest first
    expected = []
    for new in range(10, 40):
        wanted = 4
        sample = []
        for at, candidate in enumerate(pool):
            if rng.randrange(len(pool) - at) < wanted - len(sample):
                sample.append(candidate)
        assert len(sample) == wanted
        pool.remove(sample[0])
        pool.append(new)
        expected.append(f"E{sample[0]}")
    found = decisions(log, "lru", 10, seed=seed, sampling="sqrt")
    assert [decision for decision in found if decision[0] == "E"] == expected
    assert simulate.run_log(log.program, "lru", 10, sampling="sqrt").evaluations == 30 * 4


def test_storages_below_the_share_of_the_mean_size_stay():
    log = Log()
    for name, size in {"small": 9, "least": 10, "large": 41, "full": 20, "more": 20}.items():
        log.call("", {name: size})
    # The mean of small, least and large is 20.
    assert decisions(log, "lru", 70, least_size_share=0)[3] == "E0"
    assert decisions(log, "lru", 70, least_size_share=0.5)[3] == "E1"
    assert decisions(log, "lru", 70, least_size_share=1)[3] == "E2"
    log = Log()
    for name, size in {"below": 9, "above": 10, "full": 9}.items():
        log.call("", {name: size})
    assert decisions(log, "lru", 20, least_size_share=1)[2] == "E1"  # the mean is 9.5
    assert decisions(log, "random", 20, least_size_share=1)[2] == "E1"


@pytest.mark.parametrize(("sampling", "share"), [("sqrt", 0), ("none", 1), ("sqrt", 1)])
def test_what_fits_does_not_depend_on_how_many_are_candidates(sampling, share):
    """All that may go does before memory is out, and in the end also what is small."""
    log = Log()
    for name, size in {"zero": 0, "tiny": 1, "small": 9, "large": 40}.items():
        log.call("", {name: size})
    log.call("", {"all": 50})
    options = {"sampling": sampling, "least_size_share": share}
    run = simulate.run_log(log.program, "lru", 50, decisions=True, **options)
    assert (run.status, run.end_bytes) == ("oom", 50)  # the program wants all of it at its end
    assert run.forced >= 3
    log = Log()
    log.call("", {"small": 1})
    log.call("small", {"large": 100})
    for budget in (99, 100):
        plain = simulate.run_log(log.program, "lru", budget)
        run = simulate.run_log(log.program, "lru", budget, **options)
        assert (run.status, run.decisions_sha256) == ("oom", plain.decisions_sha256)
