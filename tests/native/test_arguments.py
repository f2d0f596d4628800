"""Arguments of the engine, the simulator and the models that are not allowed."""

import math

import pytest
from native_pool import Invalid, WrongState, check, ffi, lib
from toy import WORDS, engine_options

from dtr_alloc import _lab
from dtr_alloc.simulation import lab

HEURISTICS = [
    ("heuristic.select", 3, "heuristic.select is 3; allowed: 0 to 2"),
    ("heuristic.cost", 6, "heuristic.cost is 6; allowed: 0 to 5"),
    ("heuristic.cost", -1, "heuristic.cost is -1; allowed: 0 to 5"),
    ("heuristic.size", 3, "heuristic.size is 3; allowed: 0 to 2"),
    ("heuristic.staleness_exponent", 1.5, "staleness_exponent is 1.5.*; allowed: 0 to 1"),
    ("heuristic.staleness_exponent", math.nan, "staleness_exponent is .*nan; allowed"),
    ("heuristic.recompute_factor", 0.5, "recompute_factor is 0.5.*; allowed: 1 and more"),
    ("heuristic.recompute_factor", math.inf, "recompute_factor is inf; allowed"),
]


def set_field(struct, path, value):
    *parts, last = path.split(".")
    for part in parts:
        struct = getattr(struct, part)
    setattr(struct, last, value)


class TestArguments:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            *HEURISTICS,
            ("dealloc", ffi.new("char[]", b"never"), "allowed: eager, banish, ignore, lazy, auto"),
            ("history_ops", 0, "history_ops is 0; allowed: 1 and more"),
            ("room", 3, "room is 3; allowed: 0 to 2"),
            ("moving", 2, "moving is 2"),
            ("move_bytes_per_s", -1.0, "move_bytes_per_s is -1"),
            ("replay_ns", -1, "replay_ns is -1; allowed: 0 to 1099511627776"),
        ],
    )
    def test_an_option_that_is_not_allowed_is_named(self, toy, field, value, message):
        options, out = engine_options("dtr-eqclass"), ffi.new("dtr_engine **")
        set_field(options, field, value)
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_engine_configure(toy.engine, options))
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_engine_create(options, out))
        assert out[0] == ffi.NULL

    def test_a_device_has_one_pool(self, toy):
        with pytest.raises(WrongState, match="device type 0, index -1 has a pool already"):
            check(lib.dtr_engine_add_pool(toy.engine, 0, -1, toy.pool.handle))

    def test_an_engine_has_one_framework(self, toy):
        other = ffi.new("uint32_t[64]", [_lab.lib.dtr_toy_table().abi_version])
        with pytest.raises(WrongState, match="connected"):
            check(lib.dtr_engine_connect(toy.engine, other))


RESULT = ffi.new("dtr_simulation_result *")
TEXT = ffi.new("const char **")
# 0, x = f(); 1, y = g(x); x and y are released.
PROGRAM = [1, 5, 0, 1, 0, 4096, -1, 1, 5, 1, 0, 1, 1, 4096, -1, 5, 0, 5, 1]


def simulation_options(options):
    options.heuristic = {"cost": lib.DTR_COST_LOCAL, "size": 1, "recompute_factor": 1}
    options.budget_bytes = 8192
    options.max_recompute = -1


def run_on_simrd(field, value):
    options = _lab.ffi.new("dtr_lab_options *")
    simulation_options(options.common)
    set_field(options, field, value)
    lab.check(_lab.lib.dtr_lab_simrd(options, PROGRAM, len(PROGRAM), RESULT, TEXT))


def run_on_engine(field=None, value=None, workspace=ffi.NULL, at=ffi.NULL):
    options = ffi.new("dtr_runtime_options *")
    simulation_options(options.common)
    options.history_ops = 100
    if field:
        set_field(options, field, value)
    of_program = (PROGRAM, len(PROGRAM), workspace, at, 2 if at else 0)
    return lib.dtr_simulate_runtime(options, *of_program, RESULT, ffi.NULL)


class TestSimulations:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            *HEURISTICS,
            ("max_recompute", -2, "max_recompute is -2; allowed: -1 to"),
            ("dealloc", 5, "dealloc is 5; allowed: 0"),
        ],
    )
    def test_an_option_that_is_not_allowed_is_named_in_both_semantics(self, field, value, message):
        with pytest.raises(ValueError, match=message):
            run_on_simrd(f"common.{field}", value)
        with pytest.raises(Invalid, match=message):
            check(run_on_engine(f"common.{field}", value))

    @pytest.mark.parametrize(
        ("workspace", "at", "message"),
        [
            ([0, 100, 1, 0], [0, 3, 4], "operator 0 has 0 to 3; allowed: whole pairs"),
            ([0, 100, 1, 0], [0, 4, 2], "operator 1 has 4 to 2; allowed: whole pairs, from 4"),
            ([0, 100, 1, 0], [-2, 0, 2], "operator 0 has -2 to 0; allowed"),
            ([0, 100, 1, 0], [0, 2, 4], "operator 1 has the entry 1, 0; allowed"),
            ([0, 100, 1, 0, 1, 0], [0, 6, 6], "operator 0 has the entry 1, 0; allowed"),
            ([0, -1], [0, 2, 2], "operator 0 has the entry 0, -1; allowed"),
            ([2, 1], [0, 2, 2], "operator 0 has the entry 2, 1; allowed"),
            ([3, 0], [0, 2, 2], "operator 0 has the entry 3, 0; allowed"),
        ],
    )
    def test_a_workspace_that_is_malformed_is_refused(self, workspace, at, message):
        with pytest.raises(Invalid, match=message):
            check(
                run_on_engine(
                    workspace=ffi.new("int64_t[]", workspace), at=ffi.new("int64_t[]", at)
                )
            )

    def test_a_score_that_fails_fails_the_run(self):
        @ffi.callback("dtr_score_fn")
        def score(context, candidates, count, scores, message, capacity):
            return 1

        options = ffi.new("dtr_runtime_options *")
        simulation_options(options.common)
        options.common.heuristic.select = lib.DTR_SELECT_CALLBACK
        options.common.budget_bytes = 4096
        options.history_ops, options.score = 100, score
        two = [1, 5, 0, 1, 0, 4096, -1, 1, 5, 0, 1, 1, 4096, -1]  # the second needs room
        of_program = (two, len(two), ffi.NULL, ffi.NULL, 0)
        with pytest.raises(WrongState):
            check(lib.dtr_simulate_runtime(options, *of_program, RESULT, ffi.NULL))

    @pytest.mark.parametrize("seconds", [-1, math.nan])
    def test_a_search_has_no_negative_time(self, seconds):
        options = _lab.ffi.new("dtr_lab_search_options *", {"seconds": seconds})
        found, pairs = _lab.ffi.new("dtr_lab_search_result *"), ffi.new("const int64_t **")
        with pytest.raises(ValueError, match=r"seconds is .*; allowed: 0"):
            lab.check(_lab.lib.dtr_lab_search(options, PROGRAM, len(PROGRAM), found, pairs))

    @pytest.mark.parametrize("missing", range(2, 5))
    def test_a_run_needs_its_program_and_somewhere_for_what_it_gives(self, missing):
        options = _lab.ffi.new("dtr_lab_options *")
        simulation_options(options.common)
        given = [options, len(PROGRAM), PROGRAM, RESULT, TEXT]
        given[missing] = ffi.NULL
        options, numbers, program, result, out = given
        assert _lab.lib.dtr_lab_simrd(options, program, numbers, result, out) == lib.DTR_INVALID
        assert b"is NULL; allowed" in ffi.string(_lab.lib.dtr_lab_error())


class TestModels:
    @pytest.mark.parametrize(
        ("model", "field", "value"),
        [
            (6, "places", 0),
            (lib.DTR_FRAGMENT_FIRST_FIT, "places", 2),
            (lib.DTR_FRAGMENT_OURS, "fixed", 2),
            (lib.DTR_FRAGMENT_OURS, "placement", 9),
            (lib.DTR_FRAGMENT_PYTORCH, "expandable", 2),
            (lib.DTR_FRAGMENT_PYTORCH, "budget_is_fraction", -1),
            (lib.DTR_FRAGMENT_PYTORCH, "ties_by_address", 2),
        ],
    )
    def test_an_option_that_is_not_allowed_is_named(self, model, field, value):
        events, out = ffi.new("dtr_fragment_events **"), ffi.new("dtr_fragment_run **")
        result = ffi.new("dtr_fragment_result *")
        check(lib.dtr_fragment_load([0], [1], [64], [0], 1, events))
        options = ffi.new("dtr_fragment_options *", {"model": model, "budget_bytes": 1 << 30})
        setattr(options, field, value)
        named = "model is 6" if model == 6 else f"{field} is {value}"
        with pytest.raises(Invalid, match=rf"{named}.*; allowed"):
            check(lib.dtr_fragment_run_model(events[0], options, result, out))
        check(lib.dtr_fragment_unload(events[0]))

    def test_a_walk_knows_the_kinds_of_events(self):
        columns = [ffi.new("uint8_t[]", [99]), ffi.new("uint64_t[]", 1), ffi.new("uint64_t[]", 1)]
        options = ffi.new("dtr_fragment_walk_options *", {"count": 1})
        made = ffi.new("dtr_fragment_heap *"), ffi.new("dtr_fragment_walk **")
        options.kind, options.address, options.size_bytes = columns
        with pytest.raises(Invalid, match=r"event 0 .*its kind is unknown"):
            check(lib.dtr_fragment_walk_run(options, *made))
        options.walled = 2
        with pytest.raises(Invalid, match="walled is 2; allowed: 0 to 1"):
            check(lib.dtr_fragment_walk_run(options, *made))


def test_a_range_to_avoid_ends_behind_its_beginning(toy):
    x = toy.unseen(WORDS)
    low, high = ffi.cast("void *", 4096), ffi.cast("void *", 8192)
    with pytest.raises(Invalid, match="ends before it begins"):
        check(-lib.dtr_engine_relocate(toy.engine, x.handle, high, low))
    out = ffi.new("void **")
    with pytest.raises(Invalid, match="ends before it begins"):
        check(lib.dtr_pool_try_outside(toy.pool.handle, 4096, 0, high, low, 0, out))
    with pytest.raises(Invalid, match="packed is 2; allowed: 0 to 1"):
        check(lib.dtr_pool_try_outside(toy.pool.handle, 4096, 0, low, high, 2, out))


def test_what_is_switched_on_is_0_or_1(toy):
    with pytest.raises(Invalid, match="is 2; allowed: 0 to 1"):
        check(lib.dtr_decisions_set(toy.engine, 2))
