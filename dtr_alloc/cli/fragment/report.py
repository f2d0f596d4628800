"""``dtr-alloc fragment report``: the use of memory in numbers and pictures."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from dtr_alloc.cli.common import list_option, of_file, print_table, results_file
from dtr_alloc.cli.fragment.options import (
    FILE,
    budgets_of,
    budgets_option,
    models_of,
    settings_of,
    truncated_option,
)
from dtr_alloc.fragment import formats, report
from dtr_alloc.fragment.models import Prepared
from dtr_alloc.report import write_text
from dtr_alloc.traces.trace import TraceError


@click.command("report", short_help="Show the use of memory in numbers and pictures.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=FILE)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Draw pictures there (needs matplotlib).",
)
@click.option("--page", metavar="FILE", type=click.Path(path_type=Path),
              help="Write all of it on one page, HTML that stands alone.")  # fmt: skip
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers; - is stdout.")
@list_option(
    "--model",
    "all",
    "Allocators to compare with: names, all or none. docs/guides/allocator-models.md: which.",
)
@budgets_option
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the models that have it: max_split_bytes=32MiB, ties_by_address=1, ...",
)
@click.option(
    "--smallest/--no-smallest",
    default=True,
    show_default=True,
    help="Look for the smallest budget of each model, which takes about ten more runs.",
)
@click.option("--maps", is_flag=True, help="Also draw the heap of each model.")
@truncated_option
def command(
    *,
    traces: Sequence[Path],
    out: Path | None,
    page: Path | None,
    json_path: str | None,
    models: Sequence[str],
    budgets: Sequence[str],
    options: Sequence[str],
    smallest: bool,
    maps: bool,
    allow_truncated: bool,
) -> None:
    """Shows for each TRACE (or file that `import` reads) the memory that was needed, reserved and
    lost. docs/guides/fragmentation-study.md explains every number and picture.

    \b
    Example:
      dtr-alloc fragment report job.trace --page job.html
    """
    drawing = "--page" if out is None else "--out"
    if (out or page) and not all(map(importlib.util.find_spec, ("matplotlib", "numpy"))):
        raise click.UsageError(
            f"{drawing} draws pictures, which needs matplotlib: pip install 'dtr-alloc[plots]'"
        )
    if out is not None and out.exists() and not out.is_dir():
        raise click.UsageError(f"--out is {str(out)!r}, which is no folder")
    if maps and not (out or page):
        raise click.UsageError("--maps needs --out, the folder for them, or --page")
    chosen = models_of(models)
    asked_for = [] if models == ("all",) else chosen
    limits = budgets_of(budgets)
    settings = settings_of(options, chosen)
    found: list[report.Report] = []
    for path in traces:
        try:
            found += report.reports(path.stem, formats.read(path, allow_truncated=allow_truncated))
        except (TraceError, OSError) as error:
            raise of_file(path, error) from None
    console = Console(stderr=json_path == "-", markup=False)
    for part in found:
        prepared = Prepared(part.trace)
        models_of_part = asked_for if part.too_few_events else chosen
        # A device may hold memory and no block.
        for model in models_of_part if prepared.operations else ():
            for at, limit in enumerate(limits):
                size = None if limit is None else limit.resolve(prepared.peak_live_bytes)
                first = smallest and not at
                try:
                    row = report.of_model(
                        prepared, model, size, smallest=first, blocks=maps, **settings[model]
                    )
                except ValueError as error:  # of the values of --set
                    raise click.UsageError(f"--set: {error}") from None
                part.rows.append(row)
        print_table(console, report.table(part))
    try:
        with results_file(json_path) as file:
            if file is not None:
                file.write(json.dumps(report.document(found)) + "\n")
        if page is not None:
            write_text(page, report.page(found, maps=maps))
            console.print(str(page), soft_wrap=True)
        if out is not None:
            for stem, part in zip(stems(found), found, strict=True):
                for picture in report.write_pictures(part, out, stem, maps=maps):
                    console.print(str(picture), soft_wrap=True)
    except OSError as error:
        raise click.ClickException(str(error)) from None


def stems(found: Sequence[report.Report]) -> list[str]:
    """A file name for each report; repeated ones get a number."""
    stems: list[str] = []
    for part in found:
        stem = re.sub(r"[^\w.-]+", "-", part.label)
        again = sum(re.sub(r"~\d+$", "", made) == stem for made in stems)
        stems.append(f"{stem}~{again + 1}" if again else stem)
    return stems
