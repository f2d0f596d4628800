"""Storages move between the operators of jobs on "cuda", with streams that finish late."""

from __future__ import annotations

import pytest

SHAKE = """
import torch
from torch import nn
from torch.nn import functional as F
from dtr_alloc.torch import api

draws = [0]

def shake(*ignored):
    active = api._runtime
    if active is None:
        return
    from dtr_alloc.core import check, ffi, lib
    for pool in active.pools.handles:
        draws[0] += 1
        check(lib.dtr_engine_move_some(active.engine, pool, draws[0], 4, ffi.NULL))

def shaken(model):
    for part in model.modules():
        part.register_forward_pre_hook(shake)
        part.register_full_backward_pre_hook(shake)
    return model

torch.manual_seed(0)
layers = [part for _ in range(6) for part in (nn.Linear(128, 128), nn.BatchNorm1d(128), nn.GELU())]
model = shaken(nn.Sequential(*layers)).to("cuda")
x, y = torch.randn(256, 128).to("cuda"), torch.randint(0, 128, (256,)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""

ONE_STREAM = """
for _ in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""

SIDE_STREAM = """
side = torch.cuda.Stream()
for _ in range(3):
    optimizer.zero_grad()
    hidden = model(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        shake()
        other = (hidden * 2).relu().sum(1)
        shake()
        hidden.record_stream(side)
    shake()
    loss = F.cross_entropy(hidden, y)
    torch.cuda.current_stream().wait_stream(side)
    shake()
    loss = loss + other.mean()
    loss.backward()
    shake()
    optimizer.step()
    print(repr(loss.item()))
"""

END = """
for weight in model.state_dict().values():
    print(weight.detach().cpu().numpy().tobytes().hex())
"""


@pytest.mark.parametrize("steps", [ONE_STREAM, SIDE_STREAM], ids=["one stream", "a side stream"])
def test_a_job_keeps_its_bits_while_its_storages_move(machine, steps):
    """No copy overlaps unfinished work, on whatever stream, and nothing reads an old address."""
    job = SHAKE + steps + END
    expected = machine.run(job)
    moved = machine.run(job, budget="unlimited")
    assert moved.output == expected.output
    assert moved.stats["moves"] > 100
