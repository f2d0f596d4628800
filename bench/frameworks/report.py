"""What the results say, as a table. Knows the JSON only."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.peers.report import bits, table

MIB = 2**20
SHARES = ("70%", "50%")
COLUMNS = ("job", "state", "activations", "bits", "smallest", "no limit", *SHARES, "kept")


def cells(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The lines of a table with COLUMNS."""
    lines = []
    for row in document["results"]:
        ways, least = row["ways"], row["smallest"]
        trained = [way for way in [*ways.values(), least] if "differs" in way]
        activation_bytes = row["peak_bytes"] - row["idle_bytes"]
        bound = (row["bound_bytes"] - row["idle_bytes"]) / activation_bytes
        lines.append(
            (
                row["job"],
                _mib(row["idle_bytes"]),
                _mib(activation_bytes),
                bits({"differs": sorted({each for way in trained for each in way["differs"]})}),
                f"{least['part']:.0%}" if least["outcome"] == "trains" else least["outcome"],
                *(
                    f"{way['ratio']:.2f}"
                    if way["outcome"] == "trains"
                    else f"{way['outcome']}; bound {bound:.0%}"
                    for way in (ways[name] for name in ("no limit", *SHARES))
                ),
                kept(row["kept"], activation_bytes / 100),
            )
        )
    return lines


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f}"


def kept(found: list[tuple[int, str, str, str]], least_bytes: float) -> str:
    """What is kept of so many bytes or more, by its reason, and the operator or the line."""
    sizes: Counter[str] = Counter()
    for size_bytes, operator, why, line in found:
        sizes[f"{why} ({line or operator})" if line or operator else why] += size_bytes
    large = [(why, size) for why, size in sizes.most_common() if size >= least_bytes]
    return "; ".join(f"{_mib(size)} MiB: {why}" for why, size in large) or "nothing"


def markdown(document: dict[str, Any]) -> str:
    return table(COLUMNS, cells(document))
