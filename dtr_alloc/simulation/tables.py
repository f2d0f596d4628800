"""A study's rows (dtr_alloc/simulation/simulate.py) as tables and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dtr_alloc.config import format_size

Row = dict[str, Any]


def _groups(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def slowdown(row: Row) -> float:
    """The compute of a run, relative to the log's without a budget."""
    return row["total_compute"] / row["base_compute"] if row["base_compute"] else 1.0


def lost(row: Row) -> float:
    """The mean share of the budget that was lost to fragmentation at a forced eviction
    (native/simulate/fragmentation.h)."""
    times = row["forced_times"] * row["budget_bytes"]
    return row["lost_bytes"] / times if times else 0.0


def tables(rows: Sequence[Row]) -> Iterator[tuple[str, Table]]:
    """One per log, with a heading: every counter if there is one line of runs, else the slowdowns
    side by side."""
    for (log,), of_log in _groups(rows, "log").items():
        lines = _groups(of_log, "heuristic", "dealloc", "seed")
        first = of_log[0]
        space = f", {first['space']}" if first["semantics"] == "runtime" else ""
        heading = (
            f"{log}: peak {format_size(first['base_peak_bytes'])}, "
            f"compute {first['base_compute']:,} ({first['semantics']}{space})"
        )
        if len(lines) == 1:
            yield f"{heading}\n{_label(first)}", _in_detail(of_log)
        else:
            yield f"{heading}\nall compute, in terms of that:", _side_by_side(lines)


def _label(row: Row) -> str:
    seed = "" if row["seed"] is None else f", seed {row['seed']}"
    return f"{row['heuristic']}, {row['dealloc']}{seed}"


def _budget(row: Row) -> str:
    return format_size(row["budget_bytes"]) if row["ratio"] is None else str(row["ratio"])


def _outcome(row: Row) -> str:
    return f"{slowdown(row):.3f}x" if row["status"] == "ok" else row["status"]


def _in_detail(rows: Sequence[Row]) -> Table:
    table = Table()
    for column in ("ratio", "budget", "slowdown", "remats", "evictions", "at deaths", "banished"):
        table.add_column(column, justify="right")
    placed = rows[0]["space"] != "bytes"
    for column in (*(("lost", "scattered") if placed else ()), "peak", "chain", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(_budget(row) if row["ratio"] else "-", format_size(row["budget_bytes"])),
            *(_outcome(row), f"{row['rematerializations']:,}", f"{row['forced_evictions']:,}"),
            *(f"{row['other_evictions']:,}", f"{row['banished']:,}"),
            *((f"{lost(row):.2%}", f"{row['scattered_evictions']:,}") if placed else ()),
            *(format_size(row["peak_bytes"]), f"{row['chain_depth']:,}", f"{row['seconds']:.2f}"),
            style=None if row["status"] == "ok" else "dim",
        )
    return table


def _side_by_side(lines: dict[tuple[Any, ...], list[Row]]) -> Table:
    table = Table()
    table.add_column("heuristic", no_wrap=True)
    for row in next(iter(lines.values())):
        table.add_column(_budget(row), justify="right")
    for rows in lines.values():
        table.add_row(_label(rows[0]), *map(_outcome, rows))
    return table


def picture(rows: Sequence[Row], path: Path) -> None:
    """Slowdown against budget, one panel a log, one line a heuristic (and policy, and seed). A
    cross marks the last budget before one with which the line failed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    logs = _groups(rows, "log")
    columns = min(3, len(logs))
    high = -(-len(logs) // columns)
    figure = Figure(figsize=(0.8 + 4.2 * columns, 0.8 + 3.2 * high), layout="constrained")
    panels = figure.subplots(high, columns, squeeze=False).flat
    colors: dict[tuple[str, str], str] = {}
    has_policies = len({row["dealloc"] for row in rows}) > 1
    for panel, ((log,), of_log) in zip(panels, logs.items(), strict=False):
        for (heuristic, dealloc), line in _groups(of_log, "heuristic", "dealloc").items():
            name = f"{heuristic}, {dealloc}" if has_policies else heuristic
            color = colors.setdefault((heuristic, dealloc), f"C{len(colors) % 10}")
            style = "-" if len(colors) <= 10 else "--"
            for index, of_seed in enumerate(_groups(line, "seed").values()):
                _draw(panel, of_seed, color, style, name if index == 0 else None)
        panel.set_title(Path(log).name.removesuffix(".xz").removesuffix(".log"))
        panel.set_xlabel("budget / peak without a limit")
        panel.set_ylabel("compute / compute without a limit")
        panel.grid(alpha=0.3)
    for panel in list(figure.axes)[len(logs) :]:
        panel.set_axis_off()
    handles = {
        label: handle
        for panel in figure.axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path)


def _draw(panel: Any, rows: Sequence[Row], color: str, style: str, name: str | None) -> None:
    rows = sorted(rows, key=lambda row: row["budget_bytes"])
    across = [row["budget_bytes"] / max(1, row["base_peak_bytes"]) for row in rows]
    up = [slowdown(row) if row["status"] == "ok" else math.nan for row in rows]
    panel.plot(across, up, style, color=color, marker=".", markersize=4, linewidth=1, label=name)
    for below, row, x, y in zip(rows, rows[1:], across[1:], up[1:], strict=False):
        if below["status"] != "ok" and row["status"] == "ok":
            panel.plot(x, y, "x", color=color, markersize=7)
