"""Jobs whose steps have many operators for what the device has to do, in bfloat16 by autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.gpu.shapes import Gpt2Medium, ShapedJob


class LlamaBlock(nn.Module):
    """Rotary attention and a gated MLP, normalized by root mean squares; x is (batch, tokens, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = self.norm1(x)
        heads = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part(y).view(heads).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (part * cos + part.roll(heads[-1] // 2, -1) * sin for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(ShapedJob):
    """32 layers of width 1024, 16 heads, 1024 tokens, fused AdamW."""

    BATCH, TOKENS, WIDTH, HEADS, LAYERS, VOCABULARY = 4, 1024, 1024, 16, 32, 32000

    def build(self) -> None:
        self.model = self.add_module(
            "llama",
            nn.ModuleDict(
                {
                    "token": nn.Embedding(self.VOCABULARY, self.WIDTH),
                    "blocks": nn.ModuleList(
                        LlamaBlock(self.WIDTH, self.HEADS) for _ in range(self.LAYERS)
                    ),
                    "norm": nn.RMSNorm(self.WIDTH),
                    "head": nn.Linear(self.WIDTH, self.VOCABULARY, bias=False),
                }
            ),
        )
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        shape = (self.batch(self.BATCH), self.TOKENS + 1)
        self.ids = torch.randint(self.VOCABULARY, shape, device=self.device)
        self.angles = torch.randn(self.TOKENS, self.WIDTH // self.HEADS, device=self.device)

    def train(self, i: int) -> Tensor:
        self.optimizers["adamw"].zero_grad()
        parts = self.modules["llama"]
        with self.autocast():
            cos, sin = self.angles.cos(), self.angles.sin()
            x = parts.token(self.ids[:, :-1])
            for block in parts.blocks:
                x = block(x, cos, sin)
            loss = F.cross_entropy(
                parts.head(parts.norm(x)).flatten(0, 1), self.ids[:, 1:].flatten()
            )
        loss.backward()
        self.optimizers["adamw"].step()
        return loss


class Bert(Gpt2Medium):
    """32 sequences of 128 tokens, 24 layers of width 1024: less to do for each operator."""

    BATCH, TOKENS, VOCABULARY = 32, 128, 30522


JOBS: dict[str, type[ShapedJob]] = {"gpt2_medium": Gpt2Medium, "llama": Llama, "bert": Bert}
