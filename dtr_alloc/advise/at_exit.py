"""Writes the files of a session when its process ends."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtr_alloc.config import Config, is_page
from dtr_alloc.records import Rows
from dtr_alloc.report import (
    TITLE,
    budget_text,
    job_facts,
    printed_error,
    render,
    write_stats,
    write_text,
)


def write_report(
    target: bool | str | Path,
    stats: Mapping[str, Any],
    config: Config | None = None,
    rows: Rows | None = None,
) -> None:
    """Writes the figures to stderr (True), with all counters ("all"), or to a file, as a page if it
    has that suffix; False writes nothing. Raises OSError.

    rows: of the session, for a page.
    """
    if target is False:
        return
    facts = job_facts(config)
    shown = {**stats, "process_peak_resident_bytes": facts["peak_resident_bytes"]}
    if is_page(target):
        from dtr_alloc.advise.page import page  # with matplotlib

        write_text(str(target), page(shown, facts, rows))
        return
    title = TITLE if config is None else f"{TITLE}: budget {budget_text(config.budget)}"
    text = render(shown, title, everything=target == "all", error=printed_error())
    if target is True or target == "all":
        print(text, file=sys.stderr, end="", flush=True)
    else:
        write_text(target, text)


_AtExit = tuple[int, Config, Callable[[], tuple[Mapping[str, Any], Rows | None]]]
_at_exit: _AtExit | None = None
"""The process that writes at its exit, its settings, and the source of counters."""


def write_at_exit(
    config: Config, stats: Callable[[], tuple[Mapping[str, Any], Rows | None]]
) -> None:
    """Writes the files of ``config.stats`` and ``config.report`` when this process ends, with the
    counters and the rows that ``stats`` returns then.

    Also after an exception; not after os._exit or a signal that kills. A forked child writes
    nothing. Another call replaces the configuration.
    """
    global _at_exit
    if _at_exit is None:
        atexit.register(_write_at_exit)
    # Paths mean what they meant now, also if the job changes its folder.
    path = None if config.stats is None else config.stats.absolute()
    report = config.report.absolute() if isinstance(config.report, Path) else config.report
    _at_exit = (os.getpid(), replace(config, stats=path, report=report), stats)


def _write_at_exit() -> None:
    assert _at_exit is not None
    pid, config, find = _at_exit
    if os.getpid() != pid or not (config.stats or config.report):
        return
    rows = None
    try:
        stats, rows = find()
    except Exception as error:
        stats = {"error": f"{type(error).__name__}: {error}"}
    # The job's own result is not changed by a file that cannot be written.
    if config.stats is not None:
        try:
            write_stats(config.stats, stats, config)
        except Exception as error:
            _say_lost("DTR_ALLOC_STATS", error)
    try:
        write_report(config.report, stats, config, rows)
    except Exception as error:
        _say_lost("DTR_ALLOC_REPORT", error)


def _say_lost(variable: str, error: Exception) -> None:
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    print(f"dtr_alloc: cannot write {variable}: {kind}{error}", file=sys.stderr)
