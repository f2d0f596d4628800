"""Switches on an unedited job: the ``torch.backends`` entry point.

PyTorch calls ``autoload`` at the end of ``import torch`` (``torch/__init__.py``,
``_import_device_backends``) in every process that imports torch, so this module imports next to
nothing and returns at once if no ``DTR_ALLOC_*`` variable is set.

PyTorch turns an Exception of an entry point into a RuntimeError that blames the import. Going on
without a budget would be worse: the job asked for one, and would run out of memory hours later. So
a failure prints one line and ends the process: with status 2 for a wrong setting, with 1 if the
budget is impossible here. ``SystemExit`` is no Exception, and passes through PyTorch.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

SWITCHES = ("DTR_ALLOC_BUDGET", "DTR_ALLOC_LOG", "DTR_ALLOC_TRACE")

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Commands that start the ranks of a job, and make no tensors themselves."""
LAUNCHER_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    *("deepspeed.launcher.runner", "deepspeed.launcher.launch"),
)

settings: dict[str, object] = {}
"""Settings of the command line that have no variable."""

when_on: Callable[[], None] | None = None
"""Called in the job once it is switched on; the command line sets it."""

_stands_aside = False


def stand_aside() -> None:
    """Makes autoload() do nothing in this process: the caller switches on."""
    global _stands_aside
    _stands_aside = True


def autoload() -> None:
    """Enables the environment's settings, or does nothing without any.

    A mistyped variable ends the process: the job would run without a budget.
    """
    if _stands_aside or not any(
        name.startswith("DTR_ALLOC_") and value for name, value in os.environ.items()
    ):
        return
    from dtr_alloc.config import ConfigError, check_names

    try:
        check_names(os.environ)
    except ConfigError as error:
        _give_up(str(error), status=2)
    if asked_by() is not None and not is_launcher():
        switch_on()


def is_launcher() -> bool:
    """Whether this process only starts ranks. It needs no budget, which on CUDA would make a
    context on each device, and its files would collide with those of rank 0."""
    if "RANK" in os.environ:
        return False
    words = sys.orig_argv
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    script = sys.argv[0] if sys.argv else ""
    # Either the module that python was started with, or what `dtr-alloc run` runs now.
    return os.path.basename(script) in LAUNCHERS or any(
        name in LAUNCHER_MODULES for name in (script, *module)
    )


def asked_by() -> str | None:
    """The variable that switches a job on: DTR_ALLOC_BUDGET; without one, DTR_ALLOC_LOG or
    DTR_ALLOC_TRACE."""
    return next((name for name in SWITCHES if os.environ.get(name)), None)


def without_torch() -> str | None:
    """A sentence if this python has no PyTorch; None if it has one."""
    if "torch" in sys.modules or find_spec("torch") is not None:
        return None
    return f"PyTorch is not installed for {sys.executable} (pip install torch)"


def switch_on() -> None:
    """Enables the environment's configuration, or ends the process."""
    from dtr_alloc import _load
    from dtr_alloc.config import ConfigError, given_settings

    try:
        given = given_settings(**settings)  # a wrong one is an error before torch is imported
        _load("dtr_alloc.torch.api").enable_with(given)
        if when_on is not None:
            when_on()
    except ConfigError as error:
        _give_up(str(error), status=2)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (reason := without_torch()):
            _give_up(f"{reason}: there is nothing to budget", status=1)
        if not isinstance(error, RuntimeError | OSError):
            traceback.print_exc()  # nothing that we foresaw: the one line would not be enough
        switch = asked_by() or SWITCHES[0]
        what = "the budget cannot be enforced" if switch == SWITCHES[0] else "it cannot be had"
        _give_up(
            f"{switch} is {os.environ.get(switch)!r}, but {what} here: {error}. `dtr-alloc info` "
            "says more; without the variable the job runs without a budget",
            status=1,
        )


def _give_up(message: str, status: int) -> NoReturn:
    print(f"dtr_alloc: {message}", file=sys.stderr, flush=True)
    raise SystemExit(status)
