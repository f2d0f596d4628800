"""What a study is asked for is read as it is meant. Needs the native build for its numbers."""

import math
import sys
from dataclasses import replace

import pytest

pytest.importorskip("dtr_alloc._core", reason="the core is not built here", exc_type=ImportError)

from bench.studies.log import Log
from dtr_alloc import heuristics
from dtr_alloc.simulation import simulate
from dtr_alloc.simulation.executors import Workers
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.simulation.simulate import Limit, Plan, Study, parse_limits


def ratios(text):
    return [limit.ratio for limit in parse_limits(text)]


def test_a_range_has_the_same_numbers_as_a_list():
    assert ratios("0.3..1.0") == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert ratios("0.3..0.5:0.05") == [0.3, 0.35, 0.4, 0.45, 0.5]
    assert ratios("0.1..0.55:0.2") == [0.1, 0.3, 0.5]
    assert ratios("1.0..1.0") == [1.0]


def test_lists_mix_ratios_and_sizes():
    limits = parse_limits("0.5, 8GiB,1102074936,.25,1.5,1.0")
    assert limits == [
        *(Limit(ratio=0.5), Limit(size_bytes=8 << 30), Limit(size_bytes=1102074936)),
        *(Limit(ratio=0.25), Limit(ratio=1.5), Limit(ratio=1.0)),
    ]


def test_a_ratio_is_cut_off_as_in_floating_point():
    """As the published simulator does: 0.7 of 10 is 7 and 0.29 of 100 is 28."""
    assert Limit(ratio=0.7).resolve(10) == 7
    assert Limit(ratio=0.29).resolve(100) == 28
    assert Limit(ratio=0.3).resolve(216065092) == 64819527
    assert Limit(size_bytes=5).resolve(10) == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(("1", r"1 may be a ratio or bytes \(write 1\.0 or 1B\)"), ("2", r"write 2\.0 or 2B")),
        *(("0", "0 bytes"), ("0B", "0 bytes"), ("0.0", "ratio 0.0 is not above 0")),
        *(("2.5", "ratio 2.5 is not above 0 and at most 2"), ("-0.5", "no size or ratio")),
        *(("-1", "no size or ratio"), ("0.9..0.3", "a range needs")),
        *(("0.3..0.9:0", "a range needs"), ("0.1..0.9:0.000001", "1000 at most")),
        *(("0.0..0.3", "ratio 0.0"), ("0.5..3.0", r"ratio 2\.1"), ("0.3..", "no range")),
        *(("..", "no range"), ("1GiB..2GiB", "no range of ratios"), ("0.3..0.9:-0.1", "no range")),
        *(("half", "no size or ratio"), ("60%", "no size or ratio"), ("nan", "no size or ratio")),
        *(("", "no size or ratio"), ("0.3,", "no size or ratio")),
        *(("unlimited", "no size or ratio"), ("20000000TiB", "no size or ratio")),
    ],
)
def test_a_wrong_budget_is_named_with_what_is_allowed(text, why):
    with pytest.raises(ValueError, match=f"{why}.* in budget .*; allowed: ratios of the peak"):
        parse_limits(text)


def test_a_list_of_heuristics_is_cut_between_heuristics_only():
    assert simulate.split_heuristics("lru,c=ancestors,m=size,s=0.5,dtr-local") == [
        *("lru", "c=ancestors,m=size,s=0.5", "dtr-local")
    ]
    assert simulate.split_heuristics("c=none,s=1,c=local, m=size") == [
        *("c=none,s=1", "c=local,m=size")
    ]


def test_all_presets_are_meant_by_all_as_far_as_they_can_be_fed():
    rules = simulate.parse_heuristics(["lru", "all"], "simrd")
    names = [rule.name for rule in rules]
    assert names[0] == "lru"
    assert sorted(names) == sorted(PRESETS)
    rules = simulate.parse_heuristics(["all"], "simrd", ["eager", "banish"])
    assert sorted(set(names) - {rule.name for rule in rules}) == [
        *("coop", "dtr-eqclass", "megengine")
    ]
    rules = simulate.parse_heuristics(["all"], "runtime")
    assert [rule.name for rule in rules] == list(PRESETS)


def test_seeds_are_numbers_and_ranges():
    assert simulate.parse_seeds("0..3") == [0, 1, 2, 3]
    assert simulate.parse_seeds("7, 1..2") == [7, 1, 2]
    for text in ("", "-1", "3..1", "a", "1..", "0..1000", str(2**64)):
        with pytest.raises(ValueError, match=r"seed .*; allowed: whole numbers from 0 up"):
            simulate.parse_seeds(text)


def test_a_run_thrashes_when_its_compute_passes_so_many_times_the_base():
    assert simulate.thrash_limit(100, None) is None
    assert simulate.thrash_limit(100, 1) == 0
    assert simulate.thrash_limit(100, 2) == 100
    assert simulate.thrash_limit(101, 1.5) == 50


@pytest.fixture(scope="module")
def program():
    """Six activations of a line, used again in reverse."""
    log = Log()
    log.constant("x0", 1000)
    for i in range(1, 7):
        log.call(f"x{i - 1}", {f"x{i}": 1000}, time=10 + i)
    for i in range(6, 0, -1):
        log.call(f"x{i} x0", {f"x{13 - i}": 1000}, time=20)
        log.release(f"x{i}", f"x{13 - i}")
    return log.program


def plan(**options):
    rules = simulate.parse_heuristics(["dtr-eqclass", "random"], options.get("semantics", "simrd"))
    return Plan(**{"limits": parse_limits("0.6..1.0:0.2"), "heuristics": rules, **options})


def without_time(rows):
    return [
        {key: value for key, value in row.items() if not key.endswith("seconds")} for row in rows
    ]


@pytest.mark.parametrize("semantics", simulate.SEMANTICS)
def test_processes_give_the_rows_that_one_gives_in_the_same_order(program, semantics):
    asked = plan(seeds=[0, 1], deallocs=["eager", "ignore"], semantics=semantics)
    rows = without_time(Study(asked, [program, program]))
    assert rows == without_time(Study(asked, [program, program], Workers(jobs=3)))
    assert len(rows) == 2 * 2 * (1 + 2) * 3
    assert [row["ratio"] for row in rows[:4]] == [0.6, 0.8, 1.0, 0.6]
    assert {row["seed"] for row in rows if row["heuristic"] == "random"} == {0, 1}
    assert {row["seed"] for row in rows if row["heuristic"] != "random"} == {None}
    assert all(row["status"] == "ok" for row in rows)
    assert all(row["base_peak_bytes"] == rows[0]["base_peak_bytes"] for row in rows)


def test_a_row_says_what_ran_and_what_came_of_it(program):
    (row,) = Study(plan(limits=parse_limits("4500B"), heuristics=[PRESETS["dtr-full"]]), [program])
    assert (row["log"], row["heuristic"], row["ratio"]) == ("by hand", "dtr-full", None)
    assert row["budget_bytes"] == 4500
    assert row["total_compute"] == row["model_compute"] + row["remat_compute"] == row["clock"] - 1
    assert row["remat_compute"] > 0
    assert row["peak_bytes"] <= 4500
    assert len(row["decisions_sha256"]) == 16
    expected = """log semantics space heuristic dealloc seed ratio budget_bytes status base_compute
        base_peak_bytes total_compute rematerializations forced_evictions other_evictions banished
        collateral peak_bytes end_bytes chain_depth clock model_compute remat_compute model_ops
        evaluations accesses decisions_sha256 seconds search_seconds"""
    assert set(expected.split()) <= set(row)


def test_thrash_ends_runs_in_terms_of_the_base(program):
    (row,) = Study(plan(limits=parse_limits("3500B"), heuristics=plan().heuristics[:1]), [program])
    assert row["status"] == "ok"
    times = row["total_compute"] / row["base_compute"]
    assert times > 1.05
    asked = plan(limits=parse_limits("3500B"), heuristics=plan().heuristics[:1])
    (row,) = Study(replace(asked, thrash=math.ceil(times * 100) / 100), [program])
    assert row["status"] == "ok"
    (row,) = Study(replace(asked, thrash=1.01), [program])
    assert row["status"] == "thrash"
    assert row["remat_compute"] > 0.01 * row["base_compute"]


def test_what_no_log_could_run_with_is_named_before_any_runs():
    callback = heuristics.Heuristic("mine", select="callback", score=lambda candidate: 0.0)
    with pytest.raises(ValueError, match="'mine' is a Python callable"):
        plan(heuristics=[callback]).check()
    with pytest.raises(ValueError, match="heuristic 'dtr-eqclass' with dealloc 'banish': the cost"):
        plan(deallocs=["banish"]).check()
    plan().check()


def test_a_wheel_has_no_semantics_of_simrds_and_says_so(program, monkeypatch):
    monkeypatch.setitem(sys.modules, "dtr_alloc._lab", None)
    with pytest.raises(ValueError, match=r"in no wheel.*allowed here: semantics 'runtime'"):
        plan().check()
    assert simulate.run_log(program, semantics="runtime").status == "ok"
