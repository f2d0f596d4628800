"""``dtr-alloc suggest``: advice on the budget of a job, and the cost of a step under budgets."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from dtr_alloc import _autoload
from dtr_alloc.advise.advice import advise, ways_to_fit
from dtr_alloc.cli.run import Job
from dtr_alloc.records import Observed

if TYPE_CHECKING:
    from dtr_alloc.torch.observe import Observer


@click.command(
    "suggest",
    context_settings={"allow_interspersed_args": False},
    short_help="Advise a budget for a job, and show its cost.",
)
@click.option("--steps", default=5, show_default=True, type=click.IntRange(min=3), metavar="N",
              help="Steps of the optimizer that are recorded.")  # fmt: skip
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(min=1),
              metavar="S", help="The longest time for them.")  # fmt: skip
@click.option("--budget", default="unlimited", metavar="B",
              help="Run them under it, with swapping, if they do not fit without.")  # fmt: skip
@click.option("--device", metavar="D", help="auto, cuda or cpu.")
@click.option("--json", "path", metavar="FILE", help="Write the advice as JSON; - is stdout.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    steps: int,
    seconds: float,
    budget: str,
    device: str | None,
    path: str | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> Job:
    """Runs some steps of SCRIPT (with -m: of the module SCRIPT) with ARGUMENTS, without a limit or
    under --budget, ends it, and advises a budget.

    After the recorded steps, four more are timed. The job is then ended as by a kill, without its
    own clean-up. A job without an optimizer runs to its end, or for --seconds.

    \b
    Examples:
      dtr-alloc suggest train.py --epochs 3
      dtr-alloc suggest --budget 20GiB --json advice.json -m mylib.train
    """
    if not is_module and not os.path.exists(script):
        raise click.UsageError(f"there is no script {script!r}")
    # Not by the variable: what the job starts has no business with the file.
    folder = Path(tempfile.mkdtemp(prefix="dtr-alloc-"))
    pid = os.getpid()
    log = str(folder / "steps.log")
    _autoload.settings.update(log=log, log_steps=f"..{steps}", **ways_to_fit(budget))
    os.environ["DTR_ALLOC_BUDGET"] = budget
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
            _print_advice(observed, folder / "steps.log", path)
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


def _print_advice(observed: Observed, log: Path, path: str | None) -> None:
    with Console(stderr=True, markup=False).status("playing the step under smaller budgets"):
        advice = advise(observed, log)
    text = json.dumps(advice.document(), indent=2)
    if path == "-":
        click.echo(text)
        return
    if path is not None:
        Path(path).write_text(text + "\n")
    advice.print_to(Console(markup=False))
