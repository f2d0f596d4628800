"""Self-contained pages: HTML without scripts and network access.

Pictures are matplotlib's. Black in an SVG becomes the color of the page's text, so it can be seen
on light and on dark.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 4.4
"""The width of a picture in inches: a telephone's, so that text keeps its size there."""
_WIDE = 1.4 * WIDTH
"""The width of panels beside each other: a telephone scrolls them."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "savefig.transparent": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a "$" in the name of a module is none of TeX
}
_BLACK = re.compile(r"#000000|\bblack\b")

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem;
  color: light-dark(#1a1a1a, #e6e6e6); background: light-dark(#fff, #161616); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem; }
.words { font-size: 1.1rem; max-width: 60rem; }
.pictures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; overflow-x: auto; }
figcaption { max-width: 40rem; opacity: .8; font-size: .9rem; }
svg { width: 100%; height: auto; color: inherit; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem .8rem .15rem 0;
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: normal; opacity: .8; min-width: 9.25rem; max-width: 24rem; }
pre { overflow-x: auto; font-size: .8rem; } img { width: 100%; height: auto; }
td { min-width: 9rem; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; margin-top: 1rem; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="words">$words</p>
$body
</body>
</html>
""")


def document(title: str, words: str, body: str) -> str:
    """A whole page: plain words first, then ``body``."""
    return _PAGE.substitute(title=escape(title), words=escape(words), body=body)


def details(summary: str, content: str) -> str:
    """Content that is hidden until it is opened; "" if it is empty."""
    if not content:
        return ""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}</details>\n"


def pictures(drawn: Iterable[str]) -> str:
    """Pictures beside each other, or one below the other on a narrow page."""
    return '<div class="pictures">\n' + "\n".join(drawn) + "\n</div>\n"


def style() -> AbstractContextManager[None]:
    """The context in which figures for svg() are made."""
    return mpl.rc_context(_STYLE)


def svg(title: str, draw: Callable[..., Figure], *data: Any, caption: str = "") -> str:
    """The picture that ``draw`` makes of the data. It is never shown smaller than its own size."""
    # A letter that a font lacks is the browser's to find; a job may make errors of warnings.
    with style(), warnings.catch_warnings(action="ignore"):
        text = io.StringIO()
        figure = draw(*data)
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = _BLACK.sub("currentColor", text.getvalue().partition("<svg")[2])
    # Text has no color of its own in this form.
    least = f"min-width: {figure.get_figwidth() * 72:.0f}px"
    head = f'<svg role="img" aria-label="{escape(title)}" fill="currentColor" style="{least}"'
    return framed(title, head + drawn, caption)


def narrowed(figure: Figure) -> Figure:
    """A figure for a wide screen, in the width of a page, with its titles in lines."""
    grids = [axes.get_gridspec() for axes in figure.axes]
    beside = max(grid.ncols for grid in grids if grid is not None)
    width, height = (WIDTH, 0.75) if beside == 1 else (_WIDE, 1)
    figure.set_size_inches(width, figure.get_figheight() * height)
    text_size = 9 if beside == 1 else 8
    for axes in figure.axes:
        title = " ".join(axes.get_title(loc="left").split())
        lines = textwrap.fill(title, (45 if beside == 1 else 70) // beside)
        axes.set_title(lines, loc="left", fontsize=text_size)
        axes.tick_params(labelsize=text_size)
        axes.xaxis.label.set_fontsize(text_size)
        axes.set_ylabel(textwrap.fill(axes.get_ylabel(), 30))
    return figure


def framed(title: str, drawn: str, caption: str) -> str:
    """A picture, or words in its place, between a title and a caption."""
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f"<figure>\n<h2>{escape(title)}</h2>\n{drawn}\n{below}</figure>"
