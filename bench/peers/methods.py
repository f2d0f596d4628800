"""What a user would edit into a model to save memory, each as an edit of a job that was built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from bench.models import Job
from bench.peers.jobs import SUBJECTS, LongLstm, Subject, TreeJob

aten = torch.ops.aten
SAVED = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""What selective checkpointing saves: matrix products, convolutions and attention."""
selective = partial(create_selective_checkpoint_contexts, SAVED)


@dataclass(frozen=True)
class Method:
    """An edit.

    Attributes:
        edit: changes a job after it was built.
        lines: how many lines of the model a user adds or changes at least, imports included; 0:
            that depends on the model.
        text: what they are.
    """

    edit: Callable[[Subject, Any], None]
    lines: int
    text: str

    def lines_in(self, subject: Subject) -> int:
        """How many lines of this model; 0: the method does not suit it."""
        return self.lines or subject.segment_lines


def blocks(subject: Subject, job: Any, every: int = 1, **options: Any) -> None:
    """Every so many calls of blocks are checkpointed, the first one included."""
    number = count()

    def wrapped(forward: Any, *inputs: Any, **named: Any) -> Any:
        if next(number) % every:
            return forward(*inputs, **named)
        # A list may grow before the block is computed again.
        kept = [list(value) if isinstance(value, list) else value for value in inputs]
        return checkpoint(forward, *kept, use_reentrant=False, **options, **named)

    for block in subject.blocks(job):
        block.forward = partial(wrapped, block.forward)


def segments(subject: Subject, job: Any) -> None:
    """As many segments as the root of the number of blocks."""
    if subject.kind is LongLstm:
        job.train = partial(lstm_by_segments, job, math.isqrt(job.STEPS))
    elif subject.kind is TreeJob:
        job.embed = partial(subtrees, job, math.isqrt(job.LEAVES))
    else:
        found = subject.blocks(job)
        (sequence,) = (each for each in job.model.children() if [*each.children()] == found)
        parts = math.isqrt(len(found))
        sequence.forward = partial(checkpoint_sequential, sequence, parts, use_reentrant=False)


def lstm_by_segments(job: Any, length: int, i: int) -> Tensor:
    """A training step of LongLstm, with segments of so many steps of the cell checkpointed."""

    def segment(xs: Tensor, h: Tensor, c: Tensor, loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for now, after in pairwise(xs):
            h, c = job.cell(now, h, c)
            loss = loss + F.mse_loss(job.head(h), after)
        return h, c, loss

    job.optimizers["adam"].zero_grad()
    h = torch.zeros(job.x.shape[1], job.head.in_features)
    c, loss = torch.zeros_like(h), torch.zeros(())
    for at in range(0, job.STEPS, length):
        xs = job.x[at : at + length + 1]
        h, c, loss = checkpoint(segment, xs, h, c, loss, use_reentrant=False)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(job.parameters, 1.0)
    job.optimizers["adam"].step()
    return loss


def subtrees(job: Any, most: int, words: Tensor, weights: Tensor) -> Any:
    """The state of a tree, with the largest subtrees of so many leaves or fewer checkpointed."""

    def whole(words: Tensor, weights: Tensor) -> Any:
        before, job.embed = job.embed, partial(TreeJob.embed, job)
        try:
            return job.embed(words, weights)
        finally:
            job.embed = before

    if 1 < len(words) <= most:
        return checkpoint(whole, words, weights, use_reentrant=False)
    return TreeJob.embed(job, words, weights)


def compiled(subject: Subject, job: Any, budget: float = 1.0) -> None:
    """Graphs whose saved tensors AOT autograd chooses, run by PyTorch's own kernels."""
    torch._functorch.config.activation_memory_budget = budget
    subject.compiled(job).compile(backend="aot_eager")


METHODS = {
    "checkpoint, each block": Method(blocks, 2, "an import, and the call of a block"),
    "checkpoint, every second": Method(
        partial(blocks, every=2), 4, "an import, and a condition at the call of a block"
    ),
    "checkpoint, √N segments": Method(
        segments, 0, "an import, and the call of a sequence of blocks; else a loop over segments"
    ),
    "selective checkpoint": Method(
        partial(blocks, context_fn=selective), 8, "imports, a list of operators, the call"
    ),
    "compiled": Method(compiled, 1, "a call of compile()"),
    "compiled, budget 0.5": Method(partial(compiled, budget=0.5), 3, "an import, that, a setting"),
    "compiled, budget 0.2": Method(partial(compiled, budget=0.2), 3, "an import, that, a setting"),
}


def build(name: str, method: str, scale: float) -> Job:
    """A job, edited by a method if there is one."""
    subject = SUBJECTS[name]
    job = subject.kind(scale=scale)
    if method:
        METHODS[method].edit(subject, job)
    return job
