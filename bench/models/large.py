"""Two jobs whose tensors are as large as those of real ones: a GPT and a ResNet with bottlenecks.

Not in JOBS, which tests train: a step takes about a second of one core at scale 1.
"""

from __future__ import annotations

import torch

from bench.models.bottleneck import BottleneckNet
from bench.models.job import JobFactory
from bench.models.resnet import ResNetJob
from bench.models.transformer import Gpt, TransformerJob


class GptJob(TransformerJob):
    """A GPT-2 of eight layers and a vocabulary of 8,192. Its activations are of 0.75 to 3 MiB and
    its logits of 16 MiB."""

    VOCABULARY, TOKENS, BATCH = 8192, 256, 2

    def build(self) -> None:
        gpt = Gpt(self.VOCABULARY, self.TOKENS, width=384, heads=6, layers=8, dropout=0.1)
        self.model = self.add_module("gpt", gpt)
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=3e-4)


class ResNet50Job(ResNetJob):
    """A ResNet-50 on images of 64x64 pixels. Its activations are of 0.06 to 2 MiB."""

    BATCH, SIDE, CLASSES = 8, 64, 100

    def make(self) -> BottleneckNet:
        return BottleneckNet(64, (3, 4, 6, 3), self.CLASSES)


LARGE_JOBS: dict[str, JobFactory] = {"gpt2": GptJob, "resnet50": ResNet50Job}
