"""How a job of foreign code is declared, and how that code is found."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from bench.models.job import Job

Loss = Callable[[int], Tensor]
"""Of a step. A result that needs no gradient says that the step trained already."""
CHECKOUTS = {
    "torchbench": "https://github.com/pytorch/benchmark",
    "examples": "https://github.com/pytorch/examples",
}
"""Repositories without a package; a user names a checkout of each."""
PACKAGE = "foreign_checkout"
"""Under which modules of a checkout are imported."""


@dataclass(frozen=True)
class Subject:
    """A job of JOBS.

    Attributes:
        make: builds the models into a job, and returns the loss of a step.
        source: a package's module, or a name of CHECKOUTS.
        path: of the model in the checkout.
        chain: whether each step of the computation needs the one before, over many steps.
        blocks: the modules that a user would checkpoint; none if they are not obvious.
    """

    make: Callable[[ForeignJob], Loss]
    source: str
    path: str
    chain: bool
    blocks: Callable[[ForeignJob], Iterable[nn.Module]] | None


JOBS: dict[str, Subject] = {}


def foreign(
    source: str,
    path: str = "",
    *,
    chain: bool = False,
    blocks: Callable[[Any], Iterable[nn.Module]] | None = None,
) -> Callable[[Callable[[ForeignJob], Loss]], Callable[[ForeignJob], Loss]]:
    """Adds a function to JOBS, under its name."""

    def add(make: Callable[[ForeignJob], Loss]) -> Callable[[ForeignJob], Loss]:
        of_job = blocks and (lambda job: blocks(job.modules["model"]))
        JOBS[make.__name__] = Subject(make, source, path, chain, of_job)
        return make

    return add


class Missing(Exception):
    """The package or checkout of a job is not there."""


class ForeignJob(Job):
    """A job of JOBS. Its optimizer is AdamW unless the job has its own."""

    def __init__(self, name: str, checkouts: Mapping[str, Path], **options: Any) -> None:
        self._subject, self._checkouts = JOBS[name], checkouts
        super().__init__(**options)

    def build(self) -> None:
        self._loss = self._subject.make(self)
        if not self.optimizers:
            parameters = [p for each in self.modules.values() for p in each.parameters()]
            self.optimizers["adamw"] = torch.optim.AdamW(parameters, lr=1e-4)

    def train(self, i: int) -> Tensor:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = self._loss(i)
        if loss.requires_grad:
            loss.backward()
            for optimizer in self.optimizers.values():
                optimizer.step()
        return loss

    def package(self, name: str, unused: Iterable[str] = ()) -> ModuleType:
        """A module of an installed package. Modules that it imports, and that the job has no use
        for, may be `unused`: they need not be there. Raises Missing."""
        for each in unused:
            sys.modules.setdefault(each, MagicMock(__spec__=ModuleSpec(each, None)))
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise Missing(f"{name} cannot be imported: {error}") from error

    def checkout(self, module: str, unused: Iterable[str] = ()) -> ModuleType:
        """A module below the job's path in its checkout, without what the packages above it import;
        `unused` and errors as those of package()."""
        source, path = self._subject.source, self._subject.path
        if source not in self._checkouts:
            raise Missing(f"needs --checkout {source}=PATH, a checkout of {CHECKOUTS[source]}")
        folder = self._checkouts[source] / path
        if not folder.is_dir():
            raise Missing(f"{folder} is not a folder")
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(folder)]
        sys.modules[PACKAGE] = package
        # For modules that import their neighbours by absolute names.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return self.package(f"{PACKAGE}.{module}", unused)
