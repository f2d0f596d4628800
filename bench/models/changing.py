"""A GPT of which no two steps need be alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.models.transformer import TransformerJob


class ChangingJob(TransformerJob):
    """Each step draws its batch and its depth, and an evaluation comes before one in four."""

    def logits(self, ids: Tensor, depth: int) -> Tensor:
        gpt: Any = self.model
        places = torch.arange(ids.shape[1], device=ids.device)
        x = gpt.drop(gpt.token(ids) + gpt.position(places))
        return gpt.head(gpt.norm(gpt.blocks[:depth](x)))

    def train(self, i: int) -> Tensor:
        batch, depth, evaluates = (
            int(torch.randint(most, (), generator=self.generator))
            for most in (self.batch(self.BATCH), TransformerJob.LAYERS, 4)
        )
        ids = self.randint(self.VOCABULARY, batch + 1, self.TOKENS + 1)
        if evaluates == 0:
            with torch.no_grad():
                self.logits(ids[:, :-1], depth + 1)
        self.optimizers["adamw"].zero_grad()
        logits = self.logits(ids[:, :-1], depth + 1)
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self.optimizers["adamw"].step()
        return loss
