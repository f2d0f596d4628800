"""A GPT whose MLPs are mixtures of experts: how many tokens an expert gets depends on the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.models.transformer import Gpt, GptBlock, TransformerJob


class Experts(nn.Module):
    """Each token goes to the expert that a gate prefers; x is (tokens, width)."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(dim=1).max(dim=1)
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            tokens = (chosen == k).nonzero().squeeze(1)
            y = y.index_add(0, tokens, expert(x[tokens]))
        return weight.unsqueeze(1) * y


class MoeBlock(GptBlock):
    """Attention as in a GPT, and experts; x is (batch, tokens, width)."""

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__(width, heads, dropout=0.0)
        del self.fc1, self.fc2
        self.experts = Experts(width, experts)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.experts(self.norm2(x).flatten(0, 1)).view_as(x)


class MoeJob(TransformerJob):
    """Six blocks of four experts each."""

    VOCABULARY, TOKENS, BATCH, WIDTH, LAYERS = 512, 64, 1, 96, 6

    def build(self) -> None:
        gpt = Gpt(self.VOCABULARY, self.TOKENS, self.WIDTH, heads=4, layers=0, dropout=0.0)
        gpt.blocks = nn.Sequential(*(MoeBlock(self.WIDTH, 4, 4) for _ in range(self.LAYERS)))
        self.model = self.add_module("gpt", gpt)
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
