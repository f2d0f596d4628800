"""The job behind the snapshots of this folder: job.py OUT MAX_ENTRIES. Needs CUDA."""

import contextlib
import sys

import torch

out, max_entries = sys.argv[1], int(sys.argv[2])
early = [torch.ones(300_000, device="cuda") for _ in range(3)]
dead = torch.ones(5_000_000, device="cuda")
torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python")


def train(model, optimizer, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(512, 64).cuda()
del dead
for _ in range(2):
    train(model, optimizer, x)
side = torch.cuda.Stream()
y = torch.ones(1_000_000, device="cuda")
with torch.cuda.stream(side):
    z = y * 2
    y.record_stream(side)
del y  # not free before the side stream is done
w = torch.ones(700_000, device="cuda")
with contextlib.suppress(torch.OutOfMemoryError):
    torch.empty(1 << 40, device="cuda")
torch.cuda.empty_cache()
if torch.cuda.device_count() > 1:
    v = torch.ones(1000, device="cuda:1")
torch.cuda.memory._dump_snapshot(out)
