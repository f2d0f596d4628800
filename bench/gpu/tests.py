"""The tests of tests/gpu, as a part: a row for each test.

They run in several processes at once where pytest-xdist is there.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.part import Options, Row, run

AT_ONCE = 10
ROOT = Path(__file__).parents[2]


class Rows:
    """A plugin of pytest that makes a row of each test's outcome."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Row | None] = queue.Queue()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        name = report.nodeid.removeprefix("tests/gpu/")
        row: Row = {"test": name, "outcome": report.outcome, "seconds": report.duration}
        if report.outcome == "skipped":
            reason = str(report.longrepr[-1] if report.longrepr else "")
            row["skipped"] = reason.removeprefix("Skipped: ")
        if report.outcome == "failed":
            row["error"] = report.longreprtext[-2500:]
        self.queue.put(row)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            row = {"test": report.nodeid, "outcome": "not collected"}
            self.queue.put(row | {"error": report.longreprtext[-2500:]})

    def broken(self, error: str) -> None:
        """pytest itself failed."""
        self.queue.put({"test": "pytest", "outcome": "broken", "error": error})


def rows(options: Options) -> Iterator[Row]:
    os.environ["GPU_TESTS_DEVICE"] = options.device
    rows = Rows()
    # Every test limits its own process; a limit by signals needs the main thread.
    arguments = [str(ROOT / "tests/gpu"), "-q", "-p", "no:cacheprovider", "-p", "no:timeout"]
    arguments += [f"--rootdir={ROOT}"]
    if options.device == "cuda" and importlib.util.find_spec("xdist") is not None:
        arguments += ["-n", str(min(AT_ONCE, os.cpu_count() or 1))]

    def tests() -> None:
        try:
            status = pytest.main(arguments, plugins=[rows])
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                rows.broken(f"exit status {int(status)}")
        except BaseException as error:
            rows.broken(repr(error))
        finally:
            rows.queue.put(None)

    # Rows are printed as tests end; pytest itself ends when all have.
    threading.Thread(target=tests, daemon=True).start()
    while (row := rows.queue.get()) is not None:
        yield row


if __name__ == "__main__":
    run(rows)
