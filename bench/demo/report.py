"""The demo's table, from nothing but its results."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from bench.results import MIB


def mib(count: int | None) -> str:
    return "-" if count is None else f"{count / MIB:.1f}"


def table(result: dict[str, Any]) -> Table:
    """One row per run of a job, from the run without a plug-in to the smallest budget."""
    title = f"{result['job']}: {mib(result['activation_bytes'])} MiB of activations a step"
    shown = Table(title=title)
    for column in ("budget MiB", "activations", "peak allocated MiB", "peak resident MiB"):
        shown.add_column(column, justify="right")
    for column in ("step CPU ms", "against plain", "evictions", "remats", "same bits"):
        shown.add_column(column, justify="right")
    for row in result["runs"]:
        budget = row["label"] if row["budget_bytes"] is None else mib(row["budget_bytes"])
        share = "-" if row["fraction"] is None else f"{row['fraction']:.0%}"
        if not row["fits"]:
            shown.add_row(budget, share, "out of memory", *["-"] * 6, style="dim")
            continue
        shown.add_row(
            *(budget, share, mib(row["peak_allocated_bytes"]), mib(row["peak_resident_bytes"])),
            *(f"{1e3 * row['step_seconds']:.0f}", f"{row['slowdown']:.2f}x"),
            *(str(row["evictions"]), str(row["rematerializations"])),
            "yes" if row["same_bits"] else "[bold red]NO[/]",
        )
    return shown


def summary(result: dict[str, Any]) -> str:
    """What the table shows, in a sentence or two."""
    fits = [row for row in result["runs"] if row["fits"]]
    free, least = fits[1], fits[-1]
    bits = "the same bits" if all(row["same_bits"] for row in fits) else "OTHER BITS"
    return (
        f"{result['job']} needs {mib(free['peak_allocated_bytes'])} MiB. It trained in "
        f"{mib(least['peak_allocated_bytes'])} MiB as well, with {bits}, and a step took "
        f"{least['slowdown']:.2f} times the processor time of plain PyTorch's."
    )
