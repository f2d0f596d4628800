"""What the results say: who is ahead in which cell, as tables. Knows the JSON only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

EVEN = 0.02
"""A step that differs by less takes as long."""
SAVING = 0.95
"""A method that takes more of plain PyTorch's memory saves none, and is not compared."""
VERDICTS = ("ahead", "even", "behind", "fails")
COLUMNS = ("job", "method", "lines", "memory", "its step", "our step", "ours / its", "its bits")
LOST = ("job", "method", "ours", "operators run again", "search")


def verdict(row: dict[str, Any]) -> str:
    """How ours stands beside a peer in the peer's memory."""
    if row["ours"]["outcome"] != "trains":
        return "fails"
    over = row["ours_over_peer"]
    return "ahead" if over < 1 - EVEN else "behind" if over > 1 + EVEN else "even"


def compared(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells whose peer trains and saves memory, the worst for ours first."""
    rows = [row for row in document["cells"] if not left_out(row)]
    return sorted(rows, key=lambda row: -row.get("ours_over_peer", float("inf")))


def left_out(row: dict[str, Any]) -> str:
    """Why a cell is not compared; nothing if it is."""
    if row["peer"]["outcome"] != "trains":
        return row["peer"]["outcome"]
    return f"takes {row['share']:.0%} of the memory" if row["share"] > SAVING else ""


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
    lines: list[tuple[str, ...]] = []
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


def lost(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The cells in which ours is behind or fails, with what the engine does there."""
    lines: list[tuple[str, ...]] = []
    for row in compared(document):
        if (found := verdict(row)) in ("ahead", "even"):
            continue
        added = row["ours"].get("added")
        again = f"{added['rematerializations'] / added['recorded_ops']:.2f}" if added else ""
        seconds = row["plain"]["step_seconds"]
        search = f"{added['search_seconds'] / seconds:.2f}" if added else ""
        lines.append((row["job"], row["method"], found, again, search))
    return lines


def table(head: tuple[str, ...], lines: Iterable[tuple[Any, ...]]) -> str:
    rows = [head, ("---",) * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def markdown(document: dict[str, Any]) -> str:
    """The summary, and the table."""
    other = sum(bool(row["ours"].get("differs")) for row in document["cells"] + document["lines"])
    same = f"Ours has other bits than plain PyTorch in {other} of all runs."
    out = [f"- {each}" for each in others(document)]
    parts = [f"**{summary(document)}.** {same}", table(COLUMNS, cells(document))]
    parts += ["Not compared:", "\n".join(out)]
    parts += ["Where ours is not ahead or even:", table(LOST, lost(document))]
    return "\n\n".join(parts)


def others(document: dict[str, Any]) -> list[str]:
    """The cells that are not compared, and why."""
    reasons = ((row, left_out(row)) for row in document["cells"])
    return [f"{row['job']}, {row['method']}: {reason}" for row, reason in reasons if reason]
