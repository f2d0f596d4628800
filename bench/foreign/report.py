"""What the results say, as tables. Knows the JSON only."""

from __future__ import annotations

from typing import Any

COLUMNS = ("job", "share", "default", "plan since", "dtr-full", "dtr-eqclass", "checkpoint", "bits")
EVEN = 0.02
"""A step that differs by less takes as long."""


def lines(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The lines of a table with COLUMNS: first five steps / last ten, of each method."""
    rows: dict[tuple[str, Any], dict[str, dict[str, Any]]] = {}
    for cell in document["cells"]:
        if cell["method"] != "plain":
            rows.setdefault((cell["job"], cell["share"]), {})[cell["method"]] = cell
    out = []
    for (job, share), cells in rows.items():
        since = cells.get("default", {}).get("planned_since")
        names = ("default", "dtr-full", "dtr-eqclass", "checkpoint")
        default, *others = (_cell(cells.get(name)) for name in names)
        out.append((job, str(share), default, _text(since), *others, _bits(cells)))
    return out


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["outcome"] != "trains":
        return f"{cell['outcome'][:40]} (step {cell['trained_steps']})"
    return f"{cell['first']:.2f} / {cell['late']:.2f}"


def _bits(cells: dict[str, dict[str, Any]]) -> str:
    return "; ".join(
        f"{name}: other {', '.join(cell['differs'])}"
        for name, cell in cells.items()
        if cell.get("differs")
    )
