"""Arguments of the engine and of the simulated framework that are not allowed.

Needs the native build. The fixture checks at the end that nothing was left behind.
"""

import math

import pytest
from native_pool import Invalid, WrongState, check, ffi, lib
from toy import INT64, WORDS, engine_options


class TestArguments:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("select", 3, "heuristic.select is 3; allowed: 0 to 2"),
            ("cost", 6, "heuristic.cost is 6; allowed: 0 to 5"),
            ("cost", -1, "heuristic.cost is -1; allowed: 0 to 5"),
            ("size", 3, "heuristic.size is 3; allowed: 0 to 2"),
            ("staleness_exponent", 1.5, "heuristic.staleness_exponent is 1.5.*; allowed: 0 to 1"),
            ("staleness_exponent", math.nan, "heuristic.staleness_exponent is .*nan; allowed"),
            ("recompute_factor", 0.5, "heuristic.recompute_factor is 0.5.*; allowed: 1 and more"),
            ("recompute_factor", math.inf, "heuristic.recompute_factor is inf; allowed"),
        ],
    )
    def test_a_part_of_a_heuristic_that_does_not_exist_is_named(self, field, value, message):
        out = ffi.new("dtr_engine **")
        options = engine_options("dtr-eqclass")
        setattr(options.heuristic, field, value)
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_engine_create(options, out))
        assert out[0] == ffi.NULL

    def test_a_deallocation_policy_that_does_not_exist_is_named_with_what_is_allowed(self):
        options = engine_options("dtr-eqclass")
        name = ffi.new("char[]", b"never")
        options.dealloc = name
        out = ffi.new("dtr_engine **")
        with pytest.raises(Invalid, match=r"allowed: eager, banish, ignore, lazy"):
            check(lib.dtr_engine_create(options, out))

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("history_ops", 0, "history_ops is 0; allowed: 1 and more"),
        ],
    )
    def test_an_option_that_is_not_allowed_is_refused(self, make_toy, option, value, message):
        toy = make_toy()
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_engine_configure(toy.engine, engine_options("lru", **{option: value})))

    def test_a_device_has_one_pool(self, make_toy):
        toy = make_toy()
        with pytest.raises(WrongState, match="device type 0, index -1 has a pool already"):
            check(lib.dtr_engine_add_pool(toy.engine, 0, -1, toy.pool.handle))

    def test_an_engine_has_one_framework(self, make_toy):
        toy = make_toy()
        out = ffi.new("dtr_sim **")
        with pytest.raises(WrongState, match="connected to a simulated framework already"):
            check(lib.dtr_sim_create(toy.engine, out))
        assert out[0] == ffi.NULL

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((7, 0, 0, INT64, 1, [4]), "device_type 7, device_index 0 has no pool"),
            ((0, -1, 0, 99, 1, [4]), "scalar_type is 99; allowed"),
            ((0, -1, 0, INT64, -1, [4]), "ndim is -1; allowed"),
            ((0, -1, 0, INT64, 1, [-4]), r"sizes\[0\] is -4; allowed"),
            ((0, -1, 0, INT64, 1, None), "sizes is NULL; allowed"),
        ],
    )
    def test_a_tensor_that_cannot_be_made_names_the_argument(self, make_toy, arguments, message):
        toy = make_toy()
        *numbers, sizes = arguments
        sizes = ffi.NULL if sizes is None else ffi.new("int64_t[]", sizes)
        out = ffi.new("dtr_sim_tensor **")
        with pytest.raises(Invalid, match=message):
            check(lib.dtr_sim_make_tensor(toy.sim, *numbers, sizes, ffi.NULL, out))
        assert out[0] == ffi.NULL

    def test_a_view_stays_inside_its_storage(self, make_toy):
        toy = make_toy()
        x = toy.unseen(WORDS)
        toy.view(x, 1, WORDS - 1).release()
        with pytest.raises(Invalid, match=f"reach element {WORDS} of 8 bytes; allowed"):
            toy.view(x, 1, WORDS)
        x.release()

    def test_a_tensor_of_two_dimensions_keeps_its_order(self, make_toy):
        toy = make_toy()
        sizes, strides = ffi.new("int64_t[]", [16, 32]), ffi.new("int64_t[]", [1, 16])
        out = ffi.new("dtr_sim_tensor **")
        check(lib.dtr_sim_make_tensor(toy.sim, 0, -1, 0, INT64, 2, sizes, strides, out))
        assert lib.dtr_sim_storage_bytes(lib.dtr_sim_handle(out[0])) == 16 * 32 * 8
        assert lib.dtr_scalar_type_of(toy.engine, out[0]) == INT64
        assert lib.dtr_device_type_of(toy.engine, out[0]) == 0
        assert lib.dtr_handle_of(toy.engine, out[0]) == lib.dtr_sim_handle(out[0])
        lib.dtr_sim_release_tensor(out[0])
