"""Small models of two well-known libraries, from their configurations: nothing is downloaded."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.job import Job, JobFactory


class CausalModel(Job):
    """A causal language model of transformers on random tokens, fused AdamW, dropout where the
    model has it."""

    VOCABULARY, TOKENS, BATCH = 512, 128, 8

    @abstractmethod
    def make(self) -> nn.Module:
        """The model."""

    def build(self) -> None:
        self.model = self.add_module("model", self.make())
        self.model.train()
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)

    def train(self, i: int) -> Tensor:
        ids = self.randint(self.VOCABULARY, self.batch(self.BATCH), self.TOKENS)
        self.optimizers["adamw"].zero_grad()
        loss: Tensor = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        self.optimizers["adamw"].step()
        return loss


class Gpt2(CausalModel):
    def make(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        size = {"n_embd": 128, "n_layer": 6, "n_head": 4, "n_positions": self.TOKENS}
        return GPT2LMHeadModel(GPT2Config(vocab_size=self.VOCABULARY, **size))


class Llama(CausalModel):
    def make(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        size = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=self.VOCABULARY, **size, **heads))


class TimmResNet(Job):
    """timm's resnet26 on random images, SGD with momentum."""

    SIDE, BATCH, CLASSES = 64, 16, 10

    def build(self) -> None:
        import timm

        model = timm.create_model("resnet26", pretrained=False, num_classes=self.CLASSES)
        self.model = self.add_module("model", model)
        self.model.train()
        self.optimizers["sgd"] = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.x = self.randn(self.batch(self.BATCH), 3, self.SIDE, self.SIDE)
        self.y = self.randint(self.CLASSES, self.batch(self.BATCH))

    def train(self, i: int) -> Tensor:
        self.optimizers["sgd"].zero_grad()
        loss = F.cross_entropy(self.model(self.x.roll(i, dims=3)), self.y)
        loss.backward()
        self.optimizers["sgd"].step()
        return loss


LIBRARY_JOBS: dict[str, tuple[str, JobFactory]] = {
    "transformers_gpt2": ("transformers", Gpt2),
    "transformers_llama": ("transformers", Llama),
    "timm_resnet26": ("timm", TimmResNet),
}
"""By name: the module that has to be there, and the job."""


def missing(module: str) -> str | None:
    """Why a job of a library cannot run here."""
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed here"
    return None
