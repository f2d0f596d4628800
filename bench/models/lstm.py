"""Recurrent nets: a hand-unrolled cell, and ``nn.LSTM`` with several layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job

INPUTS, HIDDEN = 16, 32


class Cell(nn.Module):
    """One LSTM step; x is (batch, inputs), h and c are (batch, hidden)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class UnrolledLstm(Job):
    """A cell unrolled over 40 steps, Adam, clipped gradients."""

    STEPS = 40

    def build(self) -> None:
        self.cell = self.add_module("cell", Cell(INPUTS, HIDDEN))
        self.head = self.add_module("head", nn.Linear(HIDDEN, INPUTS))
        self.parameters = [*self.cell.parameters(), *self.head.parameters()]
        self.optimizers["adam"] = torch.optim.Adam(self.parameters, lr=1e-2)
        self.x = self.randn(self.STEPS + 1, self.batch(128), INPUTS)

    def train(self, i: int) -> Tensor:
        self.optimizers["adam"].zero_grad()
        h = torch.zeros(self.x.shape[1], HIDDEN, device=self.device)
        c = torch.zeros_like(h)
        loss = torch.zeros((), device=self.device)
        for now, after in zip(self.x[:-1], self.x[1:], strict=True):
            h, c = self.cell(now, h, c)
            loss = loss + F.mse_loss(self.head(h), after)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizers["adam"].step()
        return loss


class LstmModule(Job):
    """Six layers of ``nn.LSTM`` with dropout between them, SGD with momentum."""

    def build(self) -> None:
        self.lstm = self.add_module("lstm", nn.LSTM(INPUTS, HIDDEN, num_layers=6, dropout=0.1))
        self.head = self.add_module("head", nn.Linear(HIDDEN, INPUTS))
        parameters = [*self.lstm.parameters(), *self.head.parameters()]
        self.optimizers["sgd"] = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        self.x = self.randn(17, self.batch(96), INPUTS)

    def loss(self, i: int) -> Tensor:
        outputs, _ = self.lstm(self.x[:-1])
        return F.smooth_l1_loss(self.head(outputs), self.x[1:])
