"""The colors of the presets, the same in every picture."""

from __future__ import annotations

from collections.abc import Mapping

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
