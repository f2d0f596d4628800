"""Residual MLPs with LayerNorm and GELU: plain, accumulating gradients, under autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job

WIDTH = 64


class Block(nn.Module):
    """x + GELU(Linear(LayerNorm(x))); x is (batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


def mlp(depth: int, width: int = WIDTH, classes: int = 10) -> nn.Sequential:
    """A residual MLP of `depth` blocks with a linear head: (batch, width) to (batch, classes)."""
    return nn.Sequential(*(Block(width) for _ in range(depth)), nn.Linear(width, classes))


class Mlp(Job):
    """30 blocks, AdamW with its foreach implementation, data made by the step."""

    def build(self) -> None:
        self.model = self.add_module("mlp", mlp(30))
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)

    def train(self, i: int) -> Tensor:
        x = self.randn(self.batch(384), WIDTH)
        y = self.randint(10, self.batch(384))
        self.optimizers["adamw"].zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizers["adamw"].step()
        return loss


class Accumulation(Job):
    """Four micro-batches a step add into the same gradients; a norm is clipped."""

    MICRO_BATCHES = 4

    def build(self) -> None:
        self.model = self.add_module("mlp", mlp(24))
        self.optimizers["sgd"] = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, nesterov=True
        )
        self.x = self.randn(self.MICRO_BATCHES, self.batch(256), WIDTH)
        self.y = self.randint(10, self.MICRO_BATCHES, self.batch(256))

    def train(self, i: int) -> Tensor:
        self.optimizers["sgd"].zero_grad()
        total = torch.zeros((), device=self.device)
        for x, y in zip(self.x, self.y, strict=True):
            loss = F.cross_entropy(self.model(x + 0.1 * i), y) / self.MICRO_BATCHES
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers["sgd"].step()
        return total


class Autocast(Job):
    """The MLP with bfloat16 autocast: casts and a cast cache between master weights and ops."""

    def build(self) -> None:
        self.model = self.add_module("mlp", mlp(30))
        self.optimizers["adam"] = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.x = self.randn(self.batch(384), WIDTH)
        self.y = self.randint(10, self.batch(384))

    def loss(self, i: int) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return F.cross_entropy(self.model(self.x), self.y)
