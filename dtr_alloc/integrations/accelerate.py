"""A budget as a tracker of accelerate, before those that write."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from dtr_alloc.integrations.job import BudgetedJob


class BudgetTracker(BudgetedJob, GeneralTracker):
    """Trains in a session (BudgetedJob has the arguments), which ends by ``end_training()`` or with
    the with-statement::

        with BudgetTracker(budget="8GiB") as tracker:  # on CUDA before Accelerator
            accelerator = Accelerator(log_with=[tracker, "tensorboard"], project_dir="logs")

    It writes nothing. It adds its scalars to the dictionary of ``Accelerator.log``, for the
    trackers that follow it in ``log_with``.
    """

    name = "dtr_alloc"
    requires_logging_directory = False

    @property
    def tracker(self) -> BudgetTracker:
        return self

    def start(self) -> None:
        self.begin()

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        values |= self.scalars(step)

    def finish(self) -> None:
        self.end()
