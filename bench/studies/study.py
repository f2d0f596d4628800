"""What a study is: a name, what it reproduces, how it is computed, how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtr_alloc.simulation.executors import HERE, Failure, RunsFailed, Workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Document = dict[str, Any]
"""What a study found, as JSON can hold it."""


@dataclass(frozen=True)
class Options:
    """How a study is to be run.

    Attributes:
        smoke: a small part of it, in seconds, that shows that it works; its figures are not the
            study's.
        logs: the folder with the op logs that the DTR paper published (``*.log.xz``), or None.
        workers: what independent runs are spread over. Studies that measure a job run it on this
            machine in any case.
    """

    smoke: bool = False
    logs: Path | None = None
    workers: Workers = HERE


class Unavailable(RuntimeError):
    """A study lacks something on this machine: the message names it and says how to get it."""


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        title: one line that says what is shown.
        source: the paper and the section, figure or table that it reproduces, or "our own".
        compute: runs it. Raises Unavailable.
        draw: the pictures of a computed document, by their names; ``""`` is the study's one
            picture or its first. It reads the document only, so that pictures can be drawn again.
    """

    title: str
    source: str
    compute: Callable[[Options], Document]
    draw: Callable[[Document], Mapping[str, Figure]]


NAMES: tuple[str, ...] = (
    *("linear", "memory", "adversary", "sweep", "ablation"),
    *("schedule", "learned", "floor"),
)
"""The studies, each a module of this package, in the order in which the docs show them."""


def load(name: str) -> Study:
    """The study of that name. Raises ValueError if there is none."""
    if name not in NAMES:
        raise ValueError(f"there is no study {name!r}; allowed: {', '.join(NAMES)}")
    study: Study = import_module(f"bench.studies.{name}").STUDY
    return study


def results(
    workers: Workers, shared: Any, task: Callable[..., Any], calls: Mapping[str, Sequence[Any]]
) -> list[Any]:
    """The results of ``task(shared, *arguments)`` for all calls, in their order, by whose names a
    failure is known.

    Raises RunsFailed, after all have ended, and ExecutorError.
    """
    with workers.opened(shared, len(calls)) as pool:
        found = list(pool.outcomes(task, calls.values()))
    failures = {
        name: outcome.error
        for name, outcome in zip(calls, found, strict=True)
        if isinstance(outcome, Failure)
    }
    if failures:
        raise RunsFailed(failures)
    return found
