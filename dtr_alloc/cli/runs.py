"""Shared parts of the commands that run op logs: the logs, --executor and --jobs, and the end of
failed runs."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import click

from dtr_alloc.cli.common import InputError
from dtr_alloc.oplog import LogError, Program, compile_log
from dtr_alloc.simulation.executors import RunsFailed, Workers


def compiled(logs: Sequence[str]) -> list[Program]:
    programs = []
    for log in logs:
        try:
            programs.append(compile_log(log))
        except FileNotFoundError:
            raise click.UsageError(f"there is no log {log!r}") from None
        except OSError as error:
            raise InputError(f"{log}: {error.strerror or error}") from None
        except LogError as error:
            raise InputError(str(error)) from None
    return programs


def workers_options(jobs: str) -> Callable[[Any], Any]:
    """--executor and --jobs; ``jobs`` describes the latter's default."""

    def add(command: Any) -> Any:
        count = click.option(
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help=f"Processes of this machine (default: {jobs}).",
        )
        executor = click.option(
            "--executor",
            metavar="MODULE:NAME",
            help="What makes the runs instead of processes of this machine: a function without "
            "arguments that returns an Executor of concurrent.futures.",
        )
        return executor(count(command))

    return add


def workers_of(executor: str | None, jobs: int | None, default: int) -> Workers:
    """The workers of --executor and --jobs. An executor is shut down at the end of the command.
    Raises click.UsageError, and click.ClickException for errors of the executor."""
    if executor is None:
        return Workers(jobs=jobs or default)
    if jobs is not None:
        raise click.UsageError("--jobs is for processes of this machine: --executor has its own")
    try:
        sys.path.append(os.getcwd())  # for a module that is beside the logs
        made = pkgutil.resolve_name(executor)()
    except Exception as error:  # whatever the module raises
        raise click.ClickException(
            f"--executor {executor}: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(made, Executor):
        raise click.UsageError(f"--executor {executor} is {made!r}; allowed: an Executor")
    return Workers(click.get_current_context().with_resource(made))


def failed(error: RunsFailed) -> click.ClickException:
    """The end of a command after failed runs: as for a wrong file, if each failed because of its
    input."""
    given_wrong = all(
        isinstance(each, ValueError | MemoryError) for each in error.failures.values()
    )
    return (InputError if given_wrong else click.ClickException)(str(error))
