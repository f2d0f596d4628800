"""Fragmentation in simulations of logs whose every hole is known. Needs the native build."""

import pytest

from bench.studies.log import Log
from dtr_alloc.simulation import simulate

UNIT = 4096


def crowded():
    """Under 8 units: x, a, b, c, d lie in 7 of them side by side, and f needs two."""
    log = Log()
    log.constant("x", UNIT)
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
    log = Log()
    log.constant("x", UNIT)
    log.call("x", {"a": 7 * UNIT}, time=10)
    log.call("x", {"f": 2 * UNIT}, time=10)
    run = measures(log.program, space="fixed", chunk_bytes=UNIT)
    assert (run.forced, run.lost_bytes, run.left_bytes) == (1, 0, 5 * UNIT)


@pytest.mark.parametrize(("placement", "requests"), [("best-fit", 1), ("two-ended", 0)])
def test_cheap_results_at_one_end_leave_one_hole_behind(placement, requests):
    """Dear and cheap ones take turns. When the cheap ones have died, half of the heap is free."""
    log = Log()
    log.constant("x", UNIT)
    for i in range(3):
        log.call("x", {f"dear{i}": UNIT}, time=1000)
        log.call("x", {f"cheap{i}": UNIT}, time=10)
    log.release("cheap0", "cheap1", "cheap2")
    log.call("x", {"f": 4 * UNIT}, time=10)
    run = measures(log.program, space="fixed", chunk_bytes=UNIT, placement=placement)
    assert run.forced_requests == requests
    assert (run.forced > 0) == (requests > 0)


def test_a_placement_is_for_a_heap():
    with pytest.raises(ValueError, match="placement is 'first-fit'; allowed with space 'bytes'"):
        measures(crowded(), placement="first-fit")
    with pytest.raises(ValueError, match="placement is 'low'; allowed: best-fit, first-fit"):
        measures(crowded(), space="fixed", chunk_bytes=UNIT, placement="low")


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


@pytest.mark.parametrize("chunk_bytes", [1, 4095, 6144])
def test_a_chunk_that_cannot_be_mapped_is_an_error(chunk_bytes):
    with pytest.raises(ValueError, match=f"chunk_bytes is {chunk_bytes}; allowed: 0"):
        measures(crowded(), space="fixed", chunk_bytes=chunk_bytes)
