"""Shared parts of the commands that run op logs: the logs, --executor and --jobs, and the end of
failed runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from dtr_alloc.cli.common import InputError, given
from dtr_alloc.oplog import LogError, Program, compile_log
from dtr_alloc.simulation.executors import FORMS, RunsFailed, Workers


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
            help=f"Processes of --executor local (default: {jobs}).",
        )
        executor = click.option(
            "--executor",
            default="local",
            show_default=True,
            metavar="WHERE",
            help=f"What makes the runs: {FORMS}.",
        )
        return executor(count(command))

    return add


def workers_of(executor: str, jobs: int | None, default: int) -> Workers:
    """The workers of --executor and --jobs. Raises click.UsageError."""
    if jobs is not None and executor != "local":
        raise click.UsageError(f"--jobs is for --executor local: {executor} has its own workers")
    return given("--executor", lambda: Workers(executor, jobs or default))


def failed(error: RunsFailed) -> click.ClickException:
    """The end of a command after failed runs: as for a wrong file, if each failed because of its
    input."""
    given_wrong = all(
        isinstance(each, ValueError | MemoryError) for each in error.failures.values()
    )
    return (InputError if given_wrong else click.ClickException)(str(error))
