"""``dtr-alloc suggest``: which budget a job could do with, and what a step would cost."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from dtr_alloc import _autoload
from dtr_alloc.cli.common import cores
from dtr_alloc.cli.run import Job
from dtr_alloc.config import format_size
from dtr_alloc.lab.suggest import WORTH, Suggestion, suggest
from dtr_alloc.oplog import compile_log

if TYPE_CHECKING:
    from dtr_alloc.torch.observe import Observed, Observer


@click.command(
    "suggest",
    context_settings={"allow_interspersed_args": False},
    short_help="Say which budget a job could do with, and what it would cost.",
)
@click.option("--steps", default=5, show_default=True, type=click.IntRange(min=2), metavar="N",
              help="Steps of the optimizer that are seen.")  # fmt: skip
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(min=1),
              metavar="S", help="The most time that they are given.")  # fmt: skip
@click.option("--device", metavar="D", help="auto, cuda or cpu.")
@click.option("--json", "path", metavar="FILE", help="Write it there as JSON, - for stdout.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    steps: int,
    seconds: float,
    device: str | None,
    path: str | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Job:
    """Runs some steps of SCRIPT (with -m: of the module SCRIPT) with ARGUMENTS without a limit,
    ends it, and says which budget it could do with.

    The job is ended at once, as by a kill: nothing that it would do at its end is done. A job
    without an optimizer runs to its end, or for --seconds.
    """
    if not is_module and not os.path.exists(script):
        raise click.UsageError(f"there is no script {script!r}")
    # Not by the variable: what the job starts has no business with the file.
    folder = Path(tempfile.mkdtemp(prefix="dtr-alloc-"))
    pid = os.getpid()
    _autoload.settings.update(log=str(folder / "steps.log"), log_steps=f"..{steps}")
    os.environ["DTR_ALLOC_BUDGET"] = "unlimited"
    if device is not None:
        os.environ["DTR_ALLOC_DEVICE"] = device

    observers: list[Observer] = []

    def discard() -> None:
        if os.getpid() == pid:  # else the job forked this process
            shutil.rmtree(folder, ignore_errors=True)

    def then(observed: Observed) -> None:
        if os.getpid() != pid:
            return
        status = 1
        try:
            _tell(observed, folder / "steps.log", path)
            status = 0
        except Exception as error:
            print(f"dtr_alloc: no suggestion: {error}", file=sys.stderr)
        finally:
            discard()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def observe() -> None:
        from dtr_alloc.torch.observe import Observer

        observers.append(Observer(steps, seconds, then))

    def end() -> None:
        for observer in observers:
            observer.finish()

    atexit.register(discard)
    _autoload.when_on = observe
    return Job(script, is_module, arguments, at_end=end)


def _tell(observed: Observed, log: Path, path: str | None) -> None:
    console = Console(stderr=True, markup=False)
    with console.status("playing the step under smaller budgets"):
        found = suggest(
            compile_log(log),
            observed.peak_bytes,
            observed.held_bytes,
            observed.device,
            observed.chunk_bytes,
            threads=cores(),
        )
    document = {
        "observed": dataclasses.asdict(observed),
        "suggestion": dataclasses.asdict(found),
    }
    if path == "-":
        click.echo(json.dumps(document, indent=2))
        return
    if path is not None:
        Path(path).write_text(json.dumps(document, indent=2) + "\n")
    out = Console(markup=False)
    out.print(_held(observed, found))
    out.print(_outlooks(found))
    for line in _words(observed, found):
        out.print(line)


def _held(observed: Observed, found: Suggestion) -> Table:
    table = Table(title="Memory at its peak", show_header=False)
    table.add_column("for")
    table.add_column("size", justify="right")
    table.add_column("share", justify="right")
    kinds = {**found.held_bytes, "activations and workspaces": found.activation_bytes}
    for kind, size in [*kinds.items(), ("all", found.peak_bytes)]:
        if size:
            table.add_row(kind, format_size(size), f"{100 * size / found.peak_bytes:.0f} %")
    return table


def _outlooks(found: Suggestion) -> Table:
    table = Table(title="Compute of a step, in terms of one without a budget")
    for column in ("budget", "of the peak", "of the activations", "first steps", "once learned"):
        table.add_column(column, justify="right")
    for each in found.outlooks:
        later = _times(each.later) + (" (plan)" if each.is_planned else "")
        table.add_row(
            format_size(each.budget_bytes),
            f"{100 * each.budget_bytes / found.peak_bytes:.0f} %",
            f"{100 * each.share:.0f} %",
            _times(each.first),
            later,
            style="bold" if each == found.advised else None,
        )
    return table


def _times(slowness: float | None) -> str:
    return "too slow" if slowness is None else f"{slowness:.2f}"


def _words(observed: Observed, found: Suggestion) -> list[str]:
    words = []
    if found.operators == 0:
        words.append(
            f"No step was repeated in {observed.steps} of the optimizer's; what was seen last "
            "stands for it, and nothing can be learned of steps that all differ."
        )
    idle = sum(found.held_bytes.values())
    if found.advised is None or found.activation_bytes < 0.2 * found.peak_bytes:
        words.append(
            f"{100 * idle / found.peak_bytes:.0f} % of the peak is held between steps, which is "
            "never computed again: a budget gains little here. Sharding, or swapping to host "
            "memory (DTR_ALLOC_SWAP), may."
        )
    if found.advised is None:
        return words
    least = found.outlooks[-1]
    words.append(
        f"The smallest budget found is {format_size(least.budget_bytes)}"
        + (f": {found.limit} needs that much at once." if found.limit else ".")
    )
    advised = found.advised
    assert advised.later is not None
    reason = (
        f"the smallest at which a step computes at most {WORTH:g} times as much"
        if advised.later <= WORTH
        else "the cheapest that saves memory"
    )
    words.append(
        f"Advised: DTR_ALLOC_BUDGET={advised.budget_bytes // 2**20}MiB, {reason} "
        f"({_times(advised.later)})."
    )
    if advised.share < 1:
        words.append(
            "If activations grow with the batch and nothing else does, a batch "
            f"{1 / advised.share:.1f} times as large fits into the peak of today, "
            f"{format_size(found.peak_bytes)}."
        )
    return words
