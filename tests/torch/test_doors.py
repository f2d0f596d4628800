"""Operators come to the capture by a dispatch key, or by a dispatch mode where PyTorch uses that
key itself: both doors lead to the same capture. (A mode changes what autograd does, so operators
are compared without it.)"""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import checked_session, evicted, told_by
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

import dtr_alloc
from bench.measure import profile, train, train_plain
from bench.models import differences
from dtr_alloc import oplog
from dtr_alloc.torch import api

JOBS = ("mlp", pytest.param("transformer", marks=pytest.mark.long), "inplace")


def through(door: str, name: str, log: str) -> dict[str, Any]:
    """What a job's operators do that come through a door, in a process of its own."""
    if door == "mode":  # as a PyTorch would that uses the key
        taken = torch._C._dispatch_library("IMPL", "_", "Fake")
        taken.fallback_fallthrough()
    torch.set_num_threads(1)
    expected = train_plain(name, 2)
    shape, free = profile(name, 2)
    run = train(name, shape.budget(0.5), 2, check=True)
    with dtr_alloc.session(log=log, device="cpu"), torch.no_grad():
        torch.manual_seed(0)
        x = torch.randn(64, 64)
        y = (x * 2 + 1).relu_()
        y[:8].copy_(x[8:16])
        z = nn.functional.dropout(y, 0.5) @ x.t()
        torch._foreach_add_([x, y], 1.0)
        torch.add(x, z, out=y)
        z.topk(3)
        by_mode = api.active().recorder.by_mode
    return {
        "by_mode": by_mode,
        "other bits": differences(expected, free.state) + differences(expected, run.state),
        "rematerializations": run.rematerializations,
        "operators": [
            (type(i).__name__, i.name, i.args, getattr(i, "result", ()))
            for i in oplog.read(Path(log))
            if isinstance(i, oplog.Call | oplog.Mutate)
        ],
    }


@pytest.mark.parametrize("name", JOBS)
def test_both_doors_give_the_same_bits_and_record_the_same_operators(name, tmp_path):
    key, mode = (told_by(through, door, name, tmp_path / f"{door}.log") for door in ("key", "mode"))
    assert (key["by_mode"], mode["by_mode"]) == (False, True)
    for found in (key, mode):
        assert found["other bits"] == []
        assert found["rematerializations"] > 0
    assert len(key["operators"]) >= 10
    assert mode["operators"] == key["operators"]


def test_what_a_mode_or_a_subclass_hands_on_comes_by():
    x = torch.arange(1000.0)
    with checked_session():
        with FlopCounterMode(display=False):
            y = evicted(x.add(1).mul(2))
        two = TwoTensor(x, x + 1).mul(2)
        assert torch.equal(evicted(two.a), x * 2)
        assert torch.equal(evicted(two.b), y)
