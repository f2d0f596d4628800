"""The common part of frameworks' jobs: a session, and scalars of its steps."""

from __future__ import annotations

from typing import Any, Unpack

import dtr_alloc
from dtr_alloc.config import Settings
from dtr_alloc.report import render

_COUNTERS = ("evictions", "rematerializations", "recompute_seconds", "search_seconds")


class BudgetedJob:
    """The session of a job: its own, which it begins and ends, or a running one.

    Its own begins with this object, because PyTorch cannot change CUDA's allocator later and
    frameworks use CUDA early: Lightning at the beginning of a fit, transformers in
    TrainingArguments, accelerate in Accelerator. It begins again with a begin() after an end(). As
    a context manager this object ends it, also after an error.

    Args:
        budget: as of dtr_alloc.enable(). None, and no settings: the session belongs to the caller,
            and must run when training begins.
        **settings: as of dtr_alloc.enable(), which raises for wrong or late settings.
    """

    def __init__(
        self, budget: int | str | dtr_alloc.Budget | None = None, **settings: Unpack[Settings]
    ) -> None:
        self._settings: dict[str, Any] | None = None
        if budget is not None or settings:
            self._settings = {"budget": budget, **settings}
        self._has_begun = False
        if self._settings:
            self.begin()

    def begin(self, step: int | None = None) -> None:
        """Begins the session, unless it runs. Scalars count from here.

        Args:
            step: the number of trained steps, if they are counted.

        Raises StateError if there is no session, and none of our own to begin.
        """
        if self._settings and not (self._has_begun and dtr_alloc.is_enabled()):
            dtr_alloc.enable(**self._settings)
            self._has_begun = True
        elif not dtr_alloc.is_enabled():
            raise dtr_alloc.StateError(
                f"{type(self).__name__} has no budget, and no session is on: give it a budget, "
                "call dtr_alloc.enable() first, or set DTR_ALLOC_BUDGET"
            )
        self._step = step
        self._before = dtr_alloc.stats()

    def end(self) -> None:
        """Ends the session if it is our own, and runs."""
        if self._has_begun and dtr_alloc.is_enabled():
            dtr_alloc.disable()
        self._has_begun = False

    def report(self) -> str:
        """The figures of the session so far, or of the last one, as text, with advice."""
        return render(dtr_alloc.stats())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def scalars(self, step: int | None = None) -> dict[str, float]:
        """The changes since the last call, or since begin(), for a logger. Names begin with
        ``dtr_alloc/``; docs/guides/frameworks.md lists them.

        Args:
            step: the number of trained steps. If the last call had it, too, counters and seconds
                are averages of a step.
        """
        now, before = dtr_alloc.stats(), self._before
        steps = step - self._step if step is not None and self._step is not None else 1
        names = (*_COUNTERS, "recompute_cost_seconds", "total_cost_seconds")
        added = {name: now[name] - before[name] for name in names}
        again = added["recompute_cost_seconds"]
        computed = again + added["total_cost_seconds"]
        self._step, self._before = step, now
        values = {
            "allocated_bytes": now["allocated_bytes"],
            "peak_allocated_bytes": now["peak_allocated_bytes"],
            "recompute_share": again / computed if computed else 0.0,
            **{name: added[name] / max(steps, 1) for name in _COUNTERS},
        }
        return {f"dtr_alloc/{name}": value for name, value in values.items()}
