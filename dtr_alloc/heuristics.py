"""Heuristics, which choose the storage to evict: scores, their presets, and their notation.

A score is ``h = c * r**n / (m * s**a)``, and the storage with the smallest is evicted (DTR paper,
section 4.1 and appendix C; the engine measures all parts at the moment of the search):

* ``c``, the cost in nanoseconds that the eviction may cause: ``neighborhood`` (its own and that of
  its evicted neighborhood e*, exact), ``ancestors`` (its own and that of the evicted storages that
  its recomputation needs), ``component`` (its own and that of the evicted components next to it:
  union-find with the paper's splitting approximation), ``marginal`` (the recomputation that the
  eviction adds to the present one: policy/score.h), ``local`` (its own), ``none``;
* ``n``, the number of its recomputations so far, and ``r`` the factor for each;
* ``m``, the memory that the eviction frees: ``size`` (bytes), ``size+free`` (with the free bytes on
  both sides, as in MegEngine), ``none``;
* ``s``, its staleness: the compute time since its last use; ``a`` between 0 (none) and 1. With
  ``next=1`` it is the compute time until its next use, as long as the job repeats its steps
  (native/policy/foresight.h).

The second half of a published policy is the way in which room is made with a score, ``room``:

* ``single``: the storage with the least score, one after the other until the request fits;
* ``window``: the cheapest run of neighbors whose eviction makes enough room
  (native/policy/window_search.h);
* ``auto``: the cheaper way (docs/concepts/default-policy.md).

A heuristic is given by the name of a preset (``dtr-eqclass``), by its parts
(``c=ancestors,m=size,s=0.5``; ``r``, ``next``, ``room`` and ``dealloc`` are parts too; defaults are
those of Heuristic), or by a name registered for a Python callable.

Presets, each with its published way of making room, and their sources: ``dtr-full``,
``dtr-eqclass`` and ``lru``: DTR paper, section 4.1; ``coop``: Zhang et al., Coop (NeurIPS 2023),
whose score leaves the size to the evicted window (a neighborhood's cost, as in its code in OneFlow
by default); ``marginal``: our own (docs/concepts/default-policy.md); ``adaptive``: begins as
``marginal``, learns the job's step and takes the cheapest policy or plan for it
(docs/concepts/learning.md). The other published ones are in dtr_alloc/simulation/presets.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dtr_alloc.bounded import shown

COSTS = ("none", "local", "ancestors", "neighborhood", "component", "marginal")
"""By their numbers in the C header (DTR_COST_...)."""
SIZES = ("none", "size", "size+free")
"""By their numbers in the C header (DTR_SIZE_...)."""
SELECTIONS = ("score", "random", "callback")
"""By their numbers in the C header (DTR_SELECT_...)."""
ROOMS = ("auto", "single", "window")
"""By their numbers in the C header (DTR_ROOM_...)."""
DEALLOCS = ("eager", "banish", "ignore", "lazy", "auto")
"""By their numbers in the C header (DTR_DEALLOC_...)."""


@dataclass(frozen=True)
class Candidate:
    """A storage, for a Python heuristic.

    Attributes:
        id: the engine's number for the storage; unique in a process.
        size_bytes: its size.
        free_bytes: free memory directly before and behind it.
        staleness_ns: compute time since it was last used.
        cost_ns: cost of the operator that computes it.
        ancestors_ns: summed cost of its evicted ancestors (part of e*).
        descendants_ns: summed cost of its evicted descendants (the other part of e*).
        component_ns: summed cost of the evicted components next to it.
        recomputes: how often it was recomputed.
        live: whether the job still refers to it.
    """

    id: int
    size_bytes: int
    free_bytes: int
    staleness_ns: float
    cost_ns: float
    ancestors_ns: float
    descendants_ns: float
    component_ns: float
    recomputes: int
    live: bool


@dataclass(frozen=True)
class Heuristic:
    """A choice of evictions; see the top of this module.

    Raises ValueError for a part that is not allowed.
    """

    name: str
    cost: str = "none"
    size: str = "none"
    staleness: float = 0.0
    recompute_factor: float = 1.0
    select: str = "score"
    seed: int = 0
    """Of the random numbers, for ``select="random"``."""
    score: Callable[[Candidate], float] | None = None
    """For ``select="callback"``: gives a candidate's score. Slow: it is called for every candidate
    of every search."""
    room: str = "auto"
    """One of ROOMS. Windows need scores: with another ``select`` all is single."""
    dealloc: str = "eager"
    """The treatment of a tensor that the job dropped while a closure may still need it. ``eager``
    evicts it at once. ``lazy`` leaves it until memory is needed, when it goes first (without a
    budget it goes at once). ``auto`` is ``eager`` where ``lazy`` does not pay. ``ignore``
    is as ``lazy``, without a budget and for constants, too. ``banish`` removes it for good as soon
    as nothing evicted depends on it, and never again evicts its dependents. One of DEALLOCS."""
    foresight: bool = False
    """Whether ``s`` is the time until the next use, if the job repeats its steps."""
    learns: bool = False
    """Whether the engine switches to another choice, room and dealloc that proves cheaper."""

    def __post_init__(self) -> None:
        for part, value, allowed in (
            ("c", self.cost, COSTS),
            ("m", self.size, SIZES),
            ("select", self.select, SELECTIONS),
            ("room", self.room, ROOMS),
            ("dealloc", self.dealloc, DEALLOCS),
        ):
            if value not in allowed:
                raise ValueError(f"{part} is {shown(value)}; allowed: {', '.join(allowed)}")
        if not 0 <= self.staleness <= 1:
            raise ValueError(f"s is {self.staleness!r}; allowed: 0 to 1")
        if not (math.isfinite(self.recompute_factor) and self.recompute_factor >= 1):
            raise ValueError(f"r is {self.recompute_factor!r}; allowed: 1 and more")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed is {self.seed!r}; allowed: 0 to 2**64 - 1")
        if (self.select == "callback") != (self.score is not None):
            raise ValueError("a callable goes with select='callback', and only with it")

    def __str__(self) -> str:
        return self.name

    def room_number(self, asked: str = "heuristic") -> int:
        """The value of dtr_engine_options.room for this heuristic: its own, or the given one (one
        of ROOMS). Raises ValueError for windows without scores."""
        room = self.room if asked == "heuristic" else asked
        if room not in ROOMS:
            raise ValueError(f"room is {room!r}; allowed: heuristic, {', '.join(ROOMS)}")
        if room == "window" and self.select != "score":
            raise ValueError(
                f"room is 'window', which needs scores, and heuristic {self.name!r} has none; "
                "allowed: heuristic, auto, single"
            )
        return ROOMS.index(room)

    def numbers(self) -> tuple[int, int, int, float, float, int, int]:
        """The fields of a dtr_heuristic, in the order of the C header."""
        return (
            SELECTIONS.index(self.select),
            COSTS.index(self.cost),
            SIZES.index(self.size),
            float(self.staleness),
            float(self.recompute_factor),
            self.seed,
            int(self.foresight),
        )


PRESETS: Mapping[str, Heuristic] = MappingProxyType(
    {
        heuristic.name: heuristic
        for heuristic in (
            Heuristic("dtr-full", "neighborhood", "size", 1, room="single"),
            Heuristic("dtr-eqclass", "component", "size", 1, room="single"),
            Heuristic("lru", "none", "none", 1, room="single"),
            Heuristic("coop", "component", "none", 1, room="window"),
            Heuristic("marginal", "marginal", "size", 0.5, dealloc="auto"),
            Heuristic("adaptive", "marginal", "size", 0.5, dealloc="auto", learns=True),
        )
    }
)

DEFAULT = "adaptive"
"""The preset of jobs by default."""

ONLINE = "marginal"
"""The best single rule: the default of simulations."""

PART_FORMS = (
    "parts, such as c=ancestors,m=size,s=0.5,r=1 "
    f"(c: {', '.join(COSTS)}; m: {', '.join(SIZES)}; s: 0 to 1; r: 1 and more; next: 0, 1; "
    f"room: {', '.join(ROOMS)}; dealloc: {', '.join(DEALLOCS)})"
)

_registered: dict[str, Heuristic] = {}


def allowed(presets: Mapping[str, Heuristic] = PRESETS) -> str:
    """The values that parse() accepts, for error messages: with the names registered by now."""
    forms = f"{', '.join(presets)}; or {PART_FORMS}"
    return "; ".join([forms, *([f"registered: {', '.join(_registered)}"] if _registered else [])])


def register(name: str, score: Callable[[Candidate], float]) -> Heuristic:
    """Makes a Python callable available as the heuristic ``name``, for research: it is called for
    every candidate of every search, and returns a score; the smallest is evicted.

    A callable that raises, or returns NaN or no number, ends the search with an error that names
    the heuristic; infinity is allowed and chosen last. Raises ValueError for a name that is a
    preset's or looks like parts.
    """
    if not name or name in PRESETS or "=" in name or name != name.strip():
        raise ValueError(f"the name of a heuristic is {name!r}; allowed: text that is no preset's")
    if not callable(score):
        raise ValueError(f"the score of {name!r} is {score!r}; allowed: a callable")
    _registered[name] = Heuristic(name, select="callback", score=score, room="single")
    return _registered[name]


register_heuristic = register
"""The name in the package."""


def parse(value: object, presets: Mapping[str, Heuristic] = PRESETS) -> Heuristic:
    """The heuristic of a name or parts. Raises ValueError that names the wrong part."""
    if isinstance(value, Heuristic):
        return value
    if not isinstance(value, str):
        raise ValueError(f"not a heuristic: {shown(value)}")
    text = value.strip()
    known = presets.get(text) or _registered.get(text)
    if known is not None:
        return known
    if "=" not in text:
        raise ValueError(f"unknown heuristic {shown(text)}; allowed: {allowed(presets)}")
    parts: dict[str, str] = {}
    for part in text.split(","):
        key, _, given = (piece.strip() for piece in part.partition("="))
        if key not in ("c", "m", "s", "r", "next", "room", "dealloc") or not given or key in parts:
            raise ValueError(
                f"wrong part {shown(part.strip())} in {shown(text)}; allowed: {allowed(presets)}"
            )
        parts[key] = given
    try:
        staleness, factor = float(parts.get("s", 0)), float(parts.get("r", 1))
    except ValueError:
        raise ValueError(f"not a number in {shown(text)}; allowed: {allowed(presets)}") from None
    foresight = parts.get("next", "0")
    if foresight not in ("0", "1"):
        raise ValueError(f"next is {shown(foresight)}; allowed: 0, 1")
    return Heuristic(
        text,
        parts.get("c", "none"),
        parts.get("m", "none"),
        staleness,
        factor,
        room=parts.get("room", "auto"),
        dealloc=parts.get("dealloc", "eager"),
        foresight=foresight == "1",
    )
