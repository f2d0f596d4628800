"""Jobs whose storages are moved at every operator, in a process of their own (test_moved_jobs.py).

Where its pools fill freed memory with NaN, whoever still used an old address would show. Prints the
job, how many storages were moved and evicted; fails with the tensors that differ.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from harness import assert_same_bits
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from bench.measure import Profile, profile, train_plain
from bench.models import JOBS
from dtr_alloc.core import check, ffi, lib
from dtr_alloc.torch import api

STEPS = 2
FRACTION = 0.7


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
                check(lib.dtr_engine_move_some(active.engine, pool, Mover.draws, 1, ffi.NULL))
        return func(*args, **(kwargs or {}))


def train_moving(name: str, shape: Profile) -> dict[str, int]:
    """Trains under a budget that evicts; returns what was counted."""
    expected = train_plain(name, STEPS)
    with Mover(), dtr_alloc.session(budget=shape.budget(FRACTION), device="cpu"):
        before = dtr_alloc.stats()
        with Mover():
            job = JOBS[name]()
            for i in range(STEPS):
                job.step(i)
                dtr_alloc.check_invariants()
        after = dtr_alloc.stats()
    assert_same_bits(expected, job.state(), f"{name} while its storages move")
    return {key: after[key] - before[key] for key in ("moves", "moved_bytes", "evictions")}


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        shape, _ = profile(name, STEPS)
        added = train_moving(name, shape)
        print(name, added["moves"], added["evictions"])
        assert added["moves"] > 100, added
        assert added["evictions"] > 0, added


if __name__ == "__main__":
    main()
