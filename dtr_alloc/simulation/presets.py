"""Every published heuristic: the presets of the product, and those for comparison alone.

``dtr-local``, ``largest`` and ``random``: DTR paper, section 4.1; ``msps``: Peng et al., Capuchin
(ASPLOS 2020), as compared in the DTR paper; ``estar``: the reduced heuristic of the paper's proof,
definition A.2; ``megengine``: MegEngine's article, section 3.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dtr_alloc import heuristics
from dtr_alloc.heuristics import Heuristic

_OURS = heuristics.PRESETS

PRESETS: Mapping[str, Heuristic] = MappingProxyType(
    {
        heuristic.name: heuristic
        for heuristic in (
            _OURS["dtr-full"],
            _OURS["dtr-eqclass"],
            Heuristic("dtr-local", "local", "size", 1, room="single"),
            _OURS["lru"],
            Heuristic("largest", "none", "size", 0, room="single"),
            Heuristic("random", select="random", room="single"),
            Heuristic("msps", "ancestors", "size", 0, room="single"),
            Heuristic("estar", "neighborhood", "size", 0, room="single"),
            Heuristic("megengine", "component", "size+free", 1, 1.5, room="single"),
            _OURS["coop"],
            _OURS["marginal"],
        )
    }
)


def parse(value: object) -> Heuristic:
    """As heuristics.parse, with the names of all PRESETS."""
    return heuristics.parse(value, PRESETS)
