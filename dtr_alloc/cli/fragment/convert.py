"""``dtr-alloc fragment import`` and ``export``: traces from and to other tools' files."""

from __future__ import annotations

from pathlib import Path

import click

from dtr_alloc.cli.common import InputError
from dtr_alloc.cli.fragment.options import FILE, OUT
from dtr_alloc.lab.fragment import formats
from dtr_alloc.traces.trace import TraceError


@click.command("import", short_help="Make a trace of another tool's file.")
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT, help="The trace.")
def import_(source: Path, out: Path) -> None:
    """Makes a trace of IN: a memory snapshot of PyTorch, an RMM log, or another trace."""
    _convert(source, out, "trace", None, allow_truncated=False)


@click.command("export", short_help="Make another tool's file of a trace.")
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT)
@click.option(
    "--to",
    required=True,
    type=click.Choice(["torch", "rmm", "chrome", "trace"]),
    help="torch: what PyTorch's memory viewer opens. rmm: the CSV log of RMM. chrome: what "
    "Perfetto opens (.json.gz). trace: our own.",
)
@click.option("--device", type=click.IntRange(min=0), help="Which, if the trace has several.")
@click.option(
    "--allow-truncated", is_flag=True, help="Take what a killed job left of its trace as it is."
)
def export(source: Path, out: Path, to: str, device: int | None, allow_truncated: bool) -> None:
    """Writes the trace IN (or what `import` reads) in another form."""
    _convert(source, out, to, device, allow_truncated=allow_truncated)


def _convert(
    source: Path, out: Path, to: str, device: int | None, *, allow_truncated: bool
) -> None:
    try:
        trace = formats.read(source, allow_truncated=allow_truncated)
    except (TraceError, OSError) as error:
        raise InputError(str(error)) from None
    try:
        formats.write(trace, out, to, device)
    except TraceError as error:
        raise InputError(f"{source}: {error}") from None
    except OSError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{out}: {len(trace)} events")
