"""Simulation of op logs on the engine that trains. They need the native build, no PyTorch."""

import itertools
import math
from array import array
from pathlib import Path

import pytest
from native_pool import NativePool
from programs import Model, describe

from bench.studies.log import Log
from dtr_alloc import oplog
from dtr_alloc.simulation import presets, simulate

LOGS = sorted((Path(__file__).parents[1] / "data/simrd/synthetic_logs").glob("*.log.xz"))
PRESETS = list(presets.PRESETS)


def run_log(program, heuristic="dtr-eqclass", budget=None, **options):
    options.setdefault("decisions", True)
    return simulate.run_log(program, heuristic, budget, semantics="runtime", **options)


def with_x(size=1000):
    """A log that begins with a constant x."""
    log = Log()
    log.constant("x", size)
    return log


@pytest.fixture(scope="module")
def programs():
    return {path.name.split(".")[0]: oplog.compile_log(path) for path in LOGS}


@pytest.mark.parametrize("space", simulate.SPACES)
@pytest.mark.parametrize("name", [path.name.split(".")[0] for path in LOGS])
def test_a_simulation_reads_nothing_that_is_evicted_and_repeats_itself(programs, name, space):
    """Under every preset (on a fixed heap: some), at several budgets: followed decision by
    decision."""
    program = programs[name]
    model = Model(program)
    base = simulate.baseline(program, "runtime", space)
    seen = set()
    ratios = (0.3, 0.5, 0.7, 0.9, 1.0)
    presets = ("dtr-eqclass", "megengine") if space == "fixed" else PRESETS
    for preset, dealloc, ratio in itertools.product(presets, simulate.DEALLOCS, ratios):
        budget = int(base.peak_bytes * ratio)
        options = {"dealloc": dealloc, "space": space, "max_recompute": 2 * base.compute}
        run = run_log(program, preset, budget, **options)
        assert describe(run) == describe(run_log(program, preset, budget, **options))
        counts = model.follow(run.decisions).counts
        assert run.status in ("ok", "oom", "thrash")
        assert (counts["M"], counts["R"], counts["E"]) == (run.model_ops, run.remat_ops, run.forced)
        assert counts["D"] == run.other
        assert run.peak_bytes <= budget
        assert run.clock == 1 + run.total_cost
        if run.status == "ok":
            assert run.model_cost == base.compute
        seen.add(run.status)
    assert "ok" in seen


def test_what_is_evaluated_does_not_depend_on_where_the_pool_lies(programs):
    """Each counted pool has addresses of its own."""
    program = programs["lstm_unroll"]
    budget = int(simulate.baseline(program, "runtime", "bytes").peak_bytes * 0.9)
    evaluations = set()
    for _ in range(6):
        for _ in range(90):
            NativePool("counted").destroy()
        evaluations.add(run_log(program, "marginal", budget, dealloc="lazy").evaluations)
    assert len(evaluations) == 1


def test_views_are_names_and_cost_nothing():
    log = with_x()
    log.call("x", {"y": 1000}, time=7)
    log.call("y", {"v": "y"}, time=500)
    log.call("v", {"w": "v"}, time=500)
    log.release("y", "v")
    log.call("w", {"z": 1000}, time=11)
    run = run_log(log.program)
    assert (run.clock, run.model_cost, run.model_ops) == (19, 18, 2)
    assert run.peak_bytes == 3000
    assert run.decisions == "M1\nM4"  # y lives on under the name of a view


def test_a_view_beside_a_new_result_belongs_to_its_argument():
    log = with_x()
    log.call("x", {"v": "x", "y": 500, "u": "x"})
    log.release("x", "v")
    log.call("u y", {"z": 100})
    run = run_log(log.program)
    assert run.peak_bytes == run.end_bytes == 1600
    assert run.decisions == "M1\nM4"


def test_all_names_of_a_storage_see_a_mutation_and_it_is_repeated_in_place():
    log = with_x()
    log.call("x", {"y": 1500}, time=10)
    log.copy("other", "y")
    log.call("y", {"view": "y"})
    log.mutate("view x", 0, time=20)
    log.release("y", "view")
    log.call("other", {"z": 100}, time=5)
    log.call("x", {"big": 2000}, time=5)  # there is no room for it beside the storage
    log.release("big")
    log.call("other", {"end": 100}, time=1)
    run = run_log(log.program, "largest", 3100, outputs=False)
    # 3 is the version that the mutation made; the one before is no name's any more. With a copy
    # of it, the repetition would not fit.
    assert run.decisions == "M1 M3 M4 E3 M5 D5 R1 R3 M6".replace(" ", "\n")
    assert run.status == "ok"


def test_an_effect_reads_its_arguments_takes_its_time_and_makes_constants():
    log = with_x()
    log.call("x", {"y": 1000}, time=5)
    log.call("x", {"big": 2000}, time=5)
    log.release("big")
    log.effect("y", {"made": 500}, time=7, workspace=["+400"])
    log.call("x", {"z": 1000}, time=5)
    run = run_log(log.program, "lru", 3000, outputs=False)
    assert run.decisions == "M1 E1 M2 D2 R1 E1 M4".replace(" ", "\n")
    assert (run.clock, run.model_cost, run.model_ops) == (28, 22, 3)
    theirs = simulate.run_log(log.program, decisions=True)  # knows nothing but the constant
    assert theirs.decisions.split() == ["M0", "M1", "M2", "D2", "M3", "M4"]
    assert theirs.model_cost == 15


def test_what_is_overwritten_without_being_read_needs_no_older_content():
    for use, again in ((-1, "R3"), (0, "R1 R3")):
        log = with_x()
        log.call("x", {"y": 1000}, time=5)
        log.mutate("y x", use, time=5)
        log.call("y", {"z": 10}, time=1)
        log.call("x", {"big": 2500}, time=1)
        log.release("big")
        log.call("y", {"end": 10}, time=1)
        run = run_log(log.program, "largest", 3600, outputs=False)
        assert run.decisions == f"M1 M2 M3 E2 M4 D4 {again.replace('3', '2')} M5".replace(" ", "\n")


def test_a_constant_dies_with_its_last_name():
    log = with_x()
    log.copy("also", "x")
    log.release("x")
    log.constant("y", 10)
    log.release("also")
    run = run_log(log.program)
    assert run.end_bytes == 10
    assert run.peak_bytes == 1010


def test_copy_from_lets_go_of_what_the_name_stood_for():
    log = with_x()
    log.call("x", {"y": 500}, time=1)
    log.copy_from("x", "y")
    log.copy_from("x", "x")
    log.release("y")
    run = run_log(log.program)
    assert run.end_bytes == 500
    assert run_log(log.program, outputs=False).end_bytes == 500


def test_workspace_counts_while_the_operator_runs():
    log = with_x()
    log.call("x", {"y": 100, "z": 200}, workspace=["+5000", "=1", "-0", "+300"])
    assert run_log(log.program).peak_bytes == 6200
    assert run_log(log.program).end_bytes == 1300
    assert run_log(log.program, budget=6199).status == "oom"


def test_the_outputs_are_made_resident_only_if_they_are_wanted():
    log = with_x()
    log.call("x", {"y": 1000}, time=5)
    log.call("x", {"z": 1000}, time=5)
    log.release("x")
    assert run_log(log.program, "lru", 2000, outputs=False).decisions == "M1\nE1\nM2"
    assert run_log(log.program, "lru", 2000).status == "oom"


def test_a_run_that_recomputes_more_than_its_limit_thrashes():
    log = with_x(10)
    log.call("x", {"y": 1000}, time=100)
    for i in range(3):
        log.call("x", {f"big{i}": 1500}, time=1)
        log.release(f"big{i}")
        log.call("y", {f"z{i}": 100}, time=1)
        log.release(f"z{i}")
    options = {"budget": 2000, "heuristic": "largest", "outputs": False}
    run = run_log(log.program, **options)
    assert (run.status, run.remat_cost, run.remat_ops) == ("ok", 300, 3)
    assert run_log(log.program, **options, max_recompute=300).status == "ok"
    run = run_log(log.program, **options, max_recompute=299)
    assert (run.status, run.remat_cost) == ("thrash", 300)
    run = run_log(log.program, **options, max_recompute=0)
    assert (run.status, run.remat_cost, run.remat_ops) == ("thrash", 100, 1)


def test_what_never_fits_is_out_of_memory_and_the_counters_stand_there():
    log = with_x()
    log.call("x", {"y": 100}, time=5)
    log.call("x", {"z": 5000}, time=5)
    run = run_log(log.program, budget=2000)
    assert (run.status, run.model_ops, run.clock) == ("oom", 1, 6)
    assert run_log(log.program, budget=10, space="heap").status == "oom"  # less than a page
    log = with_x()
    assert run_log(log.program, budget=999).status == "oom"


def test_the_heap_rounds_and_counted_bytes_do_not():
    log = with_x(3001)
    log.call("x", {"y": 5001}, time=1)
    assert run_log(log.program).peak_bytes == 8002
    assert run_log(log.program, space="heap").peak_bytes == 3072 + 5120


def test_fragmentation_counts_on_the_heap_only():
    """Blocks of half a page: two free halves of different pages are not a page."""
    log = with_x(2560)
    for i in range(6):
        log.constant(f"c{i}", 2560)
    log.release("c0", "c2", "c4")
    log.constant("large", 3 * 2560)
    budget = 7 * 2560
    assert run_log(log.program, budget=budget).status == "ok"
    assert run_log(log.program, budget=budget, space="heap").status == "oom"


def test_bytes_and_heap_agree_where_nothing_is_lost_to_pages():
    """Sizes that are whole pages: the heap maps exactly what is counted."""
    log = with_x(8192)
    for i in range(30):
        log.call("x" if i == 0 else f"y{i - 1}", {f"y{i}": 4096 * (1 + i % 3)}, time=10 + i % 7)
    for i in reversed(range(30)):
        log.call(f"y{i} x", {f"g{i}": 4096}, time=9)
        log.release(f"y{i}", f"g{i}")
    base = simulate.baseline(log.program, "runtime")
    for ratio in (0.4, 0.6, 0.8):
        budget = int(base.peak_bytes * ratio) // 4096 * 4096
        runs = [run_log(log.program, budget=budget, space=space) for space in ("bytes", "heap")]
        assert runs[0].status == "ok"
        assert runs[0].decisions == runs[1].decisions


@pytest.mark.parametrize(
    ("semantics", "code", "message"),
    [
        ("both", [9], "number 0, instruction, is 9; allowed: 0 to 6"),
        ("both", [-1], "instruction, is -1"),
        ("both", [0, 0], "it ends before CONSTANT's size"),
        ("both", [0, 0, -5], "number 2, CONSTANT's size, is -5"),
        ("simrd", [0, 1, 8], "new name"),
        ("both", [1, -5, 0, 0], "time"),
        ("both", [1, 5, 1, 0, 0], "argument"),
        ("both", [1, 5, 0, 2**40], "results"),
        ("both", [5, 7], "number 1, RELEASE's name, is 7; allowed: none, as there is no name yet"),
        ("both", [5, -1], "RELEASE's name, is -1"),
        ("both", [0, 0, 8, 1, 1, 1, 0, 1, 1, 8], "CALL's number of results, is 1"),
        ("both", [0, 0, 8, 1, 1, 1, 0, 1, 1, 8, 1], "CALL's alias, is 1; allowed: -1 to 0"),
        ("both", [0, 0, 8, 2, 1, 1, 0, 1, 1], "index of an argument, is 1; allowed: -1 to 0"),
        ("both", [0, 0, 8, 2, 1, 1, 0, 1, -2], "index of an argument, is -2; allowed: -1 to 0"),
        ("both", [0, 0, 8, 3, 1, 1], "number 5, COPY's source, is 1; allowed: 0"),
        ("simrd", [0, 0, 8, 4, 1, 0], "destination"),
        ("runtime", [0, 0, 8, 5, 0, 1, 1, 1, 0, 1, 1, 8, -1], "a name that stands for something"),
        ("simrd", [1, 2**62, 0, 1, 0, 1, -1, 1, 2**62, 1, 0, 1, 1, 1, -1], "too large"),
    ],
)
def test_a_program_that_makes_no_sense_is_named(semantics, code, message):
    log = Log()
    log.program.code = array("q", code)
    for each in simulate.SEMANTICS if semantics == "both" else [semantics]:
        with pytest.raises(ValueError, match=message):
            simulate.run_log(log.program, "lru", 100, semantics=each)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dealloc": "never"}, "dealloc is 'never'; allowed: eager"),
        ({"space": "disk"}, "space is 'disk'; allowed: bytes, heap"),
        ({"semantics": "simrd", "space": "heap"}, "simrd counts bytes"),
        ({"newest_staleness": True}, "newest_staleness is True; allowed with runtime"),
        ({"heuristic": "DTR"}, "unknown heuristic 'DTR'; allowed: dtr-full"),
        ({"semantics": "simrd", "swap_bytes": 1}, "swap_bytes is 1; .* semantics 'simrd': 0"),
        ({"placement": "first-fit"}, "placement is 'first-fit'; allowed with space 'bytes'"),
        (
            {"space": "fixed", "placement": "low"},
            "placement is 'low'; allowed: best-fit, first-fit",
        ),
        *(
            ({"space": "fixed", "chunk_bytes": size}, f"chunk_bytes is {size}; allowed: 0")
            for size in (1, 4095, 6144)
        ),
        ({"semantics": "simrd", "heuristic": "dtr-eqclass", "dealloc": "banish"}, "component"),
        ({"semantics": "simrd", "sampling": "cbrt"}, "sampling is 'cbrt'; allowed: none, sqrt"),
        *(
            ({"semantics": "simrd", "least_size_share": share}, f"share is {share}.*allowed: 0 to")
            for share in (-0.1, 1.1, math.nan)
        ),
        ({"sampling": "sqrt"}, "sampling is 'sqrt'; allowed with runtime"),
        ({"least_size_share": 0.01}, "least_size_share is 0.01"),
    ],
)
def test_a_wrong_option_is_named(options, message):
    given = {"heuristic": "lru", "semantics": "runtime", **options}
    with pytest.raises(ValueError, match=message):
        simulate.run_log(with_x().program, **given)


@pytest.mark.parametrize("space", simulate.SPACES)
def test_constants_that_do_not_fit_are_swapped_at_their_price(space):
    log = Log()
    for i in range(4):
        log.constant(f"c{i}", 1 << 20)
    for i in range(8):
        log.call(f"c{i % 4}", {"y": 1 << 16}, time=1000)
    budget = 3 << 20
    options = {"space": space, "outputs": False}
    assert run_log(log.program, "marginal", budget, **options).status == "oom"
    swap = {"swap_bytes": 1 << 30, "swap_bytes_per_s": 1e9}
    run = run_log(log.program, "marginal", budget, **options, **swap)
    assert run.status == "ok"
    assert run.peak_bytes <= budget
    assert run.model_ops == 8
    assert run.swapped_out_bytes >= run.swapped_in_bytes > 0
    assert run.swap_cost == run.swapped_out_bytes + run.swapped_in_bytes
    costly = run_log(log.program, "marginal", budget, **options, **swap, max_recompute=1)
    assert costly.status == "thrash"


# ---- Fragmentation in simulations of logs whose every hole is known. Needs the native build ----


UNIT = 4096


def crowded():
    """Under 8 units: x, a, b, c, d lie in 7 of them side by side, and f needs two."""
    log = with_x(UNIT)
    for name, units in {"a": 1, "b": 2, "c": 1, "d": 2, "f": 2}.items():
        log.call("x", {name: units * UNIT}, time=10)
    return log.program


def measures(program, **options):
    options |= {"outputs": False, "measure": True, "decisions": True}
    run = simulate.run_log(program, "lru", 8 * UNIT, semantics="runtime", **options)
    assert run.status == "ok"
    return run


@pytest.mark.parametrize(("space", "chunk_units"), [("fixed", 1), ("fixed", 2), ("heap", 2)])
def test_a_hole_that_did_not_help_is_lost_at_every_eviction(space, chunk_units):
    """a goes, and leaves two holes of one unit; so b goes, too, and f takes a's place and half of
    b's. The unit at the end was free at both evictions and still is. At the second, two units were
    free and two were asked for. In chunks of two units neither hole is a chunk."""
    run = measures(crowded(), space=space, chunk_bytes=chunk_units * UNIT)
    assert [line for line in run.decisions.split("\n") if line[0] == "E"] == ["E1", "E2"]
    assert (run.forced_requests, run.forced_times, run.forced) == (1, 2, 2)
    assert (run.lost_bytes, run.most_lost_bytes) == (2 * UNIT, UNIT)
    assert run.left_bytes == 2 * UNIT
    assert (run.scattered, run.scattered_times, run.remaps) == (1, 1, 0)


def test_nothing_is_lost_where_memory_moves_or_has_no_places():
    """Two holes of a chunk each serve a request for two chunks, by a remapping; counted bytes need
    none."""
    for options, remaps in (({"space": "heap", "chunk_bytes": UNIT}, 1), ({"space": "bytes"}, 0)):
        run = measures(crowded(), **options)
        assert (run.forced_requests, run.forced_times, run.forced) == (1, 1, 1)
        assert (run.lost_bytes, run.left_bytes, run.scattered) == (0, 0, 0)
        assert run.remaps == remaps


def test_what_is_evicted_beyond_the_need_is_left_and_not_lost():
    """The only storage that can go is larger than what is asked for."""
    log = with_x(UNIT)
    log.call("x", {"a": 7 * UNIT}, time=10)
    log.call("x", {"f": 2 * UNIT}, time=10)
    run = measures(log.program, space="fixed", chunk_bytes=UNIT)
    assert (run.forced, run.lost_bytes, run.left_bytes) == (1, 0, 5 * UNIT)


@pytest.mark.parametrize(("placement", "requests"), [("best-fit", 1), ("two-ended", 0)])
def test_cheap_results_at_one_end_leave_one_hole_behind(placement, requests):
    """Dear and cheap ones take turns. When the cheap ones have died, half of the heap is free."""
    log = with_x(UNIT)
    for i in range(3):
        log.call("x", {f"dear{i}": UNIT}, time=1000)
        log.call("x", {f"cheap{i}": UNIT}, time=10)
    log.release("cheap0", "cheap1", "cheap2")
    log.call("x", {"f": 4 * UNIT}, time=10)
    run = measures(log.program, space="fixed", chunk_bytes=UNIT, placement=placement)
    assert run.forced_requests == requests
    assert (run.forced > 0) == (requests > 0)


def test_a_request_that_finds_no_place_at_all_is_not_counted():
    """Only the constants are left then, and they keep what is free apart."""
    log = Log()
    for name in "abcdefgh":
        log.constant(name, UNIT)
    log.release("b", "d")
    log.call("a", {"y": 2 * UNIT}, time=10)
    options = {"semantics": "runtime", "space": "fixed", "measure": True}
    run = simulate.run_log(log.program, "lru", 8 * UNIT, **options)
    assert (run.status, run.forced_times, run.lost_bytes) == ("oom", 0, 0)
