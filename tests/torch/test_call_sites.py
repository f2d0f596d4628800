"""Where in the job's modules memory is taken, and what runs again there."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.checkpoint import checkpoint

import dtr_alloc
from dtr_alloc.advise.where import Where, bytes_by_place, repeats_by_place
from dtr_alloc.oplog import compile_log
from dtr_alloc.torch import api, call_sites
from dtr_alloc.torch.kept import Kept, fullest


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.inner(x))


class Net(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sigmoid()


@pytest.fixture
def logged(tmp_path: Path) -> Any:
    """A session that keeps account."""
    with dtr_alloc.session("unlimited", device="cpu", log=str(tmp_path / "job.log")):
        yield


def made_in(entries: list[Kept]) -> dict[tuple[str, str], int]:
    return {(entry.module, entry.operator): entry.size_bytes for entry in entries}


def test_what_fills_the_memory_has_its_module_and_line(logged):
    net = Net()
    x = torch.ones(1024, 64)
    out = net(x)
    found = fullest(api.active())
    size = 1024 * 64 * 4
    for block in range(3):
        assert made_in(found)[f"blocks.{block}.inner", "aten.addmm.default"] == size
        assert made_in(found)[f"blocks.{block}", "aten.gelu.default"] == size
    assert made_in(found)["Net", "aten.sigmoid.default"] == out.untyped_storage().nbytes()
    (line,) = {entry.line for entry in found if entry.module == "blocks.1.inner"}
    assert line == f"test_call_sites.py:{Block.forward.__code__.co_firstlineno + 1}"
    places = dict(bytes_by_place(entry for entry in found if entry.module))
    assert places[Where("blocks.*", "aten.gelu.default"), False] == 3 * size


def test_the_log_has_the_module_of_each_operator(tmp_path):
    """Also of those that compute gradients, or what checkpointing computes again for them."""
    path = tmp_path / "job.log"
    with dtr_alloc.session("unlimited", device="cpu", log=str(path)):
        net = Net()
        out = torch.ones(1024, 64)
        for block in net.blocks:
            out = checkpoint(block, out, use_reentrant=False)
        out.square().sum().backward()
        out.exp()
    program = compile_log(path)
    names = [program.operator_names[operator] for operator in program.operators]
    where = [program.places[place][0] for place in program.operator_places]
    called = Counter(zip(names, where, strict=True))
    for block in range(3):
        assert called["aten.addmm.default", f"blocks.{block}.inner"] == 2
        assert called["aten.gelu_backward.default", f"blocks.{block}"] == 1
        assert called["aten.mm.default", f"blocks.{block}.inner"] == (1 if block == 0 else 2)
    assert called["aten.sum.default", ""] == called["aten.exp.default", ""] == 1


def test_a_part_that_is_called_from_outside_has_its_path_all_the_same(logged):
    """As the layers of a LightningModule, which has no forward()."""
    net = Net()
    y = net.blocks[1](torch.ones(1024, 64))
    assert ("blocks.1", "aten.gelu.default") in made_in(fullest(api.active()))
    del y


def test_each_session_finds_the_modules_that_there_are(tmp_path):
    for _ in range(call_sites._MOST_LOOKS + 1):
        with dtr_alloc.session("unlimited", device="cpu", log=str(tmp_path / "job.log")):
            out = Net()(torch.ones(1024, 64))
            assert ("blocks.1", "aten.gelu.default") in made_in(fullest(api.active()))
            del out


def test_a_module_that_fails_is_left(logged):
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    net = nn.Sequential(nn.Linear(64, 64), Fails())
    with pytest.raises(ValueError, match="no"):
        net(torch.ones(16, 64))
    outside = torch.ones(1024, 64).exp()
    assert made_in(fullest(api.active()))["", "aten.exp.default"] == outside.nbytes


def test_hooks_are_there_for_accounts_only(tmp_path):
    hooks = modules._global_forward_hooks, modules._global_forward_pre_hooks
    before = [len(each) for each in hooks]
    with dtr_alloc.session("64MiB", device="cpu"):
        assert [len(each) for each in hooks] == before
    with dtr_alloc.session("64MiB", device="cpu", report=str(tmp_path / "run.html")):
        assert [len(each) for each in hooks] == [each + 1 for each in before]
    assert [len(each) for each in hooks] == before


def test_all_that_runs_again_is_counted_once(tmp_path):
    net = Net(blocks=12)
    report = str(tmp_path / "run.html")
    with dtr_alloc.session("2MiB", device="cpu", report=report, heuristic="lru", thrash="off"):
        for _ in range(2):
            net(torch.ones(1024, 64)).sum().backward()
        timeline = api.active().timeline
    repeats = dtr_alloc.stats()["rematerializations"]
    assert timeline is not None
    assert repeats > 0
    assert sum(each.times for each in timeline.repeats) == repeats
    by_place = repeats_by_place(timeline.repeats)
    assert sum(times for _, _, times in by_place) == repeats
    assert Where("blocks.*.inner", "aten.addmm.default") in [place for place, _, _ in by_place]


def test_compiled_modules_are_compiled_whole(logged):
    net = Net()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4, 64)), net(torch.ones(4, 64)))
