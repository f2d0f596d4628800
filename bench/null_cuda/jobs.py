"""Jobs whose steps have many operators for what the device has to do, in bfloat16 by autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.gpu.shapes import Gpt2Medium, LargeUNet, ResNet50, ShapedJob
from bench.models.custom_attention import Block


class LlamaBlock(nn.Module):
    """Rotary attention and a gated MLP, each after a norm; x is (batch, tokens, width)."""

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


class LlamaModel(nn.Module):
    """Token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""

    angles: Tensor

    def __init__(self, vocabulary: int, tokens: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("angles", torch.empty(tokens, width // heads))

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = torch.cos(self.angles), torch.sin(self.angles)
        x = self.token(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class Llama(Gpt2Medium):
    """32 layers of width 1024, 16 heads, 1024 tokens, fused AdamW."""

    BATCH, LAYERS, VOCABULARY = 4, 32, 32000

    def make_model(self) -> nn.Module:
        return LlamaModel(self.VOCABULARY, self.TOKENS, self.WIDTH, self.HEADS, self.LAYERS)


class Bert(Gpt2Medium):
    """32 sequences of 128 tokens, 24 layers of width 1024: less to do for each operator."""

    BATCH, TOKENS, VOCABULARY = 32, 128, 30522


@torch.library.custom_op("null_cuda::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """FlashAttention as a library gives it: the output, and the log of the summed exponents."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2]


@torch.library.custom_op("null_cuda::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, summed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, output, summed, None, None, q.shape[-2], k.shape[-2], 0.0, True, None, None
    )


attention.register_autograd(
    lambda ctx, grad, _: attention_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
)


class CustomBlock(Block):
    attention = staticmethod(attention)


class CustomGpt2(Gpt2Medium):
    """GPT-2 medium whose attention is a custom operator."""

    def make_model(self) -> nn.Module:
        model = super().make_model()
        for block in model.get_submodule("blocks").children():
            block.__class__ = CustomBlock
        return model


class Float16(ShapedJob):
    """In float16, without a scale: what is here of cuDNN takes no bfloat16."""

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.float16)


class HalfResNet50(Float16, ResNet50):
    pass


class HalfUNet(Float16, LargeUNet):
    pass


JOBS: dict[str, type[ShapedJob]] = {
    "gpt2_medium": Gpt2Medium,
    "llama": Llama,
    "bert": Bert,
    "gpt2_custom": CustomGpt2,
    "resnet50": HalfResNet50,
    "unet": HalfUNet,
}
