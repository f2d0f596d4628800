"""What fragmentation costs under eviction: lost bytes, recomputing and the smallest budgets. The
study is settled; this draws it.

Logs were run on the engine that trains (runtime semantics). The *fixed* heap has as many addresses
as the budget has bytes. The *mapped* heap has memory mapped by chunks of 2 MiB, as CUDA has it.
``counted`` has no addresses: what a policy would do without fragmentation.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.studies.study import Document, Study, settled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERCENTS = tuple(range(30, 91, 10))
"""Budgets of the comparison, in percent of the peak."""
STYLES: dict[str, dict[str, Any]] = {
    "dtr-full": {"color": "#0072b2"},
    "dtr-eqclass": {"color": "#56b4e9"},
    "megengine": {"color": "#b8a300"},
    "coop": {"color": "#5e3c99"},
    "coop, best fit": {"color": "#5e3c99", "ls": "--"},
    "ours": {"color": "#000000"},
    "ours, moves at a quarter of the speed": {"color": "#000000", "ls": "--"},
    "ours, no moves": {"color": "#009e73"},
    "ours, mapped": {"color": "#d55e00"},
    "ours, counted": {"color": "#9a9a9a", "ls": ":"},
}
"""The lines of the policies; `ours, counted` alone has no addresses."""


def draw(document: Document) -> Mapping[str, Figure]:
    """Lost bytes and scattered evictions against the budget, in the mean over the logs."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row[0] for row in document["rows"]))
    figure = Figure(figsize=(4.4 * len(kinds) + 0.6, 6.2), layout="constrained")
    panels = figure.subplots(2, len(kinds), squeeze=False, sharex=True, sharey="row")
    for column, logs in enumerate(kinds):
        for label, line in STYLES.items():
            if label == "ours, counted":
                continue
            lost, scattered = [], []
            for percent in PERCENTS:
                runs = [
                    row
                    for row in document["rows"]
                    if row[:1] + row[2:5] == [logs, label, percent, "ok"] and row[10] > 0
                ]
                evictions = sum(row[8] for row in runs)
                lost.append(100 * statistics.fmean([row[6] for row in runs] or [float("nan")]))
                share = sum(row[9] for row in runs) / evictions if evictions else float("nan")
                scattered.append(100 * share)
            style = {**line, "marker": ".", "ms": 5}
            panels[0, column].plot(PERCENTS, lost, label=label, **style)
            panels[1, column].plot(PERCENTS, scattered, **style)
        panels[0, column].set_title(logs)
        panels[1, column].set_xlabel("budget, % of the peak")
    panels[0, 0].set_ylabel("lost at an eviction, % of the budget")
    panels[1, 0].set_ylabel("scattered evictions, % of all")
    panels[0, 0].set_yscale("symlog", linthresh=1)
    panels[0, 0].set_ylim(0, 100)
    for panel in panels.flat:
        panel.grid(alpha=0.25)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return {"": figure}


STUDY = Study(
    title="what fragmentation costs: lost bytes, recomputing and the smallest budgets",
    source="our own; compared with Coop (NeurIPS 2023) and MegEngine's DTR, section 3.6",
    compute=settled("601c0cc7"),
    draw=draw,
)
