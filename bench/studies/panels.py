"""The colors of the presets, and a grid of equal panels, for pictures with one panel a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLORS: Mapping[str, str] = {
    "dtr-full": "#0072b2",
    "dtr-eqclass": "#56b4e9",
    "dtr-local": "#e69f00",
    "lru": "#d55e00",
    "largest": "#8c564b",
    "random": "#7f7f7f",
    "msps": "#009e73",
    "estar": "#cc79a7",
    "megengine": "#b8a300",
    "coop": "#5e3c99",
    "marginal": "#000000",
}


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a document's table, by its columns."""
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def rounded(value: object) -> object:
    """A figure to four digits; anything else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def panel_grid(
    count: int, panel: tuple[float, float], margin: tuple[float, float]
) -> tuple[Figure, Any]:
    """A figure and its panels, four in a row at most, with common axes; those that are left over
    are empty. panel, margin: width and height in inches, of each panel and of what is around
    all."""
    from matplotlib.figure import Figure

    columns = min(4, count)
    high = -(-count // columns)
    size = (margin[0] + panel[0] * columns, margin[1] + panel[1] * high)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(high, columns, squeeze=False, sharex=True, sharey=True)
    for empty in panels.flat[count:]:
        empty.set_axis_off()
    return figure, panels


def name_axes(figure: Figure, panels: Any, x: str, y: str, ncols: int) -> None:
    """Names the axes that the panels share, and the lines of the first one above them all."""
    figure.supxlabel(x)
    figure.supylabel(y)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols, frameon=False)
