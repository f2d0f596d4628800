"""What ``dtr-alloc simulate`` does once click has read its options."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dtr_alloc import simulate, simulate_report
from dtr_alloc.command_error import InputError
from dtr_alloc.config import Config, parse_size
from dtr_alloc.oplog import LogError, Program, compile_log

_T = TypeVar("_T")


def run(
    *,
    logs: Sequence[str],
    budgets: Sequence[str],
    heuristics: Sequence[str],
    deallocs: Sequence[str],
    seeds: Sequence[str],
    semantics: str,
    space: str,
    chunk: str | None,
    room: str,
    placement: str,
    moving: str | None,
    thrash: float | None,
    json_path: str | None,
    plot_path: str | None,
    jobs: int | None,
) -> None:
    """Makes a study and shows it. Raises click.UsageError for options that are wrong, and
    InputError for logs that are: then nothing was written."""
    if space != "bytes" and semantics != "runtime":
        raise click.UsageError(f"--space {space} needs --semantics runtime: simrd has no addresses")
    if chunk is not None and space == "bytes":
        raise click.UsageError("--chunk needs --space heap or fixed: counted bytes are not mapped")
    if moving is not None and space == "bytes":
        raise click.UsageError("--moving needs --space heap or fixed: counted bytes have no place")
    if placement != Config.placement and space == "bytes":
        raise click.UsageError(
            f"--placement {placement} needs --space heap or fixed: counted bytes have no place"
        )
    if thrash is not None and not 1 <= thrash < float("inf"):
        raise click.UsageError(f"--thrash is {thrash}; allowed: 1 and more, in terms of the base")
    policies = each_once("--dealloc", deallocs, _deallocs)
    plan = simulate.Plan(
        limits=each_once("--budget", budgets, simulate.parse_limits),
        rules=_given(
            "--heuristic", lambda: simulate.parse_heuristics(heuristics, semantics, policies)
        ),
        deallocs=policies,
        seeds=each_once("--seed", seeds, simulate.parse_seeds),
        semantics=semantics,
        space=space,
        chunk_bytes=0 if chunk is None else _given("--chunk", lambda: parse_size(chunk)),
        room=room,
        placement=placement,
        move_bytes_per_s=0 if moving is None else _given("--moving", lambda: parse_size(moving)),
        thrash=thrash,
    )
    _given("the combination", plan.check)
    if plot_path is not None:
        _check_plot(plot_path)
    study = simulate.Study(plan, compiled(logs), jobs or cores())

    rows = []
    errors = Console(stderr=True)
    with results_file(json_path) as file, _progress(errors, len(study.setups)) as advance:
        try:
            for row in study:
                rows.append(row)
                if file is not None:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                advance()
        except ValueError as error:
            raise InputError(f"{', '.join(logs)}: {error}") from None
        except (RuntimeError, OSError) as error:
            raise click.ClickException(str(error)) from None
    shown = Console(stderr=json_path == "-")
    if not shown.is_terminal:
        shown = Console(stderr=json_path == "-", width=120)
    for heading, table in simulate_report.tables(rows):
        shown.print(heading, markup=False, highlight=False, soft_wrap=True)
        shown.print(table)
    if plot_path is not None:
        try:
            simulate_report.picture(rows, Path(plot_path))
        except OSError as error:
            raise click.ClickException(f"--plot: {error}") from None


def _given(option: str, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None


def each_once(option: str, texts: Sequence[str], parse: Callable[[str], Iterable[_T]]) -> list[_T]:
    return _given(
        option, lambda: list(dict.fromkeys(itertools.chain.from_iterable(map(parse, texts))))
    )


def _deallocs(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    for dealloc in found:
        if dealloc not in simulate.DEALLOCS:
            raise ValueError(f"{dealloc!r}; allowed: {', '.join(simulate.DEALLOCS)}")
    return found


def _check_plot(path: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        message = "--plot needs matplotlib: pip install 'dtr-alloc[plots]'"
        raise click.ClickException(message) from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in kinds:
        raise click.UsageError(f"--plot: {path!r}; allowed endings: {', '.join(sorted(kinds))}")


def compiled(logs: Sequence[str]) -> list[Program]:
    programs = []
    for log in logs:
        try:
            programs.append(compile_log(log))
        except FileNotFoundError:
            raise click.UsageError(f"there is no log {log!r}") from None
        except OSError as error:
            raise InputError(f"{log}: {error.strerror or error}") from None
        except LogError as error:
            raise InputError(str(error)) from None
    return programs


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def results_file(path: str | None) -> Iterator[IO[str] | None]:
    if path is None or path == "-":
        yield None if path is None else sys.stdout
        return
    try:
        file = open(path, "w")  # noqa: SIM115 (it is closed below, and this error is ours)
    except OSError as error:
        raise click.UsageError(f"--json: {path}: {error.strerror}") from None
    with file:
        yield file


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if that is a terminal; gives what moves it on by one run."""
    if not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("runs", total=total)
        yield lambda: progress.advance(task)
