"""``dtr-alloc run``: a job under a budget.

This equals setting the variables and starting python: it checks the options, sets ``DTR_ALLOC_*``
in the environment and runs the job in this process as ``__main__``. The job's ``import torch``
switches the budget on, so variables that a script sets before (``OMP_NUM_THREADS``,
``CUDA_VISIBLE_DEVICES``) work as without dtr_alloc. If PyTorch does not call entry points, the
budget is switched on before the job's first line.

Processes that the job starts inherit the variables, so each rank of ``torch.distributed.run`` has
the budget.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any

import click

from dtr_alloc import _autoload, config

ENTRY_POINT = "dtr_alloc._autoload:autoload"


def entry_point_is_registered() -> bool:
    """Whether the installed distribution has ``import torch`` call us."""
    return any(point.value == ENTRY_POINT for point in entry_points(group="torch.backends"))


def autoload_is_on() -> bool:
    """Whether ``import torch`` calls entry points."""
    return os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"


@dataclass(frozen=True)
class Job:
    """A program to run as ``__main__``, as python would: a script (or folder, or zip) or a module.

    Attributes:
        target: the script's path, or the module's name.
        is_module: whether it is a module.
        arguments: sys.argv[1:] of the job.
        at_end: called when the job has ended without an error.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    at_end: Callable[[], None] | None = None

    def run_under_budget(self) -> None:
        """Runs the job; its ``import torch``, or otherwise this method, switches the budget on."""
        sys.argv = [self.target, *self.arguments]
        if _autoload.is_launcher():
            self.run()
            return
        if "torch" in sys.modules or not (entry_point_is_registered() and autoload_is_on()):
            _autoload.stand_aside()
            _autoload.switch_on()
        try:
            self.run()
        finally:
            if "torch" not in sys.modules:
                reason = _autoload.without_torch() or "the job never imported torch"
                print(f"dtr_alloc: {reason}: nothing was budgeted", file=sys.stderr)
            elif "dtr_alloc.torch.api" not in sys.modules:
                print(
                    "dtr_alloc: the job ran WITHOUT a budget: import torch did not call the entry "
                    "point (was DTR_ALLOC_BUDGET or TORCH_DEVICE_BACKEND_AUTOLOAD changed?)",
                    file=sys.stderr,
                )

    def run(self) -> None:
        """Runs the job in this process; its errors pass through."""
        sys.excepthook = _job_excepthook(sys.excepthook)
        left = None  # what the job has at its end stays for at_end
        try:
            if self.is_module:
                _set_first_path(os.getcwd())
                left = runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            else:
                _set_first_path(os.path.dirname(os.path.realpath(self.target)))
                left = runpy.run_path(self.target, run_name="__main__")
        except SystemExit as end:
            if self.at_end is None or end.code not in (None, 0):
                raise
        if self.at_end is not None:
            self.at_end()
        del left


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder  # was the folder of this command


def _job_excepthook(show: Callable[..., Any]) -> Callable[..., Any]:
    """The excepthook of a job: leaves out the frames between python and the job."""
    runpy_files = (getattr(runpy, "__file__", None), "<frozen runpy>")

    def file_of(traceback: TracebackType) -> str:
        return traceback.tb_frame.f_code.co_filename

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        outer = traceback
        while outer is not None and file_of(outer) != __file__:
            outer = outer.tb_next
        while outer is not None and file_of(outer) in (__file__, *runpy_files):
            outer = outer.tb_next
        shown = outer or traceback
        show(kind, error.with_traceback(shown), shown)

    return excepthook


class _Command(click.Command):
    """A command whose --report has a value behind "=" only: the next word is the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [each for each in self.params if isinstance(each, click.Option)]
        with_value = {name for each in options if not each.is_flag for name in each.opts}
        i = 0
        while i < len(args) and args[i].startswith("-"):
            if args[i] == "--report":
                args[i] = "--report=1"
            i += 2 if args[i] in with_value else 1
        return super().parse_args(ctx, args)


@click.command(
    "run",
    cls=_Command,
    context_settings={"allow_interspersed_args": False},
    short_help="Run a script or module under a budget.",
)
@click.option("--budget", metavar="B", help="8GiB, 60% of the device, bytes, or 'unlimited'.")
@click.option("--device", metavar="D", help="auto, cuda or cpu.")
@click.option("--heuristic", metavar="H", help="How to choose what to evict.")
@click.option("--swap", metavar="SIZE", help="Swap tensors to host memory, at most this much; "
              "or 'off', 'last-resort' (default).")  # fmt: skip
@click.option("--thrash", metavar="X", help="End a job whose step takes more than X times its "
              "own compute (default: 4); 'off'.")  # fmt: skip
@click.option("--trust", metavar="LIST", help="Custom operators, or their namespaces, that repeat "
              "bit for bit: flash_attn,mylib::gelu.")  # fmt: skip
@click.option("--pool", metavar="PARTS", help="How the heap is made: chunk:2MiB,keep:1GiB.")
@click.option("--ranks", metavar="R", help="If one rank ends out of memory, the others end, too "
              "(agree, the default), or wait (off).")  # fmt: skip
@click.option("--log", metavar="FILE", help="Write an op log (.gz, .bz2, .xz are compressed).")
@click.option("--log-steps", metavar="A..B", help="Which steps are logged: 3, 3..5, 3.. or ..5.")
@click.option("--trace", metavar="FILE", help="Write a trace of the allocator.")
@click.option("--report", metavar="[=FORM]", help="Print figures to stderr at the end; =all: all "
              "counters; =FILE: to a file, as a page if its name ends with .html.")  # fmt: skip
@click.option("--progress", is_flag=True, default=None, help="Print progress to stderr.")
@click.option("--costs", metavar="FILE", help="Take operators' costs from FILE, and add to it.")
@click.option("--stats", metavar="FILE", help="Write stats() as JSON at the end.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(script: str, is_module: bool, arguments: tuple[str, ...], **options: Any) -> Job:
    """Runs SCRIPT (with -m: the module SCRIPT) with ARGUMENTS under a budget.

    Everything after SCRIPT belongs to it. Without --budget, DTR_ALLOC_BUDGET or the file named
    by DTR_ALLOC_CONFIG must give one; with --log it is unlimited, and with --trace alone only the
    allocator is on, and nothing is ever evicted. Processes that the job starts get the same
    settings each, --log-steps excepted.

    \b
    Examples:
      dtr-alloc run --budget 8GiB train.py --epochs 3
      dtr-alloc run --budget 60% --report=run.html -m mylib.train
      dtr-alloc run --budget 8GiB --swap 16GiB --progress train.py
      dtr-alloc run --log steps.log.xz --log-steps 1..5 train.py
    """
    # An empty option is a mistake, an empty variable is none: here the two must not meet.
    for name, value in options.items():
        if value == "":
            raise click.UsageError(f"--{name.replace('_', '-')} is empty")
    try:
        given = config.given_settings(**options)
    except config.ConfigError as error:
        raise click.UsageError(str(error.of_option())) from None
    if not given.is_session:
        raise click.UsageError(
            "no budget: give --budget 8GiB (or 60%, or unlimited), or set DTR_ALLOC_BUDGET"
        )
    if not is_module and not os.path.exists(script):
        raise click.UsageError(f"there is no script {script!r}")
    for name, value in options.items():
        if name in config.WITHOUT_VARIABLE:
            _autoload.settings[name] = value
        elif value is not None:
            os.environ[config.variable(name)] = str(value)
    # The file may have given it; the entry point looks at the variable only.
    if "trace" in given:
        os.environ["DTR_ALLOC_TRACE"] = str(given["trace"].written)
    if not given.is_light:
        os.environ["DTR_ALLOC_BUDGET"] = str(
            given["budget"].written if "budget" in given else "unlimited"
        )
    return Job(script, is_module, arguments)
