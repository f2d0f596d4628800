"""Shows a run: ``stats()`` as JSON for programs, the most important figures for people.

Every job with a budget loads this module, so rich is imported only when a table is drawn.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtr_alloc import output_file
from dtr_alloc.config import Budget, Config, format_size
from dtr_alloc.figures import advice, figures, kept_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TITLE = "dtr_alloc"
_MOST_KEPT = 5
"""Rows of a table for kept contents."""


def package_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def job_facts(config: Config | None = None) -> dict[str, Any]:
    """The facts of the process that a reader of its numbers needs."""
    torch = sys.modules.get("torch")
    return {
        "argv": list(sys.orig_argv),
        "budget": None if config is None else str(config.budget),
        "device": None if config is None else config.device,
        "heuristic": None if config is None else str(config.heuristic),
        "dtr_alloc": package_version("dtr-alloc"),
        "torch": None if torch is None else str(getattr(torch, "__version__", None)),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "pid": os.getpid(),
        "rank": os.environ.get("RANK"),
        # Linux counts ru_maxrss in KiB.
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def write_stats(
    path: str | os.PathLike[str],
    stats: Mapping[str, Any],
    config: Config | None = None,
) -> Path:
    """Writes stats as JSON; returns the path.

    The keys are those of stats(), and ``job``: versions, budget, argv. A reader sees the whole file
    or the one before. Raises OSError.
    """
    document = {**stats, "job": job_facts(config)}
    return write_text(path, json.dumps(document, indent=2, default=str) + "\n")


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as an HTML table; "" if there are none."""
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f"<td>{escape(value)}</td></tr>\n"
        for name, value in rows
    )
    return f"<table>\n{cells}</table>\n" if cells else ""


def _shown_by_console(shown: Iterable[Table | str], width: int) -> Console:
    """A console of this width that has recorded tables and lines."""
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), record=True, markup=False, width=width, force_jupyter=False)
    for each in shown:
        console.print(each)
    return console


def console_text(shown: Iterable[Table | str], width: int) -> str:
    """Tables and lines, as a console of this width shows them, as plain text."""
    return _shown_by_console(shown, width).export_text()


def console_html(shown: Iterable[Table | str], width: int) -> str:
    """Tables and lines, as a console of this width shows them, as HTML."""
    console = _shown_by_console(shown, width)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def printed_error() -> BaseException | None:
    """The error that the interpreter printed last: at its exit, the error that ended the job."""
    return sys.__dict__.get("last_value")


def render(
    stats: Mapping[str, Any],
    title: str = TITLE,
    width: int = 80,
    *,
    everything: bool = False,
    error: BaseException | None = None,
) -> str:
    """The figures as a table in plain text, with a sentence of advice.

    Args:
        everything: whether all counters follow.
        error: by which the job ended.
    """
    rows = [*figures(stats)] or [*counter_rows(stats)]  # where there was an error, that is all
    shown: list[Table | str] = [title, _table(rows)]
    if sentence := advice(stats, error):
        shown.append(sentence)
    if everything:
        shown += ["all counters", _table(counter_rows(stats))]
    return console_text(shown, width)


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column("name")
    table.add_column("value", justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table


def fill_in(path: str | os.PathLike[str]) -> Path:
    """A path with ``{pid}`` and ``{rank}`` filled in."""
    text = os.fspath(path)
    text = text.replace("{pid}", str(os.getpid()))
    return Path(text.replace("{rank}", os.environ.get("RANK", "0")))


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a whole file, with escapes for characters outside of UTF-8. Raises OSError."""
    place = fill_in(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    output_file.write(place, text.encode(errors="backslashreplace"))
    return place


def budget_text(budget: Budget) -> str:
    return str(budget) if budget.size_bytes is None else format_size(budget.size_bytes)


def counter_rows(stats: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All counters with names and values for people."""
    for key, value in stats.items():
        name = prefix + str(key)
        if isinstance(value, Mapping):
            yield from counter_rows(value, f"{name}.")
        elif name == "kept":
            for entry in value[:_MOST_KEPT]:
                yield f"kept: {kept_text(entry)}", format_size(entry["size_bytes"])
            if others := value[_MOST_KEPT:]:
                yield "kept: others", format_size(sum(entry["size_bytes"] for entry in others))
        elif isinstance(value, int) and not isinstance(value, bool) and name.endswith("_bytes"):
            yield name.removesuffix("_bytes").replace("_", " "), format_size(value)
        elif isinstance(value, int | float) and name.endswith("_seconds"):
            yield name.removesuffix("_seconds").replace("_", " "), f"{value:.3f} s"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name.replace("_", " "), f"{value:,}"
        else:
            yield name.replace("_", " "), str(value)
