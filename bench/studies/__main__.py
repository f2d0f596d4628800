"""``python -m bench.studies``: the studies that the docs show."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import dtr_alloc
from bench.studies import study as studies
from bench.studies.study import Document, Options, Unavailable
from dtr_alloc import bounded
from dtr_alloc.cli.common import InputError, json_object
from dtr_alloc.cli.runs import workers_of, workers_options
from dtr_alloc.oplog import LogError
from dtr_alloc.simulation.executors import ExecutorError, RunsFailed, cores

MOST_BYTES = 1 << 26
"""Of the JSON of a study, which then takes two gigabytes and two seconds."""


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option(
    "--out",
    metavar="FOLDER",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where NAME.json and NAME.svg are written.",
)
@click.option(
    "--logs",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The op logs that the DTR paper published (*.log.xz), for the studies of them.",
)
@click.option("--smoke", is_flag=True, help="A small part of each, in seconds; no result.")
@click.option("--redraw", is_flag=True, help="Draw again what the JSON in FOLDER says.")
@workers_options("one a core")
def command(
    names: tuple[str, ...],
    out: Path,
    logs: Path | None,
    smoke: bool,
    redraw: bool,
    executor: str | None,
    jobs: int | None,
) -> None:
    """Runs the studies NAME..., each to a JSON file and pictures; without a name, lists them."""
    if not names:
        for name in studies.NAMES:
            click.echo(f"{name:<14}{studies.load(name).title}")
        return
    for name in names:
        try:
            studies.load(name)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    workers = workers_of(executor, jobs, cores())
    options = Options(smoke=smoke, logs=logs, workers=workers)
    run(names, folder=out, redraw=redraw, options=options)


def run(names: Sequence[str], *, folder: Path, redraw: bool, options: Options) -> None:
    """Runs studies one after the other and writes ``NAME.json`` and ``NAME[-PART].svg`` into the
    folder; with ``redraw`` the pictures only, from the JSON that is there. Raises
    click.ClickException for what is lacking: then nothing of that study was written. Nothing is
    written of one that lacks runs, either: it is raised after the other studies."""
    failures = []
    for name in names:
        study = studies.load(name)
        path = folder / f"{name}.json"
        start = time.perf_counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if redraw:
                document = json_object(path, MOST_BYTES)
            else:
                found = study.compute(options)
                document = _head(name, study, options, time.perf_counter() - start) | found
                path.write_text(_as_json(document))
            try:
                _draw(study, name, document, folder)
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
                if not redraw:
                    raise
                # What a study draws is what it found: each has its own form.
                reason = f"{type(error).__name__}: {error}"
                raise InputError(
                    f"{path}: it is no result of the study {name!r} ({reason:.200})"
                ) from None
        except (LogError, bounded.TooMuch) as error:
            raise InputError(f"{name}: {error}") from None
        except RunsFailed as error:
            failures.append(f"{name}: {error}")
            continue
        except (Unavailable, ExecutorError, OSError) as error:
            raise click.ClickException(f"{name}: {error}") from None
        click.echo(f"{name}: {study.title}: {path}", err=True)
    if failures:
        raise click.ClickException("\n".join(failures))


def _head(name: str, study: studies.Study, options: Options, seconds: float) -> Document:
    return {
        "study": name,
        "title": study.title,
        "source": study.source,
        "smoke": options.smoke,
        "dtr_alloc": dtr_alloc.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(["python", "-m", "bench.studies", *sys.argv[1:]]),
        "seconds": round(seconds, 1),
    }


def _as_json(value: Any, indent: str = "") -> str:
    """JSON with one line for each row of a table, so that a change can be read."""
    deeper = indent + " "
    if isinstance(value, dict) and any(isinstance(part, dict | list) for part in value.values()):
        parts = [f"{json.dumps(key)}: {_as_json(part, deeper)}" for key, part in value.items()]
        text = "{" + ",".join(f"\n{deeper}{part}" for part in parts) + f"\n{indent}}}"
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        parts = [_as_json(part, deeper) for part in value]
        text = "[" + ",".join(f"\n{deeper}{part}" for part in parts) + f"\n{indent}]"
    else:
        text = json.dumps(value)
    return text if indent else text + "\n"


def _draw(study: studies.Study, name: str, document: Document, folder: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        message = "pictures need matplotlib: pip install 'dtr-alloc[plots]'"
        raise Unavailable(message) from None
    # The same document gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        for part, figure in study.draw(document).items():
            path = folder / f"{name}{'-' if part else ''}{part}.svg"
            figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    command(prog_name="python -m bench.studies")
