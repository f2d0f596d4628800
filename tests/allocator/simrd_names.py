"""The published simulator's own names of heuristics, in the data of tests."""

from typing import Any

from dtr_alloc.heuristics import Heuristic


def of_simrd(name: str) -> dict[str, Any]:
    """The options of run_log() for one of the published simulator's names of heuristics; those with
    X are variants for comparison."""
    parts: dict[str, tuple[Any, ...]] = {
        "DTR": ("neighborhood", "size", 1),
        "DTREqClass": ("component", "size", 1),
        "DTRLocal": ("local", "size", 1),
        "DTRUnopt": ("neighborhood", "size", 1, True),
        "LRU": ("none", "none", 1),
        "LargestStorage": ("none", "size", 0),
        "MSPS": ("ancestors", "size", 0),
        "XEStarUnopt": ("neighborhood", "size", 0, False),
        "XDTRUnoptOwnStale": ("neighborhood", "size", 1, False),
        "AbSizeStale": ("none", "size", 1),
    }
    for letters, cost in {
        "": "none",
        "E": "neighborhood",
        "Eq": "component",
        "Local": "local",
    }.items():
        for size, stale in (("Size", ""), ("", "Stale"), ("", "")):
            if letters or size or stale:
                of = (cost, "size" if size else "none", bool(stale))
                parts[f"Ab{letters}{size}{stale}"] = of
    if name not in parts:
        return {"heuristic": {"RandomStorage": "random"}.get(name, name)}
    cost, size, staleness, *newest = parts[name]
    options = {"heuristic": Heuristic(name, cost, size, float(staleness))}
    return options | ({"newest_staleness": newest[0]} if newest else {})
