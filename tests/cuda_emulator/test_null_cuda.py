"""Full-size jobs over a CUDA whose kernels compute nothing (bench/null_cuda): counts, no times."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[float | None, dict]:
    """What a step of GPT-2 medium adds, by the fraction of its activation memory."""
    from bench.null_cuda import library
    from bench.null_cuda.__main__ import Trainers, measure

    folder: Path = tmp_path_factory.mktemp("null_cuda")
    with closing(Trainers(library.build(folder))) as trainers:
        trainers.calibrate()
        rows = list(measure("gpt2_medium", "marginal", trainers, steps=3, rounds=1))
    return {row["budget_fraction"]: row for row in rows}


def test_a_step_has_the_operators_that_it_had_on_a_device(counts: dict) -> None:
    assert counts[None]["operators"] == 1344  # bench/results/gpu_step_time.json: 9,408 of 7 steps


def test_without_a_limit_nothing_is_evicted_or_mapped_and_nobody_waits(counts: dict) -> None:
    row = counts[None]
    for name in ("rematerializations", "evictions", "searches", "mapped_chunks", "host_waits"):
        assert row[name] == 0, name
    assert sum(row["calls_an_operator"].values()) < 3


# Costs are those of the null device, so counts are the same in every run: 189, 166 and 296 under
# torch 2.11.0. The rest is for what other versions of torch and scores do otherwise.
@pytest.mark.parametrize(("fraction", "most"), [(0.7, 240), (0.5, 210), (0.3, 370)])
def test_a_step_repeats_no_more_than_a_bounded_number_of_operators(
    counts: dict, fraction: float, most: int
) -> None:
    row = counts[fraction]
    assert 0 < row["rematerializations"] <= most
    assert row["searches"] <= 4 * most
    assert row["host_waits"] == 0
