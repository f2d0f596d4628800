"""A job that already checkpoints by hand: rematerialization inside rematerialization."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bench.models.job import Job

WIDTH = 64


class Stage(nn.Module):
    """Linear, LayerNorm, GELU, dropout, `depth` times; x is (batch, width)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.1)
                )
                for _ in range(depth)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class CheckpointJob(Job):
    """Eight stages of six layers: five plain, two checkpointed, one with the reentrant kind."""

    def build(self) -> None:
        self.stages = [self.add_module(f"stage{k}", Stage(6)) for k in range(8)]
        self.head = self.add_module("head", nn.Linear(WIDTH, 10))
        parameters = [p for module in self.modules.values() for p in module.parameters()]
        self.optimizers["adamw"] = torch.optim.AdamW(parameters, lr=1e-3)
        self.x = self.randn(self.batch(256), WIDTH)
        self.y = self.randint(10, self.batch(256))

    def loss(self, i: int) -> Tensor:
        x = self.x + 0.01 * i
        for k, stage in enumerate(self.stages):
            if k in (2, 5):
                x = checkpoint(stage, x, use_reentrant=False)
            elif k == 6:
                x = checkpoint(stage, x, use_reentrant=True)
            else:
                x = stage(x)
        return F.cross_entropy(self.head(x), self.y)
