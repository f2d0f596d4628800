"""Commands that are no longer in the package: they name their successors."""

from __future__ import annotations

import click

from dtr_alloc.cli.common import InputError

_PLACES = {"reproduce": "python -m bench.studies", "schedule": "python -m bench.studies.best find"}


@click.command(
    hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, arguments: tuple[str, ...]) -> None:
    name = context.info_name or ""
    raise InputError(f"dtr-alloc {name} is now `{_PLACES[name]}`, in the root of a checkout")
