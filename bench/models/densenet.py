"""A net whose every layer reads the concatenation of all layers before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job


class DenseLayer(nn.Module):
    """BatchNorm, ReLU, 3x3 convolution to `growth` channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.conv(F.relu(self.norm(torch.cat(features, 1))))


class DenseNet(nn.Module):
    """Dense blocks with 1x1 convolutions and average pooling between them."""

    def __init__(self, growth: int, layers: int, blocks: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        self.transitions = nn.ModuleList()
        for _ in range(blocks):
            block = nn.ModuleList(DenseLayer(channels + k * growth, growth) for k in range(layers))
            self.blocks.append(block)
            self.transitions.append(nn.Conv2d(channels + layers * growth, channels, 1, bias=False))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, h, w) to logits (batch, 10)."""
        x = self.stem(x)
        for block, transition in zip(self.blocks, self.transitions, strict=True):
            features = [x]
            for layer in block:  # type: ignore[attr-defined]
                features.append(layer(features))
            x = F.avg_pool2d(transition(torch.cat(features, 1)), 2)
        return self.head(x.mean((2, 3)))


class DenseNetJob(Job):
    """Two dense blocks of eight layers on 16x16 images, Adam."""

    def build(self) -> None:
        self.model = self.add_module("densenet", DenseNet(growth=4, layers=8, blocks=2))
        self.optimizers["adam"] = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.x = self.randn(self.batch(24), 3, 16, 16)
        self.y = self.randint(10, self.batch(24))

    def loss(self, i: int) -> Tensor:
        return F.cross_entropy(self.model(self.x + 0.05 * i), self.y)
