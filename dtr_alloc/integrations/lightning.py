"""A budget as a callback of Lightning: ``Trainer(callbacks=[BudgetCallback(budget="8GiB")])``."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from dtr_alloc.integrations.job import BudgetedJob


class BudgetCallback(BudgetedJob, Callback):
    """Trains, validates, tests and predicts in a session (BudgetedJob has the arguments), which
    ends with each of these, also after an error. During training, all loggers of the trainer get
    its scalars, every ``log_every_n_steps`` steps."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.begin()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin(_step(trainer))

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        # When, and at which step, as Lightning's own monitors do.
        if trainer._logger_connector.should_update_logs:
            scalars = self.scalars(_step(trainer) + 1)
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step=_step(trainer))

    def on_exception(self, *_: Any) -> None:
        self.end()

    def teardown(self, *_: Any, **__: Any) -> None:
        self.end()


def _step(trainer: Trainer) -> int:
    steps: int = trainer.fit_loop.epoch_loop._batches_that_stepped
    return steps
