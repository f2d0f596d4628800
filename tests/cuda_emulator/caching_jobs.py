"""Jobs on PyTorch's own caching allocator, which records what it does:
``python caching_jobs.py JOB OUT [FRACTION]``.

The history begins before the first allocation. OUT gets the snapshot, also if memory runs out. A
FRACTION is one for set_per_process_memory_fraction; 1 would be no limit at all.
"""

import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

MIB = 1 << 20


def requests(seed: int, live_bytes: int, count: int, largest: float) -> None:
    """Allocates and frees, mostly the youngest, some sizes over and over, on two streams.

    Sizes are up to 2**largest bytes.
    """
    draw = random.Random(seed)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    usual = [int(2 ** draw.uniform(9, 0.9 * largest)) for _ in range(24)]
    live: list[torch.Tensor] = []
    held = 0
    for _ in range(count):
        size = draw.choice(usual) if draw.random() < 0.6 else int(2 ** draw.uniform(0, largest))
        while live and (held + size > live_bytes or draw.random() < 0.5):
            young = draw.random() < 0.7
            gone = live.pop(-1 if young else draw.randrange(len(live)))
            held -= gone.numel()
            del gone
        with torch.cuda.stream(streams[draw.random() < 0.1]):
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        held += size


def train(steps: int) -> None:
    """An encoder on batches of changing length."""
    torch.manual_seed(0)
    draw = random.Random(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Linear(256, 512)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        length = draw.randrange(32, 160)
        x = torch.randn(8, length, 256).to("cuda")
        y = torch.randint(0, 512, (8 * length,)).to("cuda")
        loss = F.cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())


JOBS = {
    "brief": lambda: requests(4, 120 * MIB, 500, 25.0),
    "mixed": lambda: requests(2, 220 * MIB, 4000, 25.5),
    "large": lambda: requests(3, 400 * MIB, 2500, 27.0),
    "train": lambda: train(6),
}


def main(job: str, out: str, fraction: str = "") -> None:
    torch.cuda.memory._record_memory_history(max_entries=1 << 20, context=None, stacks="python")
    if fraction:
        torch.cuda.set_per_process_memory_fraction(float(fraction))
    try:
        JOBS[job]()
    except torch.OutOfMemoryError:
        print("out of memory")
    torch.cuda.memory._dump_snapshot(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
