"""What the results say: who is ahead in which cell, as tables. Knows the JSON only."""

from __future__ import annotations

from collections import Counter
from typing import Any

EVEN = 0.02
"""A step that differs by less takes as long."""
VERDICTS = ("ahead", "even", "behind", "fails")
COLUMNS = ("job", "method", "lines", "memory", "its step", "our step", "ours / its", "its bits")


def verdict(row: dict[str, Any]) -> str:
    """How ours stands beside a peer in the peer's memory."""
    if row["ours"]["outcome"] != "trains":
        return "fails"
    over = row["ours_over_peer"]
    return "ahead" if over < 1 - EVEN else "behind" if over > 1 + EVEN else "even"


def compared(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells whose peer trains, the worst for ours first."""
    rows = [row for row in document["cells"] if row["peer"]["outcome"] == "trains"]
    return sorted(rows, key=lambda row: -row.get("ours_over_peer", float("inf")))


def summary(document: dict[str, Any]) -> str:
    """In how many cells ours is ahead, even, behind, fails."""
    rows = compared(document)
    found = Counter(map(verdict, rows))
    ahead, even, behind, fails = (found[each] for each in VERDICTS)
    return (
        f"Of {len(rows)} cells ours is ahead in {ahead}, within {EVEN:.0%} in {even}, "
        f"behind in {behind}, and fails in {fails}"
    )


def cells(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The lines of a table with COLUMNS."""
    lines = []
    for row in compared(document):
        ours = row["ours"]
        trains = ours["outcome"] == "trains"
        lines.append(
            (
                row["job"],
                row["method"],
                str(row["lines"]),
                f"{row['share']:.0%}",
                f"{row['peer']['ratio']:.2f}",
                f"{ours['ratio']:.2f}" if trains else ours["outcome"],
                f"{row['ours_over_peer']:.2f}" if trains else "",
                bits(row["peer"]),
            )
        )
    return lines


def bits(way: dict[str, Any]) -> str:
    """Whether a way has the bits of plain PyTorch, or what differs."""
    return f"other {', '.join(way['differs'])}" if way["differs"] else "same"


def markdown(document: dict[str, Any]) -> str:
    """The summary, and the table."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *cells(document)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    other = [row for row in compared(document) if row["ours"].get("differs")]
    same = f"Ours has other bits than plain PyTorch in {len(other)} cells."
    return f"**{summary(document)}.** {same}\n\n{table}"
