"""``dtr-alloc fragment``: commands on traces of allocators, one module each."""

from __future__ import annotations

import click

from dtr_alloc.cli.common import LazyCommands


@click.group(
    "fragment",
    commands=LazyCommands(
        {
            "export": "dtr_alloc.cli.fragment.convert:export",
            "import": "dtr_alloc.cli.fragment.convert:import_",
            "record": "dtr_alloc.cli.moved:command",
            "run": "dtr_alloc.cli.moved:command",
            "report": "dtr_alloc.cli.fragment.report:command",
        }
    ),
    short_help="Study traces of any allocator.",
)
def command() -> None:
    """Reads, converts and studies traces of allocators: our own (DTR_ALLOC_TRACE), PyTorch's
    memory snapshots, RMM's logs."""
