"""A grid of equal panels, for pictures with one panel a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
