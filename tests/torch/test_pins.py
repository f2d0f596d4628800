"""Pins by hand stay with the tensor that they were asked for with."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from harness import checked_session, evicted
from torch import Tensor

import dtr_alloc

SIZE = 256


def made(factor: float) -> Tensor:
    return torch.arange(SIZE) * factor


GIVES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "set_ to a tensor": lambda x, y: x.set_(y),
    "set_ to a storage": lambda x, y: x.set_(y.untyped_storage(), 0, y.shape),
    "data": lambda x, y: setattr(x, "data", y),
}


@pytest.mark.parametrize("way", GIVES)
def test_a_pin_follows_its_tensor_to_other_memory(way):
    with checked_session():
        x, y = made(2.0), made(3.0)
        old = x.view(SIZE)
        dtr_alloc.pin(x)
        dtr_alloc.pin(x)
        GIVES[way](x, y)
        dtr_alloc.check_invariants()
        evicted(old)
        for _ in range(2):
            assert not dtr_alloc.evict(y)
            dtr_alloc.unpin(x)
        evicted(x)
        with pytest.raises(dtr_alloc.StateError, match="not pinned"):
            dtr_alloc.unpin(x)
        assert torch.equal(y, made(3.0))
        assert torch.equal(old, made(2.0))


def test_pins_of_aliases_stay_with_the_old_memory():
    with checked_session():
        x, y = made(2.0), made(3.0)
        alias = x.view(SIZE)
        dtr_alloc.pin(x)
        dtr_alloc.pin(alias)
        x.set_(y)
        assert not dtr_alloc.evict(alias)
        dtr_alloc.unpin(alias)
        evicted(alias)
        assert not dtr_alloc.evict(x)
        dtr_alloc.unpin(x)
        evicted(x)


def test_a_pin_that_an_alias_took_back_does_not_follow():
    with checked_session():
        x, y = made(2.0), made(3.0)
        dtr_alloc.pin(x)
        dtr_alloc.unpin(x.view(SIZE))
        x.set_(y)
        evicted(x)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_pin_survives_a_storage_that_is_resized():
    with checked_session():
        x = made(2.0)
        dtr_alloc.pin(x)
        torch.add(made(1.0), torch.zeros(2, SIZE), out=x)
        assert not dtr_alloc.evict(x)
        dtr_alloc.check_invariants()
        dtr_alloc.unpin(x)
        evicted(x)


def test_a_pin_taken_back_where_nobody_saw_that_the_tensor_got_other_memory():
    with checked_session():
        x, y = made(2.0), made(3.0)
        old = x.view(SIZE)
        dtr_alloc.pin(x)
        torch.ops.aten.set_.source_Tensor(x, y)
        dtr_alloc.unpin(x)
        evicted(old)
        evicted(y)


def outside() -> Tensor:
    return torch.from_numpy(np.ones(SIZE))


UNMANAGED: dict[str, Callable[[], Tensor]] = {
    "from numpy": outside,
    "empty": lambda: torch.empty(0),
    "meta": lambda: torch.empty(SIZE, device="meta"),
    "shared": lambda: torch.ones(SIZE).share_memory_(),
    "mkldnn": lambda: torch.ones(SIZE).to_mkldnn(),
}


@pytest.mark.parametrize("name", UNMANAGED)
def test_what_was_pinned_can_be_unpinned(name):
    with checked_session():
        x = UNMANAGED[name]()
        dtr_alloc.pin(x)
        dtr_alloc.check_invariants()
        dtr_alloc.unpin(x)


def test_memory_made_before_the_session_is_pinned_within_the_rules():
    x = made(2.0)
    with checked_session():
        y = x * 2
        dtr_alloc.pin(x)
        dtr_alloc.check_invariants()
        evicted(y)
        dtr_alloc.check_invariants()
        dtr_alloc.unpin(x)
        assert torch.equal(y, made(4.0))


def test_pins_of_what_died_are_forgotten():
    with checked_session():
        for _ in range(1000):
            dtr_alloc.pin(made(2.0))
            dtr_alloc.pin(outside())
        x = made(2.0)
        with pytest.raises(dtr_alloc.StateError, match="not pinned"):
            dtr_alloc.unpin(x)
        evicted(x)


def test_pins_end_with_the_session():
    with checked_session():
        x = made(2.0)
        dtr_alloc.pin(x)
    with checked_session(), pytest.raises(dtr_alloc.StateError, match="not pinned"):
        dtr_alloc.unpin(x)
