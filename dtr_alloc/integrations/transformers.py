"""A budget as a callback of transformers' Trainer, and of those that are made from it (TRL's)."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState

from dtr_alloc.integrations.job import BudgetedJob


class BudgetCallback(BudgetedJob, TrainerCallback):
    """Trains in a session (BudgetedJob has the arguments), which ends with the training::

        with BudgetCallback(budget="8GiB") as callback:  # on CUDA before TrainingArguments
            trainer = Trainer(..., callbacks=[callback])
            callback.set_trainer(trainer)
            trainer.train()

    The Trainer does not tell callbacks of errors: the with-statement ends the session then.
    """

    def set_trainer(self, trainer: Trainer) -> None:
        """Gives scalars to the trainer's loggers (TensorBoard, W&B), too: callbacks are called in
        order, and the trainer puts its own before the given ones."""
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(each for each in callbacks if each is not self)]

    def on_train_begin(self, args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        self.begin(state.global_step)

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any], **_: Any
    ) -> None:
        if state.global_step != self._step:  # not of an evaluation, or of the whole training
            logs |= self.scalars(state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.end()
