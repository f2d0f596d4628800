"""A GPT whose attention is a custom operator, which keeps its probabilities for its backward pass,
as attention that is not fused does: most of what the steps need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.models.transformer import GptBlock, TransformerJob

OPERATORS = "dtr_bench"


@torch.library.custom_op(f"{OPERATORS}::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the probabilities (batch, heads, tokens, tokens) for the backward pass."""
    tokens = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    probabilities = scores.masked_fill_(future, float("-inf")).softmax(-1)
    return probabilities @ v, probabilities


@torch.library.custom_op(f"{OPERATORS}::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, probabilities: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    inner = grad @ v.transpose(-1, -2)
    scores = torch.ops.aten._softmax_backward_data(inner, probabilities, -1, q.dtype)
    scores = scores / q.shape[-1] ** 0.5
    return scores @ k, scores.transpose(-1, -2) @ q, probabilities.transpose(-1, -2) @ grad


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
    return attention_backward(grad, *ctx.saved_tensors)


attention.register_autograd(_backward, setup_context=_keep)


class Block(GptBlock):
    """With the operator for its attention."""

    attention = staticmethod(attention)

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.proj(self.attention(q, k, v)[0].transpose(1, 2).reshape(batch, tokens, width))


class CustomGpt(TransformerJob):
    """A GPT with long sequences."""

    TOKENS = 192

    def build(self) -> None:
        super().build()
        for block in self.model.get_submodule("blocks").children():
            block.__class__ = Block
