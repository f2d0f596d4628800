"""``dtr-alloc fragment record``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dtr_alloc.cli import run
from dtr_alloc.cli.fragment.options import OUT


@click.command(
    "record",
    context_settings={"allow_interspersed_args": False},
    short_help="Run a script and record its trace.",
)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT, help="The trace.")
@click.option("--budget", metavar="B", help="As for run; without one, nothing is ever evicted.")
@click.option("--device", metavar="D", help="auto, cuda or cpu.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, /, out: Path, **options: Any) -> Any:
    """Runs SCRIPT with ARGUMENTS and records its memory: short for `dtr-alloc run
    --trace OUT`."""
    return context.invoke(run.command, trace=str(out), **options)
