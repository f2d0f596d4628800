"""Training under any budget that works gives the bits of training without one."""

import gc
from dataclasses import replace
from functools import cache

import pytest
import torch
from harness import assert_same_bits
from torch import Tensor

import dtr_alloc
from bench.measure import Profile, Thrashing, profile, train, train_plain, try_train
from bench.models import JOBS
from dtr_alloc.heuristics import DEALLOCS
from dtr_alloc.simulation.presets import PRESETS

STEPS = 3
FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
MOST_REPEATS = 3_000  # rematerializations of a run; beyond, it works but would take minutes


QUICK = ("mlp", "transformer", "unrolled_gan", "inplace", "checkpoint")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in JOBS]
)
def test_job_keeps_its_bits_at_every_budget_down_to_out_of_memory(name: str) -> None:
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
def test_a_job_keeps_its_bits_whatever_chooses_what_is_evicted(
    name: str, heuristic: str, fraction: float
) -> None:
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


def test_the_budget_may_change_between_steps() -> None:
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
