"""Two jobs whose tensors are as large as those of real ones: a GPT and a ResNet with bottlenecks.

Not in JOBS, which tests train: a step takes about a second of one core at scale 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job, JobFactory
from bench.models.transformer import Gpt


class GptJob(Job):
    """A GPT-2 of eight layers and a vocabulary of 8,192 on random tokens; AdamW, clipped gradients.
    Its activations are of 0.75 to 3 MiB and its logits of 16 MiB."""

    VOCABULARY, TOKENS = 8192, 256

    def build(self) -> None:
        gpt = Gpt(self.VOCABULARY, self.TOKENS, width=384, heads=6, layers=8, dropout=0.1)
        self.model = self.add_module("gpt", gpt)
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def train(self, i: int) -> Tensor:
        ids = self.randint(self.VOCABULARY, self.batch(2), self.TOKENS + 1)
        self.optimizers["adamw"].zero_grad()
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers["adamw"].step()
        return loss


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
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet50Job(Job):
    """A ResNet-50 on images of 64x64 pixels, SGD with momentum. Its activations are of 0.06 to
    2 MiB."""

    def build(self) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        inputs = 64
        for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
                inputs = 4 * width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100)]
        self.model = self.add_module("resnet50", nn.Sequential(*layers))
        self.optimizers["sgd"] = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
        )
        self.x = self.randn(self.batch(8), 3, 64, 64)
        self.y = self.randint(100, self.batch(8))

    def train(self, i: int) -> Tensor:
        self.optimizers["sgd"].zero_grad()
        loss = F.cross_entropy(self.model(self.x.roll(i, dims=3)), self.y)
        loss.backward()
        self.optimizers["sgd"].step()
        return loss


LARGE_JOBS: dict[str, JobFactory] = {"gpt2": GptJob, "resnet50": ResNet50Job}
