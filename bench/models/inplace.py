"""A net that mutates: in-place ops, views written through, aliases of one buffer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job

WIDTH = 64


class MutatingBlock(nn.Module):
    """(batch, width) to (batch, width), by way of mutations that autograd allows."""

    mean: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(width // 4))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        half = x.shape[1] // 2
        y = self.linear(x)
        y[:, :half].add_(x[:, half:])  # a slice, written through
        y.relu_()  # y's new version is saved for the backward pass
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)  # lives across steps

        z = y.clone()
        columns = z.t()  # an alias with other strides
        columns[: half // 2].mul_(0.5)
        columns[0] += columns[1].detach()
        z.index_put_((rows, rows.remainder(half)), y.new_full((len(rows),), 0.25))
        z.masked_fill_(y > 2.0, -0.5)

        swapped = torch.empty_like(z)
        swapped[:, :half].copy_(z[:, half:])
        swapped[:, half:] = z[:, :half]
        flat = swapped.view(-1)
        flat.sub_(0.01)
        swapped.narrow(1, 0, len(self.bias)).add_(self.bias)
        flat[:half].zero_()
        swapped.tanh_()
        return x.mul(0.7).add_(swapped)


class InplaceJob(Job):
    """Ten such blocks, SGD with momentum."""

    def build(self) -> None:
        self.blocks = [self.add_module(f"block{k}", MutatingBlock(WIDTH)) for k in range(10)]
        parameters = [p for block in self.blocks for p in block.parameters()]
        self.optimizers["sgd"] = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        self.x = self.randn(self.batch(384), WIDTH)
        self.rows = torch.arange(0, self.batch(384), 3, device=self.device)

    def loss(self, i: int) -> Tensor:
        self.x[i % len(self.x)].neg_()
        x = self.x.clone()
        for block in self.blocks:
            x = block(x, self.rows)
        return F.mse_loss(x[:, 1:], self.x[:, :-1])
