"""A residual convolutional net with BatchNorm in training mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """What is added to a block's result: its input, projected where the shapes differ."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut; x is (batch, channels, h, w)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the image, average pooling, a linear head."""

    def __init__(self, inputs: int, widths: list[int], blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(inputs, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])
        )
        stages: list[nn.Module] = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stages.append(ResidualBlock(before, width, 2 if stage and not block else 1))
                before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) to logits (batch, classes)."""
        x = self.stages(F.relu(self.stem(x)))
        return self.head(x.mean((2, 3)))


class ResNetJob(Job):
    """14 residual blocks on 16x16 images, SGD with momentum."""

    BATCH, SIDE, BLOCKS, CLASSES = 16, 16, 7, 10

    def make(self) -> nn.Module:
        """The net: (batch, 3, SIDE, SIDE) to logits (batch, CLASSES)."""
        return ResNet(3, [8, 16], self.BLOCKS, self.CLASSES)

    def build(self) -> None:
        self.model = self.add_module("resnet", self.make())
        self.optimizers["sgd"] = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
        )
        self.x = self.randn(self.batch(self.BATCH), 3, self.SIDE, self.SIDE)
        self.y = self.randint(self.CLASSES, self.batch(self.BATCH))

    def loss(self, i: int) -> Tensor:
        return F.cross_entropy(self.model(self.x.roll(i, dims=3)), self.y)
