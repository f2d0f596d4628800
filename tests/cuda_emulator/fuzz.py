"""A random job over four streams that obeys the rules of PyTorch: ``python fuzz.py SEED STEPS``.

Whoever uses a tensor on another stream than that of its last write waits for that stream; whoever
drops it has either recorded the streams that used it, or lets its first stream wait for them.
"""

import hashlib
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

NUMBERS = 1 << 14  # 64 KiB a tensor
MOST = 60


@dataclass
class Item:
    tensor: Tensor
    first: Any  # the stream that it was made on
    written: Any
    waited: set[Any] = field(default_factory=set)  # streams to wait for before it is dropped


class Job:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        main = torch.cuda.current_stream()
        self.streams = [main, *(torch.cuda.Stream() for _ in range(3))]
        self.items = [Item(torch.randn(NUMBERS, device="cuda"), main, main) for _ in range(4)]
        self.digest = hashlib.sha256()

    def some(self) -> Item:
        return self.random.choice(self.items)

    def use(self, item: Item, stream: Any) -> None:
        if item.written is not stream:
            stream.wait_stream(item.written)
        if stream is item.first:
            return
        if self.random.random() < 0.5:
            item.tensor.record_stream(stream)
        else:
            item.waited.add(stream)

    def drop(self) -> None:
        item = self.items.pop(self.random.randrange(len(self.items)))
        for stream in item.waited:
            item.first.wait_stream(stream)

    def make(self, stream: Any) -> None:
        one, other = self.some(), self.some()
        self.use(one, stream)
        if other is not one:
            self.use(other, stream)
        a, b = one.tensor, other.tensor
        kind = self.random.randrange(5)
        if kind == 0:
            made = a * 0.5 + b
        elif kind == 1:
            made = F.dropout(a, 0.3)
        elif kind == 2:
            made = (a.view(128, 128) @ b.view(128, 128)).flatten().tanh()
        elif kind == 3:
            made = a - b.flip(0)
        else:
            made = torch.rand_like(a) + a * 0.1
        self.items.append(Item(made, stream, stream))

    def change(self, stream: Any) -> None:
        item = self.some()
        for other in self.streams:
            if other is not stream:
                stream.wait_stream(other)  # all readers
        if stream is not item.first:
            item.waited.add(stream)
        item.tensor.mul_(0.9).add_(0.1)
        item.written = stream

    def step(self) -> None:
        stream = self.random.choice(self.streams)
        kind = self.random.random()
        with torch.cuda.stream(stream):
            if kind < 0.62 or len(self.items) < 7:
                self.make(stream)
            elif kind < 0.75:
                self.change(stream)
            elif kind < 0.93:
                self.drop()
            else:
                item = self.some()
                self.use(item, stream)
                self.digest.update(repr(item.tensor.sum().item()).encode())
        while len(self.items) > MOST:
            self.drop()

    def finish(self) -> str:
        torch.cuda.synchronize()
        for item in self.items:
            self.digest.update(item.tensor.cpu().numpy().tobytes())
        return self.digest.hexdigest()


if __name__ == "__main__":
    job = Job(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        job.step()
    print(job.finish())
