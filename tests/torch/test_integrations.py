"""The session and the scalars that the callbacks of all frameworks share, without a framework;
tests/frameworks has those."""

import pytest
import torch

import dtr_alloc
from dtr_alloc.integrations.job import BudgetedJob


def test_its_own_session_ends_also_if_training_raises():
    job = BudgetedJob("8MiB", device="cpu")
    assert dtr_alloc.stats()["budget_bytes"] == 8 << 20
    with pytest.raises(LookupError), job:
        raise LookupError
    assert not dtr_alloc.is_enabled()
    job.begin()
    assert dtr_alloc.is_enabled()
    job.end()
    assert not dtr_alloc.is_enabled()


def test_its_figures_can_be_read_after_it_has_ended():
    with BudgetedJob("8MiB", device="cpu") as job:
        tensors = [torch.ones(1 << 18) * n for n in range(12)]
    stats = dtr_alloc.stats()
    assert stats["budget_bytes"] == 8 << 20
    assert stats["peak_allocated_bytes"] <= 8 << 20, "of what came back at the end, too"
    assert sum(int(tensor[0]) for tensor in tensors) == 66
    assert "8.00 MiB" in job.report()


def test_a_session_of_others_goes_on():
    job = BudgetedJob()
    with pytest.raises(dtr_alloc.StateError, match="no session is on"):
        job.begin()
    with dtr_alloc.session("8MiB", device="cpu"):
        with job:
            job.begin()
        assert dtr_alloc.is_enabled()
        with pytest.raises(dtr_alloc.StateError, match="enabled already"):
            BudgetedJob("4MiB", device="cpu")


def test_scalars_are_of_the_steps_since_the_call_before():
    with BudgetedJob("unlimited", device="cpu") as job:
        x = torch.ones(1 << 18) * 2
        job.begin(step=10)
        for _ in range(4):
            assert dtr_alloc.evict(x)
            dtr_alloc.materialize(x)
        scalars = job.scalars(step=12)
        assert scalars["dtr_alloc/evictions"] == 2
        assert scalars["dtr_alloc/allocated_bytes"] >= x.nbytes
        assert scalars["dtr_alloc/recompute_share"] == 1, "the job itself computed nothing"
        assert job.scalars(step=13)["dtr_alloc/evictions"] == 0
