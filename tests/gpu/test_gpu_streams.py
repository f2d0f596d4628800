"""Work on several streams: memory waits for the work that uses it, and bits stay the same."""

import torch
from bits import MIB, profiled, same_bits
from own_process import BACKEND, DEVICE, busy, own_process
from torch import nn

import dtr_alloc

WIDTH = 1024 if BACKEND == "cuda" else 256


def load_kernels():
    """Runs what the tests queue behind a sleep: a kernel is loaded when it is first launched, which
    may wait for all that runs."""
    busy(0)
    numbers = torch.arange(8, device=DEVICE, dtype=torch.float32)
    torch.full((8,), -1.0, device=DEVICE).copy_(numbers * 2 + 1)
    torch.ones(8, device=DEVICE)
    torch.cuda.synchronize()


@own_process(cuda_only="streams")
def test_memory_that_another_stream_still_reads_is_not_given_away():
    load_kernels()
    side = torch.cuda.Stream()
    numbers = torch.arange(MIB, device=DEVICE, dtype=torch.float32)
    address = numbers.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy()
        doubled = numbers * 2
        numbers.record_stream(side)
    del numbers
    # The same size, on the stream that the block is from.
    other = torch.full((MIB,), -1.0, device=DEVICE)
    assert other.data_ptr() != address, "the block is still read on the side stream"
    torch.cuda.synchronize()
    assert torch.equal(doubled.cpu(), torch.arange(MIB, dtype=torch.float32) * 2)


@own_process(cuda_only="streams")
def test_eviction_waits_for_work_that_is_queued_on_another_stream():
    load_kernels()
    side = torch.cuda.Stream()
    numbers = torch.arange(MIB, device=DEVICE, dtype=torch.float32)
    made = numbers + 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy()
        doubled = made * 2
    assert dtr_alloc.evict(made)
    filled = [torch.full((MIB,), -1.0, device=DEVICE) for _ in range(4)]
    torch.cuda.synchronize()
    expected = torch.arange(1, MIB + 1, dtype=torch.float32)
    assert torch.equal(doubled.cpu(), expected * 2)
    assert torch.equal(made.cpu(), expected)
    assert all(bool((tensor == -1).all()) for tensor in filled)


@own_process(cuda_only="streams")
def test_a_rematerialization_waits_for_inputs_of_another_stream():
    load_kernels()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy()
        base = torch.ones(MIB, device=DEVICE)
        made = base * 3
    torch.cuda.current_stream().wait_stream(side)
    total = made + 1
    assert dtr_alloc.evict(made)
    assert dtr_alloc.evict(base)
    with torch.cuda.stream(side):
        busy()
        again = made * 2
    torch.cuda.synchronize()
    assert bool((again.cpu() == 6).all())
    assert bool((total.cpu() == 4).all())


def prefetched(batches):
    """Losses of a network whose batches a side stream brings from pinned memory, one ahead."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    side = torch.cuda.Stream()

    def bring(batch):
        with torch.cuda.stream(side):
            return batch.to(DEVICE, non_blocking=True)

    losses = []
    following = bring(batches[0])
    for index in range(len(batches)):
        torch.cuda.current_stream().wait_stream(side)
        x = following
        x.record_stream(torch.cuda.current_stream())
        if index + 1 < len(batches):
            following = bring(batches[index + 1])
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@own_process(cuda_only="streams")
def test_batches_prefetched_on_a_side_stream_arrive_under_a_budget():
    torch.use_deterministic_algorithms(True)
    batches = [torch.randn(2 * WIDTH, WIDTH).pin_memory() for _ in range(6)]
    prefetched(batches[:1])  # what libraries keep for good is there from now on
    expected, shape = profiled(lambda: prefetched(batches))
    dtr_alloc.set_budget(shape.budget(0.85))
    got = prefetched(batches)
    assert dtr_alloc.stats()["evictions"] > 0
    assert same_bits(expected, got)


class TwoStreams(nn.Module):
    """Two branches, each on a stream of its own, that are added."""

    def __init__(self, side):
        super().__init__()
        self.left = nn.Sequential(*(nn.Linear(WIDTH // 2, WIDTH // 2) for _ in range(4)))
        self.right = nn.Sequential(*(nn.Linear(WIDTH // 2, WIDTH // 2) for _ in range(4)))
        self.side = side

    def forward(self, x):
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            right = torch.tanh(self.right(x))
        x.record_stream(self.side)
        left = torch.tanh(self.left(x))
        main.wait_stream(self.side)
        right.record_stream(main)
        return left + right


@own_process(cuda_only="streams")
def test_a_model_on_two_streams_trains_to_the_same_bits():
    torch.use_deterministic_algorithms(True)
    side = torch.cuda.Stream()  # the same for all: cuBLAS keeps a workspace for each stream

    def gradients():
        torch.manual_seed(2)
        model = TwoStreams(side).to(DEVICE)
        x = torch.randn(8 * WIDTH, WIDTH // 2).to(DEVICE)
        torch.cuda.synchronize()
        _, shape = profiled(lambda: model(x).square().sum().backward())
        return [p.grad.cpu() for p in model.parameters()], shape

    gradients()  # what libraries keep for good is there from now on
    expected, shape = gradients()
    dtr_alloc.set_budget(shape.budget(0.7))
    before = dtr_alloc.stats()["rematerializations"]
    got, _ = gradients()
    assert dtr_alloc.stats()["rematerializations"] > before
    assert all(same_bits(a, b) for a, b in zip(expected, got, strict=True))


@own_process(cuda_only="pinned memory")
def test_pinned_memory_is_none_of_the_budgets():
    before = dtr_alloc.stats()["allocated_bytes"]
    host = torch.randn(MIB).pin_memory()
    assert host.is_pinned()
    assert dtr_alloc.stats()["allocated_bytes"] == before
    there = host.to(DEVICE, non_blocking=True)
    again = torch.empty(MIB, pin_memory=True).copy_(there)
    assert again.is_pinned()
    assert torch.equal(again, host)
