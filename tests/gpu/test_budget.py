"""Jobs under budgets: the same bits, errors that leave a process usable, and what settings add."""

import pytest
import torch
from bits import MIB, profiled
from own_process import BACKEND, DEVICE, own_process
from torch import nn

import dtr_alloc
from bench.gpu.bits import hashes
from bench.measure import Profile

SIDE = 1024 if BACKEND == "cuda" else 256


class Chain(nn.Module):
    """Linear layers with dropout, of 4 MiB on a GPU; so is an activation of a batch of SIDE."""

    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIDE, SIDE, bias=False) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.1)
        return x


def trained(batch=SIDE, depth=8, steps=3):
    """Trains a chain for a few steps: hashes of what came out, and the bytes that the job keeps
    between steps and holds at most."""
    torch.manual_seed(2)
    model = Chain(depth).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(batch, SIDE).to(DEVICE)
    losses, idle = [], 0
    dtr_alloc.reset_peak_stats()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
    found = Profile(idle, dtr_alloc.stats()["peak_allocated_bytes"])
    state = [*losses, *(p.grad for p in model.parameters()), *model.parameters()]
    return hashes({str(index): tensor for index, tensor in enumerate(state)}), found


def unused_but(size_bytes):
    """A budget that leaves so much beside what is in use now."""
    return dtr_alloc.stats()["allocated_bytes"] + size_bytes


@pytest.mark.parametrize("percent", [100, 70, 40])
@own_process()
def test_training_under_a_budget_gives_the_same_bits(percent):
    torch.use_deterministic_algorithms(True)
    trained(steps=1)  # what libraries keep for good is there from now on
    expected, shape = trained()
    budget = shape.budget(percent / 100)
    dtr_alloc.set_budget(budget)
    got, shape = trained()
    assert got == expected
    assert shape.peak_bytes <= budget
    if percent < 100:
        assert dtr_alloc.stats()["rematerializations"] > 0


@own_process()
def test_a_step_that_cannot_fit_raises_and_a_smaller_one_trains():
    trained(batch=64, depth=2)
    dtr_alloc.set_budget(unused_but(64 * MIB))
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.ones(128 * MIB // 4, device=DEVICE)
    assert str(dtr_alloc.stats()["budget_bytes"]) in str(raised.value)
    before = dtr_alloc.stats()["out_of_memory_errors"]
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            # The input takes 40 MiB, and so does what the first layer makes of it.
            trained(batch=40 * MIB // (4 * SIDE), depth=2)
        trained(batch=64, depth=2)
    assert dtr_alloc.stats()["out_of_memory_errors"] >= before + 3


@own_process(debug="poison")
def test_freed_memory_is_filled_with_nans():
    made = [torch.ones(MIB, device=DEVICE) for _ in range(8)]
    addresses = [tensor.data_ptr() for tensor in made]
    del made
    found = torch.empty(MIB, device=DEVICE)
    assert min(addresses) <= found.data_ptr() <= max(addresses), "it is one of those blocks"
    assert bool(found.isnan().all())


@own_process(debug="poison")
def test_nobody_reads_what_was_poisoned():
    torch.use_deterministic_algorithms(True)
    expected, shape = trained()
    dtr_alloc.set_budget(shape.budget(0.6))
    got, _ = trained()
    assert got == expected


@own_process(debug="verify:1")
def test_verifying_every_rematerialization_finds_no_difference():
    torch.use_deterministic_algorithms(True)
    _, shape = trained()
    dtr_alloc.set_budget(shape.budget(0.7))
    trained()
    assert dtr_alloc.stats()["rematerializations"] > 0


@own_process(swap="1GiB", cuda_only="memory of its own")
def test_constants_that_do_not_fit_go_to_the_host_and_come_back():
    inputs = [torch.randn(4 * MIB) for _ in range(6)]
    dtr_alloc.set_budget(unused_but(72 * MIB))
    # Six times 16 MiB that nothing can compute again.
    there = [tensor.to(DEVICE) for tensor in inputs]
    for _ in range(2):
        for tensor, original in zip(there, inputs, strict=True):
            assert torch.equal((tensor * 2).cpu(), original * 2)


@own_process()
def test_a_channels_last_network_under_a_budget_keeps_layout_and_bits():
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False

    def gradients():
        torch.manual_seed(4)
        layers = [nn.Conv2d(3, 32, 3, padding=1)]
        for _ in range(3):
            layers += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
        model = nn.Sequential(*layers).to(DEVICE, memory_format=torch.channels_last)
        x = torch.randn(16, 3, 64, 64).to(DEVICE).to(memory_format=torch.channels_last)
        _, shape = profiled(lambda: model(x).square().sum().backward())
        state = [p.grad for p in model.parameters()] + list(model.buffers())
        return hashes({str(index): tensor for index, tensor in enumerate(state)}), shape

    gradients()  # what libraries keep for good is there from now on
    expected, shape = gradients()
    dtr_alloc.set_budget(shape.budget(0.7))
    got, _ = gradients()
    assert got == expected


@own_process()
def test_a_convolution_gives_the_same_bits_down_to_where_its_tensors_do_not_fit():
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False

    def gradients():
        torch.manual_seed(4)
        model = nn.Conv2d(SIDE // 8, SIDE // 8, 3, padding=1).to(DEVICE)
        x = torch.randn(8, SIDE // 8, 64, 64).to(DEVICE).requires_grad_()
        _, shape = profiled(lambda: model(x).square().sum().backward())
        state = [x.grad, *(p.grad for p in model.parameters())]
        return hashes({str(index): tensor for index, tensor in enumerate(state)}), shape

    expected, shape = gradients()
    fitted = 0
    for percent in range(150, 0, -10):
        try:
            dtr_alloc.set_budget(shape.budget(percent / 100))
            got, _ = gradients()
        except torch.OutOfMemoryError:
            break
        assert got == expected, f"{percent} %"
        fitted += 1
    assert fitted > 0
