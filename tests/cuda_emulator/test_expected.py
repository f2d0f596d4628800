"""What jobs expect of torch.cuda besides training: statistics, limits, errors, generators."""

from __future__ import annotations

from pathlib import Path

STATISTICS = """
import pickle
import torch
MIB = 1 << 20
assert torch.cuda.get_allocator_backend() == "dtr_alloc"
torch.cuda.init()
before = torch.cuda.memory_allocated()
x = torch.ones(4 * MIB, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() - before == 4 * MIB
y = x + 1
del y
assert torch.cuda.memory_allocated() - before == 4 * MIB
assert torch.cuda.max_memory_allocated() - before >= 8 * MIB
assert torch.cuda.memory_reserved() >= 8 * MIB
assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved()
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
assert stats["num_ooms"] == 0
torch.cuda.reset_accumulated_memory_stats()
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
assert "Allocated memory" in torch.cuda.memory_summary()
free, total = torch.cuda.mem_get_info()
assert total == 1 << 30 and total - free == torch.cuda.memory_reserved()
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < 5 * MIB
assert torch.cuda.mem_get_info()[0] > free
(device,) = {segment["device"] for segment in torch.cuda.memory_snapshot()}
assert device == 0
pickle.dumps(torch.cuda.memory._snapshot())
assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
print(torch.cuda.get_per_process_memory_fraction())
"""


def test_the_statistics_of_torch_cuda_tell_of_our_pool(machine):
    run = machine.run(STATISTICS, budget="64MiB")
    assert float(run.output) == 64 / 1024


FRACTION = """
import torch
import dtr_alloc
x = torch.ones(1 << 20, device="cuda")  # 4 MiB
kept = [x + index for index in range(8)]
torch.cuda.set_per_process_memory_fraction(16 / 1024)
assert dtr_alloc.stats()["budget_bytes"] == 16 << 20
assert torch.cuda.memory_allocated() <= 16 << 20
assert [int(part.mean()) for part in kept] == list(range(1, 9))
assert torch.cuda.max_memory_reserved() <= 64 << 20
torch.cuda.set_per_process_memory_fraction(1.0)
assert dtr_alloc.stats()["budget_bytes"] == 64 << 20
"""


def test_a_memory_fraction_narrows_the_budget_and_evicts(machine):
    assert machine.run(FRACTION, budget="64MiB").stats["evictions"] > 0


OUT_OF_MEMORY = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    optimizer.zero_grad()
    loss = model(torch.ones(batch, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

batch, sizes = 16384, []
for _ in range(6):
    try:
        loss = step(batch)
        sizes.append(batch)
    except torch.cuda.OutOfMemoryError as error:
        assert "out of memory" in str(error) and "budget 16.0 MiB (16777216 bytes)" in str(error)
        batch //= 2
assert sizes, batch
assert torch.cuda.memory_stats()["num_ooms"] > 0
print(sizes[-1], loss < 1)
"""


def test_a_job_that_runs_out_of_memory_goes_on_with_a_smaller_batch(machine):
    size, improves = machine.run(OUT_OF_MEMORY, budget="16MiB").output.split()
    assert int(size) >= 1024
    assert improves == "True"


def test_a_budget_can_be_a_share_of_the_device(machine):
    run = machine.run("import torch\ntorch.ones(3, device='cuda')", budget="25%")
    assert run.stats["budget_bytes"] == 1 << 28


BENCHMARK = """
import torch
torch.backends.cudnn.benchmark = True
convolution = torch.nn.Conv2d(3, 8, 3).cuda()
convolution(torch.randn(2, 3, 16, 16, device="cuda")).sum().backward()
"""


def test_the_benchmark_mode_of_cudnn_runs(machine):
    machine.run(BENCHMARK, budget="32MiB")


PINNED = """
import torch
import dtr_alloc
x = torch.randn(1 << 20).pin_memory()
address = x.data_ptr()
outside = torch.cuda.memory_allocated()
y = x.to("cuda", non_blocking=True)
assert x.is_pinned() and not y.is_pinned()
assert torch.cuda.memory_allocated() - outside == 4 << 20
z = torch.empty(1 << 20, pin_memory=True).copy_(y)
assert z.is_pinned() and torch.equal(x, z) and x.data_ptr() == address
(y + 1).to("cpu", non_blocking=True)
kept = [y + index for index in range(6)]
assert torch.equal(kept[0].cpu(), x)
"""


def test_pinned_memory_is_no_part_of_the_budget_and_stays_where_it_is(machine):
    assert machine.run(PINNED, budget="16MiB").stats["evictions"] > 0


GENERATORS = """
import torch
import dtr_alloc
from torch.nn import functional as F
DROPOUTS = {
    "the default one": lambda x: F.dropout(x, 0.5),
    "one of its own": lambda x, g=torch.Generator("cuda").manual_seed(7): x.bernoulli(generator=g),
    "rand_like": lambda x: torch.rand_like(x),
    "without a tensor": lambda x: torch.randn(x.shape, device="cuda"),
    "in the shape of a tensor elsewhere": (
        lambda x: torch.rand_like(torch.ones(4096), generator=None, device="cuda")
    ),
    "in place": lambda x: x.clone().normal_(),
}
x = torch.ones(1 << 16, device="cuda")
torch.cuda.manual_seed(3)
for name, draw in DROPOUTS.items():
    y = draw(x)
    expected = y.cpu()
    state = torch.cuda.get_rng_state()
    assert dtr_alloc.evict(y), name
    assert torch.equal(y.cpu(), expected), name
    assert torch.equal(torch.cuda.get_rng_state(), state), name
"""


def test_random_operators_draw_again_what_they_drew(machine):
    assert machine.run(GENERATORS, budget="64MiB").stats["rematerializations"] >= 6


RNN_FLAG = """
import ctypes
import subprocess
import sys
from pathlib import Path
import torch
import dtr_alloc
from dtr_alloc import compiler
from dtr_alloc.torch import bridge

library = Path(__file__).with_suffix(".so")
subprocess.run(bridge.command(compiler.find(), "cuda", [sys.argv[1]], library), check=True)
begins_anew = ctypes.CDLL(str(library)).rnn_begins_anew

torch.cuda.init()
torch.cuda.manual_seed(3)
assert [begins_anew(), begins_anew()] == [1, 0]
drawn = torch.randn(1 << 16, device="cuda")
expected = drawn.cpu()
assert begins_anew() == 0
assert dtr_alloc.evict(drawn)
assert torch.equal(drawn.cpu(), expected)
assert begins_anew() == 0
torch.cuda.manual_seed(4)
assert dtr_alloc.evict(drawn)
assert torch.equal(drawn.cpu(), expected)
assert [begins_anew(), begins_anew()] == [1, 0]
"""
SELFTEST = Path(__file__).parents[2] / "native/bridge/selftest"


def test_only_the_jobs_own_seeding_has_rnns_begin_anew_with_their_dropout(machine):
    machine.run(RNN_FLAG, SELFTEST / "rnn_flag.cpp", budget="64MiB")


OTHER_DEVICE = """
import torch
import dtr_alloc
torch.cuda.manual_seed_all(1)
torch.cuda.set_device(1)
MAKERS = {
    "ones": lambda: torch.ones(1 << 16, device="cuda"),
    "randn": lambda: torch.randn(1 << 16, device="cuda"),
    "a sum": lambda: torch.arange(1 << 16, device="cuda") + 1,
}
for name, make in MAKERS.items():
    x = make() + 0
    expected = x.cpu()
    y = x * 2
    states = [torch.cuda.get_rng_state(device) for device in (0, 1)]
    made = make()
    copy = made.cpu()
    later = [torch.cuda.get_rng_state(device) for device in (0, 1)]
    torch.cuda.set_device(0)
    for tensor in (x, y, made):
        assert tensor.device.index == 1
        assert dtr_alloc.evict(tensor), name
    assert torch.equal(y.cpu(), expected * 2), name
    assert torch.equal(x.cpu(), expected), name
    assert torch.equal(made.cpu(), copy), name
    assert made.device.index == 1, name
    for device in (0, 1):
        assert torch.equal(torch.cuda.get_rng_state(device), later[device]), name
    torch.cuda.set_device(1)
"""


def test_what_was_made_on_the_current_device_is_made_there_again(machine):
    assert machine.run(OTHER_DEVICE, budget="64MiB", devices=2).stats["rematerializations"] > 0
