"""Storages that move in real jobs: the same bits, and copies instead of out of memory.

Some are processes of their own, as pools are fixed for the life of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import one_thread  # noqa: F401

import dtr_alloc
from dtr_alloc.core import ffi, lib
from dtr_alloc.torch import api

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs python with only the DTR_ALLOC_* variables given; CPU tensors, one thread."""
    keep = ("DTR_ALLOC_CACHE", "CXX")
    clean = {
        key: value
        for key, value in os.environ.items()
        if key in keep or not key.startswith("DTR_ALLOC_")
    }
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env={**clean, **own, **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_jobs_keep_their_bits_while_storages_move_at_every_operator() -> None:
    """Views, saved tensors, statistics, changes in place, recomputed segments; what is freed is
    NaN."""
    jobs = ("transformer", "resnet", "lstm_module", "inplace", "checkpoint")
    settings = {"DTR_ALLOC_DEBUG": "poison", "DTR_ALLOC_POOL": "chunk:64KiB"}
    done = python(ROOT / "tests/torch/moving_jobs.py", *jobs, **settings)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(jobs)


def test_a_job_that_is_out_of_memory_for_want_of_one_piece_trains_by_moving() -> None:
    """With the same bits as without a budget."""
    settings = {"DTR_ALLOC_POOL": "fixed,chunk:64KiB"}
    done = python(ROOT / "tests/torch/selection_job.py", **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["out", "of", "memory", "trained"]


def test_by_hand_a_tensor_moves_with_its_views_unless_its_address_was_given_away() -> None:
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        engine = api.active().engine

        def move(tensor: torch.Tensor) -> bool:
            handle = api.active().handle(tensor)
            return lib.dtr_engine_relocate(engine, handle, ffi.NULL, ffi.NULL) == 1

        x = torch.arange(10_000.0).mul(2)
        row = x.view(100, 100)[3]
        storage = x.untyped_storage()
        assert move(x)
        assert row.tolist() == list(range(600, 800, 2))
        row += 1
        assert x[300:302].tolist() == [601, 603]
        assert storage.nbytes() == 40_000
        assert move(row)
        assert torch.equal(x.view(100, 100)[3], row)
        array = x.numpy()
        assert not move(x)
        x[0] = 7
        assert array[0] == 7
        dtr_alloc.check_invariants()


def test_gradients_and_saved_tensors_move() -> None:
    """Between forward and backward."""
    results = []
    for moves in (False, True):
        torch.manual_seed(0)
        with dtr_alloc.session(budget="unlimited", device="cpu"):
            active = api.active()
            weight = torch.randn(64, 64, requires_grad=True)
            hidden = (torch.randn(64, 64) @ weight).relu().exp()
            (pool,) = active.pools.handles
            before = dtr_alloc.stats()["moves"]
            if moves:
                lib.dtr_engine_move_some(active.engine, pool, 1, 50, ffi.NULL)
            hidden.sum().backward()
            assert (dtr_alloc.stats()["moves"] > before) == moves
            results.append(weight.grad)
    assert torch.equal(*results)


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
