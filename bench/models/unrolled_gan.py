"""An unrolled GAN: the generator learns through updates of the discriminator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bench.models.job import Job

NOISE, WIDTH = 16, 48


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Four linear layers with softplus: smooth, so that second derivatives matter."""
    return nn.Sequential(
        *(nn.Linear(inputs, WIDTH), nn.Softplus(), nn.Linear(WIDTH, WIDTH), nn.Softplus()),
        *(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs)),
    )


class UnrolledGan(Job):
    """Five differentiable inner SGD steps of the discriminator in each generator step."""

    UNROLL, INNER_RATE = 5, 0.1

    def build(self) -> None:
        self.make = self.add_module("generator", perceptron(NOISE, 2))
        self.judge = self.add_module("discriminator", perceptron(2, 1))
        for name, module in self.modules.items():
            self.optimizers[name] = torch.optim.Adam(
                module.parameters(), lr=1e-3, betas=(0.5, 0.999)
            )

    def judge_loss(self, weights: dict[str, Tensor], real: Tensor, fake: Tensor) -> Tensor:
        """How badly a discriminator with these weights tells real from fake, both (batch, 2)."""
        on_real = functional_call(self.judge, weights, (real,))
        on_fake = functional_call(self.judge, weights, (fake,))
        return F.softplus(-on_real).mean() + F.softplus(on_fake).mean()

    def train(self, i: int) -> Tensor:
        size = self.batch(192)
        angle = self.randn(size)
        real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * self.randn(size, 2)
        fake = self.make(self.randn(size, NOISE))

        weights: dict[str, Tensor] = dict(self.judge.named_parameters())
        for _ in range(self.UNROLL):
            loss = self.judge_loss(weights, real, fake)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {
                name: weight - self.INNER_RATE * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
        generator_loss = -self.judge_loss(weights, real, fake)
        self.optimizers["generator"].zero_grad()
        generator_loss.backward()
        self.optimizers["generator"].step()

        self.optimizers["discriminator"].zero_grad()
        own = self.judge_loss(dict(self.judge.named_parameters()), real, fake.detach())
        own.backward()
        self.optimizers["discriminator"].step()
        return generator_loss
