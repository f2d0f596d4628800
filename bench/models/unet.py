"""An encoder and a decoder joined by skips that live across the whole forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Three 3x3 convolutions, each with group norm and SiLU."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU()]
        inputs = outputs
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Images (batch, 3, h, w) to maps (batch, 1, h, w); h and w divide by 2 ** (levels - 1)."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            double_conv(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.merge = nn.ModuleList(double_conv(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            if level:
                x = F.max_pool2d(x, 2)
            x = block(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


class UNetJob(Job):
    """Three levels on 32x32 images, predicting a map of pixels, RMSprop."""

    SIDE = 32

    def build(self) -> None:
        self.model = self.add_module("unet", UNet([8, 16, 32]))
        self.optimizers["rmsprop"] = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)
        self.x = self.randn(self.batch(6), 3, self.SIDE, self.SIDE)

    def loss(self, i: int) -> Tensor:
        x = self.x.roll(i, dims=0)
        target = (x.sum(1, keepdim=True) > 0).float()
        return F.binary_cross_entropy_with_logits(self.model(x), target)
