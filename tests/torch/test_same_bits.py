"""Training under any budget that works gives the bits of training without one."""

import gc
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from harness import assert_equal, assert_same_bits, checked_session, told_by
from native_pool import move_some
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from bench.measure import Profile, Thrashing, profile, train, train_plain, try_train
from bench.models import JOBS
from dtr_alloc.heuristics import DEALLOCS
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.torch import api

STEPS = 3
FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
MOST_REPEATS = 3_000  # rematerializations of a run; beyond, it works but would take minutes


QUICK = ("mlp", "transformer", "unrolled_gan", "inplace", "checkpoint")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in JOBS]
)
def test_job_keeps_its_bits_at_every_budget_down_to_out_of_memory(name):
    """From the unconstrained peak downward until out of memory, everything a user can compare is
    the same; half of the activation memory is enough; after what is too little the process goes
    on. (A run that only thrashes is cut short: then the next smaller budget is tried.)"""
    reference = train_plain(name, STEPS)
    shape, free = profile(name, STEPS, check=True)
    assert_same_bits(reference, free.state, f"{name} without a budget")
    assert free.evictions == 0

    for fraction in FRACTIONS:
        budget = shape.budget(fraction)
        where = f"{name} at {fraction:.0%} of its activation memory ({budget} bytes)"
        try:
            run = try_train(name, budget, STEPS, check=True, most_repeats=MOST_REPEATS)
        except Thrashing:
            assert fraction < 0.5, f"{where}: thrashing"
            continue
        if run is None:
            assert fraction < 0.5, f"{where}: out of memory"
            break
        assert_same_bits(reference, run.state, where)
        assert run.stats["peak_allocated_bytes"] <= budget, where
        assert run.stats["peak_reserved_bytes"] <= budget, where
        if fraction <= 0.8:
            assert run.evictions > 0, where
            assert run.rematerializations > 0, where

    # Less than what must stay between two steps cannot work.
    with pytest.raises(torch.OutOfMemoryError):
        train(name, shape.idle_bytes // 2, STEPS)
    gc.collect()
    assert dtr_alloc.stats()["out_of_memory_errors"] > 0
    again = train(name, shape.budget(0.7), STEPS, check=True)
    assert_same_bits(reference, again.state, f"{name} after running out of memory")


@cache
def free(name: str) -> tuple[Profile, dict[str, Tensor]]:
    """The job's shape, and its state without dtr_alloc."""
    return profile(name, STEPS)[0], train_plain(name, STEPS)


OTHERS = ("resnet", "lstm", "unrolled_gan")
MATRIX = [
    *(("transformer", heuristic, 0.6) for heuristic in [*PRESETS, "c=ancestors,m=size,s=0.5"]),
    *((name, heuristic, 0.6) for name in OTHERS for heuristic in ("dtr-full", "megengine")),
    *((name, dealloc, 0.5) for name in ("mlp", *OTHERS[2:]) for dealloc in ("banish", "ignore")),
    *(("transformer", dealloc, 0.5) for dealloc in ("banish", "ignore")),
]


@pytest.mark.parametrize(("name", "heuristic", "fraction"), MATRIX)
def test_a_job_keeps_its_bits_whatever_chooses_what_is_evicted(name, heuristic, fraction):
    """Also where dead storages stay until they are chosen, or go for good while their dependents
    stay."""
    shape, expected = free(name)
    chooses = PRESETS.get(heuristic, heuristic)
    if heuristic in DEALLOCS:
        chooses = replace(PRESETS["marginal"], dealloc=heuristic)
    run = train(name, shape.budget(fraction), STEPS, check=True, settings={"heuristic": chooses})
    assert_same_bits(expected, run.state, f"{name} under {heuristic}")
    assert run.evictions > 0
    assert run.rematerializations > 0
    assert run.added["banished"] == 0 or heuristic not in DEALLOCS or heuristic == "banish"
    assert run.added["banished"] > 0 or heuristic != "banish"


def test_the_budget_may_change_between_steps():
    shape, _ = profile("resnet", STEPS)
    reference = train_plain("resnet", 4)
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        job = JOBS["resnet"]()
        for i, fraction in enumerate((1.0, 0.5, 0.8, 0.6)):
            dtr_alloc.set_budget(shape.budget(fraction))
            dtr_alloc.reset_peak_stats()
            job.step(i)
            dtr_alloc.check_invariants()
            assert dtr_alloc.stats()["peak_allocated_bytes"] <= shape.budget(fraction)
    assert_same_bits(reference, job.state(), "a budget that changes")


# ---- storages that move ----


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


def test_jobs_keep_their_bits_while_storages_move_at_every_operator():
    """Views, saved tensors, statistics, changes in place, recomputed segments. What is freed is
    NaN: whoever still used an old address would show."""
    jobs = ("transformer", "resnet", "lstm_module", "inplace", "checkpoint")
    found = told_by(train_all_moving, *jobs, debug="poison", pool="chunk:64KiB")
    assert len(found) == len(jobs)
    for moves, evictions in found:
        assert moves > 100
        assert evictions > 0


def test_compacting_makes_one_piece_of_what_is_free():
    """Between whole chunks that were kept, which keep their content."""
    with checked_session():
        size = dtr_alloc.stats()["chunk_bytes"] // 4
        tensors = [torch.arange(size).mul(i) for i in range(12)]
        del tensors[::2]
        before = dtr_alloc.stats()
        moved = dtr_alloc.compact()
        after = dtr_alloc.stats()
        assert after["moved_bytes"] - before["moved_bytes"] == moved > 0
        assert after["largest_free_bytes"] > before["largest_free_bytes"]
        assert_equal([torch.arange(size).mul(i) for i in range(1, 12, 2)], tensors)
    with pytest.raises(dtr_alloc.StateError, match="not enabled"):
        dtr_alloc.compact()
