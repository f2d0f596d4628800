"""What the results say, as a summary and a table. Knows the JSON only."""

from __future__ import annotations

from typing import Any

from bench.peers.report import EVEN, table

PRESETS = ("dtr-full", "dtr-eqclass")
EDITED = "checkpoint"
COLUMNS = ("job", "share", "default", "plan", *PRESETS, EDITED, "other bits")
PARTS = {
    "first": "in the first five steps",
    "first_thread": "in the thread that trains in these",
    "late": "in the last ten",
    "late_thread": "in the thread that trains in these",
}

Row = dict[str, dict[str, Any]]
"""The cells of a job and a budget, by method."""


def rows(document: dict[str, Any]) -> dict[tuple[str, Any], Row]:
    found: dict[tuple[str, Any], Row] = {}
    for cell in document["cells"]:
        found.setdefault((cell["job"], cell["share"]), {})[cell["method"]] = cell
    return found


def behind(row: Row, part: str) -> bool:
    """Whether the default takes longer than a preset, or fails where one trains."""
    ours = row["default"].get(part, float("inf"))
    presets = [row[name][part] for name in PRESETS if part in row.get(name, {})]
    return bool(presets) and ours > min(presets) * (1 + EVEN)


def lines(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The lines of a table with COLUMNS."""
    return [
        (
            job,
            str(share),
            _cell(row.get("default")) + " *" * any(behind(row, part) for part in PARTS),
            _plan(row.get("default", {})),
            *(_cell(row.get(name)) for name in (*PRESETS, EDITED)),
            ", ".join(
                f"{name}: {', '.join(cell['differs'])}"
                for name, cell in row.items()
                if cell.get("differs")
            ),
        )
        for (job, share), row in rows(document).items()
    ]


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["outcome"] != "trains":
        return f"step {cell['trained_steps'] + 1}: {cell['outcome'][:60]}"
    return ", ".join(f"{cell[part]:.2f}" for part in PARTS if part in cell)


def _plan(cell: dict[str, Any]) -> str:
    """The first step that a plan served, and how many it served."""
    if cell.get("planned_since") is None:
        return ""
    return f"since {cell['planned_since'] + 1}, {cell['planned_steps']} steps"


def summary(document: dict[str, Any]) -> str:
    ours = [row for row in rows(document).values() if "default" in row]
    trains = [row for row in ours if row["default"]["outcome"] == "trains"]
    other = sum(bool(row["default"]["differs"]) for row in trains)
    planned = sum(row["default"]["planned_since"] is not None for row in trains)
    measured = [part for part in PARTS if any(part in row["default"] for row in ours)]
    lost = [f"{PARTS[part]} in {sum(behind(row, part) for row in ours)}" for part in measured]
    skipped = sum("skipped" in job for job in document["jobs"])
    return (
        f"The default trains in {len(trains)} of {len(ours)} cells, with a plan in {planned} and "
        f"other bits in {other}. A published preset is more than {EVEN:.0%} ahead, or trains where "
        f"the default does not, {', '.join(lost)}. {skipped} jobs were skipped."
    )


def markdown(document: dict[str, Any]) -> str:
    """The summary, what was skipped, and the table."""
    skipped = [f"- {job['job']}: {job['skipped']}" for job in document["jobs"] if "skipped" in job]
    parts = [f"**{summary(document)}**", "\n".join(skipped), table(COLUMNS, lines(document))]
    return "\n\n".join(part for part in parts if part)
