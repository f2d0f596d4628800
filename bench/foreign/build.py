"""Builds a job by its name, in whatever process it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.foreign import chains, nets  # noqa: F401
from bench.foreign.job import JOBS, ForeignJob
from bench.peers import methods


def build(name: str, checkouts: dict[str, Path], edited: bool = False) -> ForeignJob:
    """The job, with each of its blocks checkpointed if it is edited. Raises Missing."""
    job = ForeignJob(name, checkouts)
    if edited:
        subject: Any = JOBS[name]
        methods.blocks(subject, job)
    return job
