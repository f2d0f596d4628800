"""What reports of benches say of their cells, and when a way is ended. Needs PyTorch."""

import itertools
import time
from contextlib import closing
from functools import partial
from typing import Any, cast

import pytest

from bench.foreign import report as foreign
from bench.interleaved import Ended, Process, Way
from bench.peers.report import cells, summary


def test_patience_is_time_of_the_processor() -> None:
    sleep = Process(cast(Any, partial(time.sleep, 5)), [], Way())
    with closing(sleep):
        assert sleep.answer(patience=3.0) == {}
    spin = Process(cast(Any, partial(any, itertools.repeat(0))), [], Way())
    with closing(spin), pytest.raises(Ended, match="thrashes"):
        spin.answer(patience=3.0)


def test_beside_peers_what_fails_comes_first_and_two_percent_are_even() -> None:
    def row(over: float | None) -> dict[str, Any]:
        peer = {"outcome": "trains", "ratio": 1.5, "differs": ["buffer"]}
        row = {"job": "a job", "method": "edits", "lines": 2, "share": 0.5, "peer": peer}
        if over is None:
            return row | {"ours": {"outcome": "out of memory"}}
        return row | {"ours": {"outcome": "trains", "ratio": 1.5 * over}, "ours_over_peer": over}

    unedited = {"peer": {"outcome": "RuntimeError: no such edit"}}
    document = {"cells": [row(0.97), row(1.03), row(None), row(0.99), row(1.01), unedited]}
    lines = cells(document)
    assert [line[-2] for line in lines] == ["", "1.03", "1.01", "0.99", "0.97"]
    assert lines[0][-3:] == ("out of memory", "", "other buffer")
    assert summary(document) == (
        "Of 5 cells ours is ahead in 1, within 2% in 2, behind in 1, and fails in 1"
    )


def test_on_foreign_jobs_the_default_is_behind_where_a_preset_alone_trains_or_is_ahead() -> None:
    def cell(method: str, job: str, **found: Any) -> dict[str, Any]:
        about = {"job": job, "share": 0.5, "method": method, "trained_steps": 40}
        return about | {"outcome": "trains", "differs": [], "planned_since": None} | found

    cells = [
        cell(
            "default",
            "even",
            first=1.5,
            first_thread=1.3,
            late=1.2,
            planned_since=13,
            planned_steps=27,
        ),
        cell("dtr-full", "even", first=1.48, first_thread=1.48, late=1.4, differs=["loss"]),
        cell("default", "late", first=1.2, first_thread=1.1, late=1.6),
        cell("dtr-eqclass", "late", first=1.3, first_thread=1.3, late=1.5),
        cell("default", "fails", outcome="OutOfMemoryError: no place", trained_steps=7),
        cell("dtr-full", "fails", first=2.0, first_thread=2.0, late=2.0),
    ]
    skipped = [{"job": "absent", "skipped": "no package"}]
    document = {"cells": cells, "jobs": skipped}
    assert [line[2] for line in foreign.lines(document)] == [
        "1.50, 1.30, 1.20",
        "1.20, 1.10, 1.60 *",
        "step 8: OutOfMemoryError: no place *",
    ]
    assert foreign.lines(document)[0][3] == "since 14, 27 steps"
    assert foreign.lines(document)[0][-1] == "dtr-full: loss"
    assert foreign.summary(document) == (
        "The default trains in 2 of 3 cells, with a plan in 1 and other bits in 0. A published "
        "preset is more than 2% ahead, or trains where the default does not, in the first five "
        "steps in 1, in the thread that trains in these in 1, in the last ten in 2. 1 jobs were "
        "skipped."
    )
    assert "- absent: no package" in foreign.markdown(document)
