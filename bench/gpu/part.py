"""What a part of the benchmark is: a process that prints rows, one JSON object a line.

A row is printed as soon as it is measured, so that what a part found outlives it. Some keys have a
meaning to whoever runs the part:

- ``goals``: what was aimed at, by the name of the row's number: ``{"ratio": ["<=", 1.01]}``;
- ``skipped``: why the row has no numbers;
- ``error``: what went wrong, where the part went on with its next row.

A part fails, after its last row, if one has an error or if it found something wrong (`Wrong`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


class Wrong(RuntimeError):
    """What was measured must not be: other bits, more memory than the budget."""


@dataclass(frozen=True)
class Options:
    """How a part is run.

    Attributes:
        device: "cuda", or "cpu" for the dry run.
        tiny: sizes and counts that take seconds on a CPU and mean nothing.
    """

    device: str
    tiny: bool


def protocol() -> Any:
    """Standard output for rows alone: what anybody else prints goes to standard error."""
    rows = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return rows


def run(rows: Callable[[Options], Iterable[Row]]) -> None:
    """The main function of a part: prints its rows. Exit status 1 if it failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--tiny", action="store_true")
    parsed = parser.parse_args()
    output = protocol()
    errors = 0
    try:
        for row in rows(Options(parsed.device, parsed.tiny)):
            errors += "error" in row
            print(json.dumps(row), file=output)
    except Wrong as wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    if errors:
        print(f"{errors} rows have errors", file=sys.stderr)
        raise SystemExit(1)


def met(row: Row) -> bool | None:
    """Whether a row's numbers reach all of its goals; None if it has none of them."""
    compared = [
        row[name] <= limit if relation == "<=" else row[name] >= limit
        for name, (relation, limit) in row.get("goals", {}).items()
        if row.get(name) is not None
    ]
    return all(compared) if compared else None
