"""Former commands, which name their successors."""

from __future__ import annotations

import click

from dtr_alloc.cli.common import InputError

_SUCCESSORS = {
    "reproduce": "python -m bench.studies`, in the root of a checkout",
    "schedule": "python -m bench.studies.best find`, in the root of a checkout",
    "fragment record": "dtr-alloc run --trace OUT`",
    "fragment run": "dtr-alloc fragment report`",
}


@click.command(
    hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, arguments: tuple[str, ...]) -> None:
    called = context.command_path.partition(" ")[2]
    raise InputError(f"dtr-alloc {called} is now `{_SUCCESSORS[called]}")
