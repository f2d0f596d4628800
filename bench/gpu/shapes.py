"""The jobs whose steps are timed, in the shapes of real training, and as small as can be.

Mixed precision in bfloat16 by autocast, as such jobs are trained; data stay on the device. A step
does not wait for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.bottleneck import BottleneckNet
from bench.models.job import Job
from bench.models.transformer import Gpt
from bench.models.unet import UNet


def channels_last(module: nn.Module) -> nn.Module:
    """The module, with its parameters of four dimensions in this layout."""
    to: Any = module.to  # whose annotations do not know the argument
    moved: nn.Module = to(memory_format=torch.channels_last)
    return moved


class ShapedJob(Job):
    """A job whose data are drawn on its device, once."""

    BATCH = 1

    def images(self, side: int) -> Tensor:
        """A batch of images (batch, 3, side, side), channels last."""
        shape = (self.batch(self.BATCH), 3, side, side)
        return torch.randn(shape, device=self.device).to(memory_format=torch.channels_last)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


class ResNet50(ShapedJob):
    """ResNet-50 on 224x224 images, SGD with momentum, channels last."""

    BATCH, SIDE, WIDTH, CLASSES = 256, 224, 64, 1000
    BLOCKS: tuple[int, ...] = (3, 4, 6, 3)

    def build(self) -> None:
        model = channels_last(BottleneckNet(self.WIDTH, self.BLOCKS, self.CLASSES))
        self.model = self.add_module("resnet50", model)
        self.optimizers["sgd"] = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
        )
        self.x = self.images(self.SIDE)
        self.y = torch.randint(self.CLASSES, (self.batch(self.BATCH),), device=self.device)

    def loss(self, i: int) -> Tensor:
        with self.autocast():
            return F.cross_entropy(self.model(self.x), self.y)


class TinyResNet50(ResNet50):
    BATCH, SIDE, WIDTH, CLASSES = 32, 32, 8, 10
    BLOCKS = (3, 3)


class Gpt2Medium(ShapedJob):
    """24 layers of width 1024, 16 heads, 1024 tokens, fused AdamW."""

    BATCH, TOKENS, WIDTH, HEADS, LAYERS, VOCABULARY = 6, 1024, 1024, 16, 24, 50304

    def build(self) -> None:
        self.model = self.add_module("model", self.make_model())
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        shape = (self.batch(self.BATCH), self.TOKENS + 1)
        self.ids = torch.randint(self.VOCABULARY, shape, device=self.device)

    def make_model(self) -> nn.Module:
        return Gpt(self.VOCABULARY, self.TOKENS, self.WIDTH, self.HEADS, self.LAYERS, dropout=0.1)

    def train(self, i: int) -> Tensor:
        self.optimizers["adamw"].zero_grad()
        with self.autocast():
            logits = self.model(self.ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()
        self.optimizers["adamw"].step()
        return loss


class TinyGpt2(Gpt2Medium):
    BATCH, TOKENS, WIDTH, HEADS, LAYERS, VOCABULARY = 16, 16, 32, 2, 3, 64


class LargeUNet(ShapedJob):
    """Five levels from 64 to 1024 channels on 256x256 images, RMSprop."""

    BATCH, SIDE = 12, 256
    WIDTHS: tuple[int, ...] = (64, 128, 256, 512, 1024)

    def build(self) -> None:
        self.model = self.add_module("unet", channels_last(UNet(list(self.WIDTHS))))
        self.optimizers["rmsprop"] = torch.optim.RMSprop(self.model.parameters(), lr=1e-4)
        self.x = self.images(self.SIDE)
        self.y = (self.x.sum(1, keepdim=True) > 0).float()

    def loss(self, i: int) -> Tensor:
        with self.autocast():
            return F.binary_cross_entropy_with_logits(self.model(self.x), self.y)


class TinyUNet(LargeUNet):
    BATCH, SIDE = 16, 32
    WIDTHS = (8, 16, 32)


SHAPES: dict[str, tuple[type[ShapedJob], type[ShapedJob]]] = {
    "resnet50": (ResNet50, TinyResNet50),
    "gpt2_medium": (Gpt2Medium, TinyGpt2),
    "unet": (LargeUNet, TinyUNet),
}
"""By name: the real shape, and the tiny one."""


def jobs(tiny: str | None) -> list[str]:
    """The names of all; of one alone, where sizes are tiny anyway."""
    return list(SHAPES) if tiny is None else [tiny]
