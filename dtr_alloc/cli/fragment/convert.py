"""``dtr-alloc fragment import`` and ``export``: traces from and to other tools' files."""

from __future__ import annotations

from pathlib import Path

import click

from dtr_alloc.cli.common import of_file
from dtr_alloc.cli.fragment.options import FILE, OUT, truncated_option
from dtr_alloc.fragment import formats
from dtr_alloc.traces.trace import TraceError


@click.command("import", short_help="Convert another tool's file to a trace.")
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT, help="The trace.")
@truncated_option
def import_(source: Path, out: Path, allow_truncated: bool) -> None:
    """Converts IN, a memory snapshot of PyTorch, an RMM log or another trace, to a trace."""
    _convert(source, out, "trace", allow_truncated)


@click.command("export", short_help="Convert a trace to another tool's file.")
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT)
@click.option(
    "--to",
    required=True,
    type=click.Choice(formats.WRITES),
    help="torch: what PyTorch's memory viewer opens. chrome: what Perfetto opens (.json.gz). "
    "trace: our own.",
)
@click.option(
    "--profile",
    metavar="FILE",
    type=FILE,
    help="With --to chrome: what torch.profiler wrote of the same run (export_chrome_trace). Its "
    "operators are added.",
)
@truncated_option
def export(
    source: Path,
    out: Path,
    to: str,
    profile: Path | None,
    allow_truncated: bool,
) -> None:
    """Converts the trace IN (or a file that `import` reads) to another format."""
    if profile is not None and to != "chrome":
        raise click.UsageError(f"--profile is for --to chrome, not for --to {to}")
    _convert(source, out, to, allow_truncated, profile)


def _convert(
    source: Path, out: Path, to: str, allow_truncated: bool, profile: Path | None = None
) -> None:
    try:
        trace = formats.read(source, allow_truncated=allow_truncated)
    except (TraceError, OSError) as error:
        raise of_file(source, error) from None
    try:
        left_out = formats.write(trace, out, to, profile)
    except TraceError as error:
        raise of_file(source, error) from None
    except OSError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{out}: {len(trace)} events")
    if left_out:
        kinds = ", ".join(f"{count} of {name}" for name, count in left_out.items())
        click.echo(f"dtr_alloc: left out, as no viewer holds so many: {kinds}", err=True)
