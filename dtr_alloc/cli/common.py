"""Shared parts of commands: their group, options, and the end for a wrong file."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from dtr_alloc import bounded

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

_T = TypeVar("_T")
_WIDEST = 10_000
"""Columns of text: more than any table takes."""


class InputError(click.ClickException):
    """A file does not fit the command, or takes more memory than there is. The exit status is that
    of wrong options."""

    exit_code = 2


def of_file(path: Path, error: Exception) -> InputError:
    """The same error, with the file's name."""
    text = str(error)
    return InputError(text if str(path) in text else f"{path}: {text}")


def print_table(console: Console, table: Table) -> None:
    """Prints a table with each cell whole and on one line. In a file the table is as wide as
    necessary; on a narrow terminal it comes in parts, each with the first column."""
    parts = [table]
    if console.is_terminal:
        first, *others = table.columns
        parts, chosen = [], [first]
        for column in others:
            if len(chosen) > 1 and _width(console, _part(table, [*chosen, column])) > console.width:
                parts.append(_part(table, chosen))
                chosen = [first]
            chosen.append(column)
        parts.append(_part(table, chosen))
        for part in parts[1:]:
            part.title = part.caption = None
    for part in parts:
        width = console.width
        console.width = max(width, _width(console, part))
        console.print(part)
        console.width = width


def _part(table: Table, columns: Sequence[Column]) -> Table:
    """Some columns of a table."""
    part = copy(table)
    part.columns, part.rows = [], []
    for column in columns:
        part.add_column(
            column.header, justify=column.justify, vertical=column.vertical, no_wrap=True
        )
    cells = zip(*(column.cells for column in columns), strict=True)
    for row, of_row in zip(table.rows, cells, strict=True):
        part.add_row(*of_row, style=row.style)
    return part


def _width(console: Console, table: Table) -> int:
    """The width of a table in columns of text."""
    return console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum


class LazyCommands(UserDict[str, Any]):
    """The commands of a group by name, as ``module:attribute``. Each is imported on demand: a job
    needs no simulator."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = super().__getitem__(name).partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


def list_option(name: str, default: str, text: str) -> Callable[[Any], Any]:
    """An option that may be given several times, each time with a list."""
    return click.option(
        name, f"{name[2:]}s", multiple=True, default=(default,), show_default=True, metavar="LIST",
        help=text,
    )  # fmt: skip


def given(option: str, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None


def each_once(option: str, texts: Sequence[str], parse: Callable[[str], Iterable[_T]]) -> list[_T]:
    return given(
        option, lambda: list(dict.fromkeys(itertools.chain.from_iterable(map(parse, texts))))
    )


def json_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """The JSON object in a file of so many bytes at most. Raises InputError, and OSError."""
    with bounded.errors_as(InputError, path):
        text = bounded.read_bytes(path, most_bytes)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: it holds {bounded.shown(document)}; allowed: an object")
    return document


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
