"""Functions that users have recorded as one operator."""

import ctypes
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from harness import assert_equal, checked_session, evicted
from native_fixtures import on_threads
from torch import Tensor

import dtr_alloc


def floats(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor, as an extension's kernel sees it."""
    memory = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory)


def sine(x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    floats(result)[:] = np.sin(floats(x))
    return result


def double(x: Tensor) -> None:
    floats(x)[:] *= 2


def test_it_may_write_into_storages_whose_addresses_were_given_away():
    def written_over(x: Tensor) -> Tensor:
        x.untyped_storage().copy_(x.untyped_storage())  # as Triton's interpreter does
        return x * 2

    with checked_session():
        x = torch.linspace(-1, 1, 4096) * 3
        x.data_ptr()
        y = dtr_alloc.run_as_operator(written_over, x)
        assert torch.equal(evicted(y), x * 2)


def test_a_decorated_function_runs_as_an_operator_at_each_call():
    calls = 0

    @dtr_alloc.run_as_operator
    def scaled_sine(x: Tensor, *, factor: float = 1.0) -> Tensor:
        nonlocal calls
        calls += 1
        return sine(x) * factor

    @dtr_alloc.run_as_operator(mutated=["out"], name="doubling")
    def doubling(factor: int, out: Tensor) -> None:
        for _ in range(factor // 2):
            double(out)

    assert scaled_sine.__name__ == "scaled_sine"
    with checked_session():
        x = torch.linspace(-1, 1, 4096) * 3
        y = scaled_sine(x, factor=2.0)
        assert torch.allclose(evicted(y), 2 * torch.sin(x))
        assert calls == 2
        expected = (x * 4).clone()
        doubling(out=x, factor=4)
        assert torch.equal(evicted(x), expected)


def test_tensors_in_lists_and_dictionaries_are_arguments_and_results():
    @dtr_alloc.run_as_operator(mutated=["overwritten"])
    def twice(added: list[Tensor], overwritten: dict[str, Tensor]) -> dict[str, Any]:
        double(overwritten["x"])
        return {"sum": added[0] + added[1], "of": [added[0] * 3, len(added)]}

    with checked_session():
        a, b, x = (torch.linspace(-1, 1, 4096) * factor for factor in (1, 2, 3))
        made = twice([a, b], {"x": x})
        sum_, product, doubled = (a + b).clone(), (a * 3).clone(), (torch.linspace(-1, 1, 4096) * 6)
        a.add_(100)
        assert made["of"][1] == 2
        assert torch.equal(evicted(made["sum"]), sum_)
        assert torch.equal(evicted(made["of"][0]), product)
        assert torch.equal(evicted(x), doubled)


def test_what_is_wrong_is_named():
    x = torch.ones(16)
    with pytest.raises(TypeError, match="mutated has 3, which is no tensor of its arguments"):
        dtr_alloc.run_as_operator(sine, x, mutated=[3])
    with pytest.raises(TypeError, match="mutated has 'y', which is no tensor of its arguments"):
        dtr_alloc.run_as_operator(sine, mutated=["y"])(x)
    with pytest.raises(TypeError, match="mutated has 1, which is no tensor of its arguments"):
        dtr_alloc.run_as_operator(lambda x, numbers: x, x, [1, 2], mutated=[1])
    with pytest.raises(TypeError, match="takes any arguments"):
        dtr_alloc.run_as_operator(lambda *tensors: tensors[0])
    with pytest.raises(RuntimeError, match="the argument x wants a gradient"):
        dtr_alloc.run_as_operator(sine)(torch.ones(16, requires_grad=True))
    with pytest.raises(RuntimeError, match="the argument 0 wants a gradient"):
        dtr_alloc.run_as_operator(lambda xs: xs[0], [torch.ones(16, requires_grad=True)])


def test_inside_of_another_it_is_just_called():
    @dtr_alloc.run_as_operator
    def outer(x: Tensor) -> Tensor:
        return dtr_alloc.run_as_operator(sine, x) + 1

    with checked_session():
        x = torch.linspace(-1, 1, 4096) * 3
        assert torch.allclose(evicted(outer(x)), torch.sin(x) + 1, atol=1e-6)


def test_without_a_budget_it_is_just_called():
    x = torch.linspace(-1, 1, 4096)
    assert torch.equal(dtr_alloc.run_as_operator(sine, x), sine(x))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_it_raises_passes_and_the_session_goes_on(error):
    """Also where it is its argument that cannot be computed again, and it did not begin."""
    calls = 0

    def fails_later(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise error("of the kernel")
        return sine(x)

    with checked_session():
        x = torch.linspace(-1, 1, 4096) * 3
        y = evicted(dtr_alloc.run_as_operator(fails_later, x))
        forgotten = []
        for fails, argument in ((lambda x: fails_later(x), x), (lambda x: sine(x), y)):
            forgotten.append(weakref.ref(fails))
            with pytest.raises(error, match="of the kernel"):
                dtr_alloc.run_as_operator(fails, argument)
        del fails, argument, y
        assert torch.allclose(evicted(dtr_alloc.run_as_operator(sine, x)), torch.sin(x))
        gc.collect()
        assert [function for function in forgotten if function() is not None] == []


Table = Callable[[Tensor, Tensor], Tensor]

READINGS: dict[str, Table] = {
    "an operator": lambda x, table: x * table,
    "its address": lambda x, table: x * floats(table)[1].item(),
    "an array": lambda x, table: x * float(table.numpy()[1]),
    "a list": lambda x, table: x * table.tolist()[1],
    "a part of it": lambda x, table: x * table[1:2],
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("as_custom", [False, True], ids=["function", "custom operator"])
def test_a_table_that_is_no_argument_is_there_when_it_runs_again(reading, as_custom):
    base = torch.linspace(1, 2, 4096)
    expected = READINGS[reading](base, base * 3).clone()
    table = base

    def scaled(x: Tensor) -> Tensor:
        return READINGS[reading](x, table)

    operator: Callable[[Tensor], Tensor] = dtr_alloc.run_as_operator(scaled)
    if as_custom:
        name = f"dtr_tables::{reading.replace(' ', '_')}"
        operator = torch.library.custom_op(name, mutates_args=())(scaled)
    with checked_session():
        table = base * 3
        y = operator(base + 0)
        for _ in range(2):
            dtr_alloc.evict(table)  # an array holds its address for good
            assert torch.equal(evicted(y), expected)
    table = base  # the operator stays, and with it what it holds


def test_a_table_that_is_evicted_comes_back_for_the_first_call():
    base = torch.linspace(1, 2, 4096)
    with checked_session():
        table = base * 3
        evicted(table)
        y = dtr_alloc.run_as_operator(lambda x: x * table, base + 0)
        assert torch.equal(evicted(y), base * (base * 3))


def test_tables_that_are_results_of_such_functions_need_no_depth():
    """Each reads the one before, which is none of its arguments."""
    steps = 3000
    with checked_session():
        x = torch.ones(256)
        hidden = [torch.zeros(256) + 1]
        for step in range(steps):
            hidden.append(dtr_alloc.run_as_operator(lambda x, at=step: x + hidden[at], x))
        for each in hidden[1:]:
            evicted(each)
        assert hidden[-1][0].item() == steps + 1


def test_what_was_computed_from_a_table_does_not_change_when_that_is_overwritten():
    with checked_session():
        table = torch.ones(4096) * 3
        y = dtr_alloc.run_as_operator(lambda x: x * table, torch.ones(4096) + 1)
        evicted(y)
        table.add_(1)
        assert y[0].item() == 6
        assert table[0].item() == 4


def test_reading_what_depends_on_what_it_overwrites_is_refused_by_name():
    with checked_session():
        x = torch.ones(4096) + 1
        table = x * 3
        evicted(table)

        def overwrite(x: Tensor) -> None:
            x.mul_(2)
            x.add_(table)

        with pytest.raises(dtr_alloc.StateError, match="while an operator overwrites it"):
            dtr_alloc.run_as_operator(overwrite, x, mutated=[0])


@pytest.mark.parametrize("share", [0.8, 0.7, 0.6])
def test_a_net_that_reads_tables_trains_to_the_same_bits(share):
    """In both passes, on the threads of autograd and on two of the job's."""

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor, gates: list[Tensor]) -> Tensor:  # type: ignore[override]
            context.gates = gates
            context.save_for_backward(x)
            result: Tensor = dtr_alloc.run_as_operator(lambda x: sine(x) * gates[1], x)
            return result

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Any:  # type: ignore[override]
            (x,) = context.saved_tensors
            return dtr_alloc.run_as_operator(
                lambda x, gradient: gradient * x.cos() * context.gates[1], x, gradient
            ), None

    def train(seed: int, out: dict[int, list[Tensor]]) -> None:
        generator = torch.Generator().manual_seed(seed)
        weights = [
            (torch.rand(64, 64, generator=generator) - 0.5).requires_grad_() for _ in range(6)
        ]
        for _ in range(3):
            x = torch.rand(256, 64, generator=generator)
            gates = [x.sin() * step for step in range(1, 4)]
            for weight in weights:
                x = Gated.apply(x @ weight, gates)
            x.square().mean().backward()
            with torch.no_grad():
                for weight in weights:
                    weight -= weight.grad
                    weight.grad = None
        out[seed] = [weight.detach().clone() for weight in weights]

    def both() -> dict[int, list[Tensor]]:
        out: dict[int, list[Tensor]] = {}
        on_threads(partial(train, 1, out), partial(train, 2, out))
        return out

    expected = both()
    with checked_session():
        dtr_alloc.reset_peak_stats()
        train(1, {})
        peak_of_one = dtr_alloc.stats()["peak_allocated_bytes"]
    gc.collect()
    with checked_session(int(peak_of_one * share), thrash="off"):
        got = both()
        assert dtr_alloc.stats()["rematerializations"] > 0
    for seed, weights in expected.items():
        assert_equal(weights, got[seed])
