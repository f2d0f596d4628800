"""Storages that move in real jobs: the same bits."""

from typing import Any

import pytest
import torch
from harness import assert_same_bits, told_by
from native_pool import move_some
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from bench.measure import profile, train_plain
from bench.models import JOBS
from dtr_alloc.torch import api

STEPS = 2


class Mover(TorchDispatchMode):
    """Moves a storage, drawn at random, before each operator. Entered before the session it does so
    while an operator is in flight, within the session before the recorder sees one."""

    draws = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        active = api._runtime
        if active is not None:
            Mover.draws += 1
            for pool in active.pools.handles:
                move_some(active.engine, pool, Mover.draws, 1)
        return func(*args, **(kwargs or {}))


def train_moving(name: str) -> list[int]:
    """Trains under a budget that evicts; returns how many storages were moved and evicted."""
    shape, _ = profile(name, STEPS)
    expected = train_plain(name, STEPS)
    with Mover(), dtr_alloc.session(budget=shape.budget(0.7), device="cpu"):
        with Mover():
            job = JOBS[name]()
            for i in range(STEPS):
                job.step(i)
                dtr_alloc.check_invariants()
        stats = dtr_alloc.stats()
    assert_same_bits(expected, job.state(), f"{name} while its storages move")
    return [stats["moves"], stats["evictions"]]


def train_all_moving(*names: str) -> list[list[int]]:
    return [train_moving(name) for name in names]


def test_jobs_keep_their_bits_while_storages_move_at_every_operator() -> None:
    """Views, saved tensors, statistics, changes in place, recomputed segments. What is freed is
    NaN: whoever still used an old address would show."""
    jobs = ("transformer", "resnet", "lstm_module", "inplace", "checkpoint")
    found = told_by(train_all_moving, *jobs, debug="poison", pool="chunk:64KiB")
    assert len(found) == len(jobs)
    for moves, evictions in found:
        assert moves > 100
        assert evictions > 0


def test_compacting_makes_one_piece_of_what_is_free() -> None:
    """Between whole chunks that were kept, which keep their content, views included."""
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        size = dtr_alloc.stats()["chunk_bytes"] // 4
        tensors = [torch.arange(size).mul(i) for i in range(12)]
        kept = tensors[1::2]
        views = [tensor.view(2, -1)[1] for tensor in kept]
        del tensors
        before = dtr_alloc.stats()
        moved = dtr_alloc.compact()
        after = dtr_alloc.stats()
        assert moved > 0
        assert after["moved_bytes"] - before["moved_bytes"] == moved
        assert after["largest_free_bytes"] > before["largest_free_bytes"]
        for i, (tensor, view) in enumerate(zip(kept, views, strict=True)):
            assert torch.equal(tensor, torch.arange(size).mul(2 * i + 1))
            assert view.data_ptr() == tensor[size // 2 :].data_ptr()
        dtr_alloc.check_invariants()
    with pytest.raises(dtr_alloc.StateError, match="not enabled"):
        dtr_alloc.compact()
