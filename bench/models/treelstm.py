"""A binary TreeLSTM over random trees: the program's shape depends on the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job

WIDTH = 32


class TreeCell(nn.Module):
    """Joins the states of two children; every state is (batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 5 * width)

    def forward(
        self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        (h_left, c_left), (h_right, c_right) = left, right
        gates = self.gates(torch.cat([h_left, h_right], 1)).chunk(5, dim=1)
        i, f_left, f_right, o = (torch.sigmoid(gate) for gate in gates[:4])
        c = i * torch.tanh(gates[4]) + f_left * c_left + f_right * c_right
        return o * torch.tanh(c), c


class TreeLstmJob(Job):
    """One random tree with 24 leaves a step; where it splits is read from a tensor."""

    LEAVES = 24

    def build(self) -> None:
        self.leaf = self.add_module("leaf", nn.Linear(WIDTH, 2 * WIDTH))
        self.cell = self.add_module("cell", TreeCell(WIDTH))
        self.head = self.add_module("head", nn.Linear(WIDTH, 5))
        parameters = [p for module in self.modules.values() for p in module.parameters()]
        self.optimizers["adagrad"] = torch.optim.Adagrad(parameters, lr=0.02)

    def embed(self, words: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The state of the tree over `words` (leaves, batch, width); the leaf with the largest
        weight opens the right half."""
        if len(words) == 1:
            h, c = self.leaf(words[0]).chunk(2, dim=1)
            return torch.tanh(h), c
        split = 1 + int(weights[1:].argmax())
        left = self.embed(words[:split], weights[:split])
        return self.cell(left, self.embed(words[split:], weights[split:]))

    def loss(self, i: int) -> Tensor:
        words = self.randn(self.LEAVES, self.batch(128), WIDTH)
        labels = self.randint(5, self.batch(128))
        h, _ = self.embed(words, self.randn(self.LEAVES))
        return F.cross_entropy(self.head(h), labels)
