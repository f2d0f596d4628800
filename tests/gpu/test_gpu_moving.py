"""Contents that are copied to other addresses: the same bits, in the order of the streams."""

import native_pool
import torch
from bits import MIB, same_bits
from own_process import DEVICE, busy, own_process
from torch import nn

import dtr_alloc
from dtr_alloc.core import ffi, lib
from dtr_alloc.torch import api


def move(tensor: torch.Tensor) -> bool:
    active = api.active()
    handle = active.handle(tensor)
    return lib.dtr_engine_relocate(active.engine, handle, ffi.NULL, ffi.NULL) == 1


def move_some(seed: int, count: int) -> None:
    active = api.active()
    for pool in active.pools.handles:
        native_pool.move_some(active.engine, pool, seed, count)


@own_process()
def test_a_tensor_moves_with_its_views():
    numbers = torch.arange(MIB, device=DEVICE, dtype=torch.float32)
    doubled = numbers * 2
    row = doubled.view(1024, 1024)[3]
    for _ in range(5):
        assert move(doubled)
        row += 1
    expected = torch.arange(MIB, dtype=torch.float32) * 2
    expected[3 * 1024 : 4 * 1024] += 5
    assert torch.equal(doubled.cpu(), expected)
    assert torch.equal(row.cpu(), expected[3 * 1024 : 4 * 1024])
    assert dtr_alloc.stats()["moves"] >= 5


@own_process()
def test_training_keeps_its_bits_while_storages_move():
    def train(moves: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [part for _ in range(6) for part in (nn.Linear(256, 256), nn.GELU())]
        model = nn.Sequential(*layers).to(DEVICE)
        if moves:
            for layer in model:
                layer.register_forward_pre_hook(lambda *_: move_some(len(draws), 4))
                layer.register_forward_pre_hook(lambda *_: draws.append(1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x = torch.randn(512, 256, device=DEVICE)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if moves:
                move_some(len(draws), 20)
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    draws: list[int] = []
    expected = train(False)
    before = dtr_alloc.stats()["moves"]
    got = train(True)
    assert dtr_alloc.stats()["moves"] > before + 50
    assert all(same_bits(a, b) for a, b in zip(expected, got, strict=True))


@own_process(cuda_only="streams")
def test_a_copy_waits_for_the_last_use_and_the_next_use_for_the_copy():
    side = torch.cuda.Stream()
    numbers = torch.arange(MIB, device=DEVICE, dtype=torch.float32)
    made = numbers + 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy()
        made.mul_(2)
    assert move(made)  # queued on the side stream, behind its work
    filled = [torch.full((MIB,), -1.0, device=DEVICE) for _ in range(4)]
    torch.cuda.current_stream().wait_stream(side)
    result = made + 0
    torch.cuda.synchronize()
    expected = torch.arange(1, MIB + 1, dtype=torch.float32) * 2
    assert torch.equal(result.cpu(), expected)
    assert torch.equal(made.cpu(), expected)
    assert all(bool((tensor == -1).all()) for tensor in filled)
