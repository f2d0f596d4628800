"""A GPT: dropout, causal attention by ``scaled_dot_product_attention``, tied to nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job


class GptBlock(nn.Module):
    """Pre-norm attention and MLP with dropout; x is (batch, tokens, width)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attend(self.norm1(x)), self.dropout, self.training)
        y = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + F.dropout(y, self.dropout, self.training)


class Gpt(nn.Module):
    """Token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(
        self, vocabulary: int, tokens: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(GptBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.token(ids) + self.position(places))
        return self.head(self.norm(self.blocks(x)))


class TransformerJob(Job):
    """A six-layer GPT on random tokens, fused AdamW, clipped gradients."""

    VOCABULARY, TOKENS, BATCH, LAYERS = 48, 48, 8, 6

    def build(self) -> None:
        gpt = Gpt(self.VOCABULARY, self.TOKENS, width=48, heads=3, layers=self.LAYERS, dropout=0.1)
        self.model = self.add_module("gpt", gpt)
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)

    def train(self, i: int) -> Tensor:
        ids = self.randint(self.VOCABULARY, self.batch(self.BATCH), self.TOKENS + 1)
        self.optimizers["adamw"].zero_grad()
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers["adamw"].step()
        return loss
