"""Shows what a run did: ``stats()`` as JSON for programs and as a table for people.

Nothing here measures or decides. rich is imported when a table is drawn, not before: this
module is loaded in every job that has a budget.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtr_alloc.config import Budget, Config, format_size
from dtr_alloc.output_file import OutputFile

if TYPE_CHECKING:
    from rich.table import Table

TITLE = "dtr_alloc"
_MOST_KEPT = 5
"""Rows of a table that say what was kept."""


def package_version(name: str) -> str | None:
    """The version of an installed distribution; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def job_facts(config: Config | None = None) -> dict[str, Any]:
    """What a reader of numbers must know of the process that made them."""
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
    """Writes stats as JSON; returns the path written.

    The keys are those of stats(), and ``job``: versions, budget, argv. A reader sees the whole
    file or the one before. Raises OSError.
    """
    document = {**stats, "job": job_facts(config)}
    return write_text(path, json.dumps(document, indent=2, default=str) + "\n")


def stats_table(stats: Mapping[str, Any], title: str = TITLE) -> Table:
    """stats() as a rich table: one row a counter, sizes and times in units for people."""
    from rich.table import Table

    table = Table(title=title, show_header=False)
    table.add_column("counter")
    table.add_column("value", justify="right")
    for name, value in _rows(stats):
        table.add_row(name, value)
    return table


def render(stats: Mapping[str, Any], title: str = TITLE, width: int = 72) -> str:
    """stats_table as plain text."""
    from io import StringIO

    from rich.console import Console

    text = StringIO()
    Console(file=text, width=width, markup=False).print(stats_table(stats, title))
    return text.getvalue()


def write_report(
    target: bool | str | os.PathLike[str],
    stats: Mapping[str, Any],
    config: Config | None = None,
) -> None:
    """Writes the table to stderr (True) or to a file; False writes nothing. Raises OSError."""
    if target is False:
        return
    facts = job_facts(config)
    title = TITLE if config is None else f"{TITLE}: budget {budget_text(config.budget)}"
    shown = {**stats, "process_peak_resident_bytes": facts["peak_resident_bytes"]}
    text = render(shown, title)
    if target is True:
        print(text, file=sys.stderr, end="", flush=True)
    else:
        write_text(target, text)


_exit_config: Config | None = None
_exit_stats: Callable[[], Mapping[str, Any]] = dict
_exit_pid: int | None = None


def write_at_exit(config: Config, stats: Callable[[], Mapping[str, Any]]) -> None:
    """Writes the files that ``config.stats`` and ``config.report`` ask for when this process ends,
    with the counters that ``stats`` returns then.

    Also after an exception; not after os._exit or a signal that kills. A forked child writes
    nothing. Calling it again replaces the configuration, it does not write twice.
    """
    global _exit_config, _exit_stats, _exit_pid
    if _exit_pid is None:
        atexit.register(_write_at_exit)
    # Paths mean what they meant now, also if the job changes its folder.
    path = None if config.stats is None else config.stats.absolute()
    report = config.report if isinstance(config.report, bool) else config.report.absolute()
    _exit_config = Config(**{**vars(config), "stats": path, "report": report})
    _exit_stats = stats
    _exit_pid = os.getpid()


def _write_at_exit() -> None:
    config = _exit_config
    if config is None or os.getpid() != _exit_pid or not (config.stats or config.report):
        return
    try:
        stats = _exit_stats()
    except Exception as error:
        stats = {"error": f"{type(error).__name__}: {error}"}
    # The job's own result is not changed by a file that cannot be written.
    if config.stats is not None and not _is_launchers(config.stats, stats):
        try:
            write_stats(config.stats, stats, config)
        except OSError as error:
            print(f"dtr_alloc: cannot write DTR_ALLOC_STATS: {error}", file=sys.stderr)
    try:
        write_report(config.report, stats, config)
    except OSError as error:
        print(f"dtr_alloc: cannot write DTR_ALLOC_REPORT: {error}", file=sys.stderr)


def _is_launchers(path: Path, stats: Mapping[str, Any]) -> bool:
    """Whether the file is one of the ranks', and this process only started them, as torchrun does:
    it has no rank and made no tensor. Rank 0 has written the file then."""
    has_rank = "{rank}" not in str(path) or "RANK" in os.environ
    return not has_rank and stats.get("ever_allocated_bytes") == 0


def fill_in(path: str | os.PathLike[str]) -> Path:
    """A path with ``{pid}`` and ``{rank}`` filled in."""
    text = os.fspath(path)
    text = text.replace("{pid}", str(os.getpid()))
    return Path(text.replace("{rank}", os.environ.get("RANK", "0")))


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a file whole. Raises OSError."""
    place = fill_in(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with OutputFile(place) as file:
        file.append(text.encode())
        file.put_in_place()
    return place


def _kept_rows(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in entries[:_MOST_KEPT]:
        made = f"{entry['operator']}, as " if entry["operator"] else ""
        where = f" at {entry['line']}" if entry["line"] else ""
        yield f"kept: {made}{entry['why']}{where}", format_size(entry["size_bytes"])
    if others := entries[_MOST_KEPT:]:
        yield "kept: others", format_size(sum(entry["size_bytes"] for entry in others))


def budget_text(budget: Budget) -> str:
    """A budget for people."""
    return str(budget) if budget.size_bytes is None else format_size(budget.size_bytes)


def _rows(stats: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in stats.items():
        name = prefix + str(key)
        if isinstance(value, Mapping):
            yield from _rows(value, f"{name}.")
        elif name == "kept":
            yield from _kept_rows(value)
        elif isinstance(value, int) and not isinstance(value, bool) and name.endswith("_bytes"):
            yield name.removesuffix("_bytes").replace("_", " "), format_size(value)
        elif isinstance(value, int | float) and name.endswith("_seconds"):
            yield name.removesuffix("_seconds").replace("_", " "), f"{value:.3f} s"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name.replace("_", " "), f"{value:,}"
        else:
            yield name.replace("_", " "), str(value)
