"""The jobs that are compared: large enough that a step tells something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.models.densenet import DenseNetJob
from bench.models.job import Job
from bench.models.lstm import UnrolledLstm
from bench.models.moe import MoeJob
from bench.models.resnet import ResNetJob
from bench.models.transformer import Gpt, TransformerJob
from bench.models.treelstm import TreeLstmJob
from bench.models.unet import UNetJob


class GptJob(TransformerJob):
    """A GPT of eight blocks of width 128."""

    VOCABULARY, TOKENS, BATCH = 512, 128, 1

    def build(self) -> None:
        gpt = Gpt(self.VOCABULARY, self.TOKENS, width=128, heads=4, layers=8, dropout=0.1)
        self.model = self.add_module("gpt", gpt)
        self.optimizers["adamw"] = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)


class LongLstm(UnrolledLstm):
    """A cell unrolled over 200 steps."""

    STEPS = 200


class TreeJob(TreeLstmJob):
    """Trees of 33 leaves."""

    LEAVES = 33


@dataclass(frozen=True)
class Subject:
    """A job, and what a user would checkpoint in it.

    Attributes:
        scale: of the batch; 1 is tiny.
        blocks: modules that are called once or many times in a step.
        compiled: what he would compile.
        segment_lines: what methods.segments would edit, the import included; 0: there is no way.
    """

    kind: Callable[..., Job]
    scale: float
    blocks: Callable[[Any], list[nn.Module]]
    compiled: Callable[[Any], nn.Module]
    segment_lines: int = 0


def _model(job: Any) -> nn.Module:
    return job.model


def _cell(job: Any) -> nn.Module:
    return job.cell


SUBJECTS = {
    "gpt": Subject(GptJob, 6, lambda job: [*job.model.blocks], _model, 2),
    "resnet": Subject(ResNetJob, 16, lambda job: [*job.model.stages], _model, 2),
    "densenet": Subject(
        DenseNetJob, 8, lambda job: [layer for b in job.model.blocks for layer in b], _model
    ),
    "unet": Subject(UNetJob, 16, lambda job: [*job.model.down, *job.model.merge], _model),
    "lstm": Subject(LongLstm, 4, lambda job: [job.cell], _cell, 10),
    "treelstm": Subject(TreeJob, 24, lambda job: [job.cell], _cell, 10),
    "moe": Subject(MoeJob, 24, lambda job: [*job.model.blocks], _model, 2),
}
