"""The residual net with bottlenecks that is known as ResNet-50."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.resnet import shortcut


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norm and a shortcut, of (batch, channels, h, w)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class BottleneckNet(nn.Module):
    """ResNet-50 where blocks are (3, 4, 6, 3) and width 64: 25.6 million parameters."""

    def __init__(self, width: int, blocks: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage and not block else 1
                stages.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 3, h, w) to logits (batch, classes)."""
        x = F.relu(self.bn(self.conv(x)), inplace=True)
        x = self.stages(F.max_pool2d(x, 3, 2, padding=1))
        return self.head(x.mean((2, 3)))
