"""Small training jobs on "cuda" for the emulator: ``python jobs.py MODEL [STEPS]``.

Each prints its losses and a digest of the trained state and of the state of the CUDA generator,
so that two runs can be compared bit by bit.
"""

from __future__ import annotations

import hashlib
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = "cuda"
FACTS: dict[str, int] = globals().get("FACTS", {})
"""For start.py: ``resident_bytes``, what the job holds between two steps."""


def mlp() -> tuple[nn.Module, Tensor, Tensor]:
    layers: list[nn.Module] = [nn.Linear(32, 128)]
    for _ in range(10):
        layers += [nn.GELU(), nn.Linear(128, 128), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(128, 4))
    return model, torch.randn(512, 32), torch.randint(0, 4, (512,))


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)), inplace=True)))


def convnet() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), *(Block(16) for _ in range(3)), nn.MaxPool2d(2)),
        *(Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
    )
    return model, torch.randn(16, 3, 16, 16), torch.randint(0, 4, (16,))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=0.1 if self.training else 0.0, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, words: int = 64, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(32, width) * 0.02)
        self.layers = nn.Sequential(*(Attention(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.words(x) + self.places, 0.1, self.training)
        return (self.norm(self.layers(h)) @ self.words.weight.t()).flatten(0, 1)


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    tokens = torch.randint(0, 64, (8, 33))
    return Transformer(), tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def fused() -> tuple[nn.Module, Tensor, Tensor]:
    """The transformer with memory-efficient attention, whose dropout is inside the kernel."""
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.backends.cuda.enable_math_sdp(False)
    return transformer()


MODELS = {"mlp": mlp, "convnet": convnet, "transformer": transformer, "fused": fused}


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "mlp":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if name == "convnet":
        return torch.optim.Adam(model.parameters(), lr=1e-3)  # foreach
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def add(digest: hashlib._Hash, tensor: Tensor) -> None:
    digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())


def train(name: str, steps: int) -> None:
    torch.manual_seed(0)
    model, x, y = MODELS[name]()
    model, x, y = model.to(DEVICE), x.to(DEVICE), y.to(DEVICE)
    optimizer = optimizer_of(name, model)
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()))
    optimizer.zero_grad()
    del loss
    FACTS["resident_bytes"] = torch.cuda.memory_allocated()
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        add(digest, value)
    add(digest, torch.cuda.get_rng_state())
    print(digest.hexdigest())


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
