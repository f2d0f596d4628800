"""The demo's jobs: handwritten digits and Shakespeare's sonnets."""

from __future__ import annotations

from importlib import resources

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job, JobFactory
from bench.models.resnet import ResNet
from bench.models.transformer import Gpt


class Digits(Job):
    """A ResNet with batch norm on scikit-learn's 1797 digits of 8x8 pixels, enlarged to 16x16;
    SGD with momentum."""

    def build(self) -> None:
        # Imported here, so that the resident set of the other job is its own.
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.from_numpy(digits.images).float()[:, None] / 16
        self.images = F.interpolate(images, scale_factor=2.0, mode="bilinear").to(self.device)
        self.labels = torch.from_numpy(digits.target).to(self.device)
        self.model = self.add_module("resnet", ResNet(1, [8, 16, 32], blocks=5, classes=10))
        self.optimizers["sgd"] = torch.optim.SGD(
            self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
        )

    def loss(self, i: int) -> Tensor:
        rows = self.randint(len(self.labels), self.batch(320))
        return F.cross_entropy(self.model(self.images[rows]), self.labels[rows])


class Sonnets(Job):
    """A character-level GPT with dropout on the sonnets; AdamW, clipped gradients."""

    TOKENS = 96

    def build(self) -> None:
        text = resources.files("bench.demo").joinpath("data/sonnets.txt").read_text("utf-8")
        text = text[text.index("\n\n") + 2 :]  # behind the line on its origin
        alphabet = sorted(set(text))
        self.text = torch.tensor([alphabet.index(c) for c in text], device=self.device)
        gpt = Gpt(len(alphabet), self.TOKENS, width=96, heads=4, layers=6, dropout=0.1)
        self.model = self.add_module("gpt", gpt)
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def train(self, i: int) -> Tensor:
        starts = self.randint(len(self.text) - self.TOKENS - 1, self.batch(16))
        places = starts[:, None] + torch.arange(self.TOKENS + 1, device=self.device)
        ids = self.text[places]
        self.optimizers["adamw"].zero_grad()
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers["adamw"].step()
        return loss


JOBS: dict[str, JobFactory] = {"digits": Digits, "gpt": Sonnets}
