"""Operators that only look at tensors (item(), equal()) go past the engine where these are too
small to be evicted, and only there."""

from __future__ import annotations

import torch
from harness import checked_session

import dtr_alloc


def clock() -> float:
    return dtr_alloc.stats().clock_seconds


def test_a_look_at_a_tiny_tensor_costs_the_engine_nothing() -> None:
    with checked_session():
        x = torch.full((16,), 3.0)
        assert not dtr_alloc.evict(x)
        before = clock()
        assert x[5].item() == 3.0
        assert torch.equal(x, x[:])
        assert clock() == before


def test_a_look_at_a_part_of_an_evicted_tensor_brings_it_back() -> None:
    with checked_session():
        x = torch.linspace(0, 1, 4096) * 3
        first, last = x[0], x[-1]
        assert dtr_alloc.evict(x)
        before = clock()
        assert last.item() == 3.0
        assert dtr_alloc.is_resident(first)
        assert clock() > before


def test_a_look_at_memory_of_others_is_recorded() -> None:
    with checked_session():
        x = torch.frombuffer(bytearray(8), dtype=torch.int64)
        before = clock()
        assert x.item() == 0
        assert clock() > before
