"""The commands of ``dtr-alloc fragment``. What a command does is in its own module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dtr_alloc.command_error import InputError
from dtr_alloc.fragment.trace import TraceError

FILE: Any = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file that is read."""

OUT: Any = click.Path(dir_okay=False, path_type=Path)


def _models(text: str) -> Callable[[Any], Any]:
    return click.option(
        "--model",
        "models",
        multiple=True,
        default=("all",),
        show_default=True,
        metavar="LIST",
        help=text,
    )


_BUDGETS = click.option(
    "--budget",
    "budgets",
    multiple=True,
    default=("unlimited",),
    show_default=True,
    metavar="LIST",
    help="Of these: ratios of the peak of live bytes (1.1, 1.0..1.5), sizes (8GiB), unlimited.",
)


@click.group(short_help="See where memory went: traces of any allocator.")
def fragment() -> None:
    """Reads, converts and studies traces of allocators: our own (DTR_ALLOC_TRACE), PyTorch's
    memory snapshots, RMM's logs."""


@fragment.command(
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
def record(context: click.Context, out: Path, **options: Any) -> Any:
    """Runs SCRIPT with ARGUMENTS and records what its memory did: short for `dtr-alloc run
    --trace OUT`."""
    commands = context.find_root().command
    assert isinstance(commands, click.Group)
    return context.invoke(commands.commands["run"], trace=str(out), **options)


@fragment.command("import", short_help="Make a trace of another tool's file.")
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT, help="The trace.")
def import_(source: Path, out: Path) -> None:
    """Makes a trace of IN: a memory snapshot of PyTorch, an RMM log, or another trace."""
    _convert(source, out, "trace", None, allow_truncated=False)


@fragment.command(short_help="Make another tool's file of a trace.")
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--out", required=True, metavar="OUT", type=OUT)
@click.option(
    "--to",
    required=True,
    type=click.Choice(["torch", "rmm", "trace"]),
    help="torch: what PyTorch's memory viewer opens. rmm: the CSV log of RMM. trace: our own.",
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
    from dtr_alloc.fragment import formats

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


@fragment.command(short_help="Say in numbers and pictures where memory went.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=FILE)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Draw pictures there (needs matplotlib).",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers; - is stdout.")
@_models("Allocators to compare with: names, all or none. docs/guides/allocator-models.md: which.")
@_BUDGETS
@click.option(
    "--smallest/--no-smallest",
    default=True,
    show_default=True,
    help="Look for the smallest budget of each model, which takes about ten more replays.",
)
@click.option("--maps", is_flag=True, help="Also draw the heap of each model.")
@click.option("--by-time", is_flag=True, help="Draw over the time instead of the events.")
@click.option(
    "--allow-truncated", is_flag=True, help="Take what a killed job left of its trace as it is."
)
def report(**options: Any) -> None:
    """Says of each TRACE (or what `import` reads) how much memory was needed, taken and lost, and
    draws it. docs/guides/where-memory-goes.md explains every number and picture."""
    from dtr_alloc.fragment import report_command

    report_command.run(**options)


@fragment.command(short_help="What another allocator would have made of the same requests.")
@click.argument("source", metavar="TRACE", type=FILE)
@_models("Allocators: names, or all. The top of dtr_alloc/fragment/replay.py lists them.")
@_BUDGETS
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the models that have it: max_split_bytes=32MiB, ties_by_address=1, ...",
)
@click.option("--device", type=click.IntRange(min=0), help="Which, if the trace has several.")
@click.option("--smallest", is_flag=True, help="Look for the smallest budget of each model.")
@click.option(
    "--compare",
    is_flag=True,
    help="Compare the models of PyTorch's allocator, event by event, with what the trace recorded.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers; - is stdout.")
@click.option(
    "--allow-truncated", is_flag=True, help="Take what a killed job left of its trace as it is."
)
def replay(**options: Any) -> None:
    """Replays the allocations of TRACE (or what `import` reads) on models of allocators."""
    from dtr_alloc.fragment import replay_command

    replay_command.run(**options)
