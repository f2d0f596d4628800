"""The command line ``dtr-alloc``: one module a command, which holds its options and its body."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import click

from dtr_alloc.cli.common import InputError, LazyCommands


@click.group(
    commands=LazyCommands(
        {
            "build": "dtr_alloc.cli.build:command",
            "fragment": "dtr_alloc.cli.fragment:command",
            "info": "dtr_alloc.cli.info:command",
            "report": "dtr_alloc.cli.report:command",
            "reproduce": "dtr_alloc.cli.moved:command",
            "run": "dtr_alloc.cli.run:command",
            "schedule": "dtr_alloc.cli.moved:command",
            "simulate": "dtr_alloc.cli.simulate:command",
            "suggest": "dtr_alloc.cli.suggest:command",
            "top": "dtr_alloc.cli.top:command",
        }
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="dtr-alloc", prog_name="dtr-alloc")
def commands() -> None:
    """Trains PyTorch jobs under a memory budget, with the same bits as without one."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command ``dtr-alloc``. A job runs after click has returned, so its exceptions and exit
    codes are python's and not click's."""
    from dtr_alloc.cli.run import Job

    try:
        job = commands.main(
            arguments if arguments is None else list(arguments),
            prog_name="dtr-alloc",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except MemoryError as error:
        short = InputError(f"there is not enough memory for this: {error or 'MemoryError'}")
        short.show()
        sys.exit(short.exit_code)
    except click.Abort:  # Ctrl-C
        sys.exit(128 + signal.SIGINT)
    if not isinstance(job, Job):
        sys.exit(job if isinstance(job, int) else 0)
    job.run_under_budget()
