"""CUDA graphs and private memory pools, next to work that is evicted.

A launch does again what the operators did that were captured, on the same addresses: a graph
whose memory was given to others, or that missed an operator, computes other bits.
"""

from __future__ import annotations

TRAINING = """
import hashlib
import torch
from torch import nn
torch.manual_seed(0)
parts = [part for _ in range(4) for part in (nn.Linear(128, 128), nn.GELU())]
model = nn.Sequential(*parts).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = torch.randn(2, 256, 128, device="cuda").unbind()

def step():
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad()
        step()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
base = torch.randn(256, 128, device="cuda")
for _ in range(5):
    x.copy_(torch.randn(256, 128))
    y.copy_(torch.randn(256, 128))
    graph.replay()
    beside = [base * index for index in range(40)]  # 5 MiB
    print(loss.item(), sum(float(part.sum()) for part in beside))
found = hashlib.sha256()
for parameter in model.parameters():
    found.update(parameter.detach().cpu().numpy().tobytes())
print(found.hexdigest())
"""


def test_a_captured_training_step_computes_the_same_bits_beside_evictions(machine):
    expected = machine.run(TRAINING)
    for budget in ("8MiB", "5MiB"):
        run = machine.run(TRAINING, budget=budget)
        assert run.output == expected.output
        assert run.stats["evictions"] > 0


CALLABLES = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
sample = torch.randn(32, 64, device="cuda", requires_grad=True)
graphed = torch.cuda.make_graphed_callables(model, (sample,))
for index in range(3):
    out = graphed(torch.randn(32, 64, device="cuda") * index)
    beside = [torch.ones(1 << 18, device="cuda") * index for index in range(12)]  # 12 MiB
    out.square().sum().backward()
    print(repr(out.sum().item()), repr(model[0].weight.grad.sum().item()))
    assert [int(part.mean()) for part in beside] == list(range(12))
"""


def test_graphed_callables_compute_the_same_bits(machine):
    expected = machine.run(CALLABLES)
    run = machine.run(CALLABLES, budget="8MiB")
    assert run.output == expected.output
    assert run.stats["evictions"] > 0


FORKED = """
import torch
x = torch.ones(64, device="cuda")
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph):
    y = x * 2
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = x * 3
    torch.cuda.current_stream().wait_stream(side)
    w = y + z
x.fill_(5)
graph.replay()
assert w.mean().item() == 25
"""


def test_a_graph_over_two_streams_is_captured_whole(machine):
    machine.run(FORKED, budget="8MiB")


GIVEN_BACK = """
import gc
import torch
x = torch.ones(1 << 18, device="cuda")
before = torch.cuda.memory_allocated()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
del y, graph
gc.collect()
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == before
kept = [x + index for index in range(5)]  # 6 MiB with x
assert [int(part.mean()) for part in kept] == list(range(1, 6))
"""


def test_the_memory_of_a_graph_that_is_gone_serves_others(machine):
    machine.run(GIVEN_BACK, budget="7MiB")


POOL = """
import gc
import torch
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    a = torch.ones(1 << 18, device="cuda")
    b = a + 1
others = [torch.ones(1 << 18, device="cuda") * index for index in range(12)]
assert [int(part.mean()) for part in others] == list(range(12))
assert b.mean().item() == 2
del a, b, pool, others
gc.collect()
assert torch.cuda.memory_allocated() == 0
"""


def test_a_memory_pool_of_the_job_is_not_evicted(machine):
    assert machine.run(POOL, budget="8MiB").stats["evictions"] > 0
