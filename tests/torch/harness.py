"""What the torch-side suites share: one thread, clean sessions, comparison of bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dtr_alloc
from bench.models import differences

MIB = 2**20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs the test on one thread, so that splits by timing cannot hide a wrong recomputation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def checked_session(
    budget: int | str = "unlimited", debug: str = "off", **settings: Any
) -> Iterator[None]:
    """A session on CPU tensors whose structures are verified before it ends."""
    with dtr_alloc.session(budget=budget, device="cpu", debug=debug, **settings):
        yield
        dtr_alloc.check_invariants()


def assert_same_bits(expected: dict[str, Tensor], got: dict[str, Tensor], where: str) -> None:
    """Fails with the names of the tensors that differ."""
    wrong = differences(expected, got)
    assert not wrong, f"{where}: {len(wrong)} of {len(expected)} differ: {wrong[:8]}"


def evicted(tensor: Tensor) -> Tensor:
    """The tensor after its storage has lost its content."""
    assert dtr_alloc.evict(tensor), "a result of an operator can be evicted"
    assert not dtr_alloc.is_resident(tensor)
    return tensor


def fix_costs(path: Path) -> None:
    """Gives the signatures that were met costs that are the same on every machine."""
    costs = json.loads(path.read_text())
    for entry in costs["entries"]:
        entry["cost_ns"] = 10_000 + int(entry["signature"], 16) % 90_000
    path.write_text(json.dumps(costs))
