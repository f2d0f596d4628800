"""Trains a job of bench.suggest: `python -m bench.suggest_worker NAME SCALE STEPS`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn

from bench import models
from bench.frameworks import jobs
from bench.frameworks.jobs import DISTRIBUTED, Encoder, Found, OnStep, loop, texts


def encoder(steps: int, on_step: OnStep) -> Found:
    model, ids = Encoder(), texts(8, 96)
    return loop(model, lambda: model(ids), steps, on_step)


def encoder_decoder(steps: int, on_step: OnStep) -> Found:
    model = nn.Transformer(96, 4, 2, 2, 256, batch_first=True)
    source, target = torch.randn(8, 64, 96), torch.randn(8, 48, 96)
    return loop(model, lambda: model(source, target).square().mean(), steps, on_step)


OWN = {"PyTorch, TransformerEncoder": encoder, "PyTorch, Transformer": encoder_decoder}
COMPILED = ("compile, inductor",)
"""Its compiler takes longer than all else."""
FRAMEWORKS: dict[str, Callable[[int, OnStep], Found]] = OWN | {
    name: job
    for name, job in jobs.JOBS.items()
    if name not in DISTRIBUTED | dict.fromkeys(COMPILED)
}
"""Jobs that are not ours."""
NAMES = (*models.JOBS, *FRAMEWORKS)


def train(name: str, scale: float, steps: int, on_step: OnStep) -> None:
    """Raises ModuleNotFoundError where a job's framework is not installed."""
    torch.manual_seed(0)
    if name in FRAMEWORKS:
        FRAMEWORKS[name](steps, on_step)
        return
    job = models.JOBS[name](scale=scale)
    try:
        for i in range(steps):
            job.step(i)
            on_step()
    finally:
        job.drop_gradients()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), lambda: None)
