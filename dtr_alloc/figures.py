"""The most important figures of a session, from ``stats()``, and advice.

Reports, notebooks and pages take them from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dtr_alloc.config import UNLIMITED_BYTES, format_size

CHEAP = 0.1
"""The cost of a cheap budget, relative to the job's own compute."""
EXPENSIVE = 1.0
"""The cost of an expensive one: a step takes twice as long."""
MUCH = 0.05
"""Kept contents above this share of the budget are named."""
FULL = 0.7
"""A budget saves little if unevictable memory has more than this share of it."""


def figures(stats: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values for people, as far as ``stats`` counts them."""
    if "budget_bytes" in stats:
        yield "budget", format_size(stats["budget_bytes"])
    if "peak_allocated_bytes" in stats:
        peak, share = stats["peak_allocated_bytes"], of_budget(stats, "peak_allocated_bytes")
        yield "peak", format_size(peak) + (f" ({share:.0%} of the budget)" if share else "")
    if stats.get("steps"):
        median = stats["step_seconds"]
        each = f", {median:.3g} s each (median)" if median else ""
        yield "steps of the optimizer", f"{stats['steps']:,}{each}"
    if own := stats.get("total_cost_seconds"):
        parts = _cost_seconds(stats)
        cost = sum(parts.values())
        yield "the budget costs", f"{cost / own:.1%} of the job's own compute ({cost:.3g} s)"
        for name, spent in parts.items():
            yield f"of that: {name}", f"{spent:.3g} s"
        rest = stats.get("session_seconds", 0) - own - cost
        if rest > 0:
            yield "Python and recording", f"{rest:.3g} s (not measured apart)"
    if "moves" in stats:
        yield "moves and remaps", f"{stats['moves']:,} and {stats['remaps']:,}"
    if stats.get("swaps"):
        there, back = stats["swapped_out_bytes"], stats["swapped_in_bytes"]
        yield "swapped out and in", f"{format_size(there)} and {format_size(back)}"
    if rests := stats.get("rests"):
        unrecorded = stats["unrecorded_ops"]
        share = unrecorded / (stats["recorded_ops"] + unrecorded)
        yield "recorder at rest", f"{share:.0%} of the operators, in {rests:,} rests"
    if learning := stats.get("learning"):
        yield "step tuner", learning
    if stats.get("host_waits"):
        seconds = f"{stats['host_wait_seconds']:.3g} s"
        yield "waits for the device", f"{stats['host_waits']:,} ({seconds})"
    if requests := stats.get("beyond_requests"):
        yield (
            "workspaces beyond the budget",
            f"{format_size(stats['peak_beyond_bytes'])} at most, {requests:,} times, for "
            f"{stats['beyond_seconds']:.3g} s in all",
        )
    if "evictions" in stats:
        size = f" ({format_size(stats['evicted_bytes'])})" if "evicted_bytes" in stats else ""
        yield "evictions", f"{stats['evictions']:,}{size}"
    if "peak_kept_bytes" in stats:
        yield "never evicted, at most", format_size(stats["peak_kept_bytes"])
        for entry in stats.get("kept", ()):
            if entry["size_bytes"] > MUCH * stats.get("budget_bytes", UNLIMITED_BYTES):
                yield f"of that: {kept_text(entry)}", format_size(entry["size_bytes"])
    if "contiguity_evictions" in stats:
        yield "limited by", limit(stats)


def kept_text(entry: Mapping[str, Any]) -> str:
    """The operator that made kept contents, and the reason (dtr_alloc.kept(), as a dictionary)."""
    made = f"{entry['operator']}, as " if entry["operator"] else ""
    where = f" at {entry['line']}" if entry["line"] else ""
    return f"{made}{entry['why']}{where}"


def _cost_seconds(stats: Mapping[str, Any]) -> dict[str, float]:
    """The measured parts of the cost of the budget, by name."""
    parts = {
        "recomputation": stats["recompute_cost_seconds"],
        "search": stats.get("search_seconds", 0.0),
        "moves": stats.get("move_seconds", 0.0),
        "swaps": stats.get("swap_seconds", 0.0),
    }
    return {name: seconds for name, seconds in parts.items() if seconds}


def limit(stats: Mapping[str, Any]) -> str:
    """The limit of the session's memory."""
    evictions = stats["evictions"]
    if stats["out_of_memory_errors"]:
        return f"memory: {stats['out_of_memory_errors']:,} allocations failed"
    if evictions == 0:
        return "nothing: the budget was never reached"
    if (kept := of_budget(stats, "peak_kept_bytes") or 0) > FULL:
        return f"unevictable memory: {kept:.0%} of the budget"
    if (scattered := stats["contiguity_evictions"] / evictions) > 0.5:
        return f"fragmentation: at {scattered:.0%} of the evictions the bytes were free, in pieces"
    return "bytes"


def advice(stats: Mapping[str, Any], error: BaseException | None = None) -> str:
    """A sentence on the next step of the user; empty without the necessary counters.

    Args:
        error: by which the job ended.
    """
    own = stats.get("total_cost_seconds")
    if not own or "contiguity_evictions" not in stats:
        return ""
    peak = format_size(stats["peak_allocated_bytes"])
    if stats["out_of_memory_errors"]:
        return "Raise the budget: the error, or `dtr-alloc suggest`, says which would do."
    if error is not None:
        return (
            f"The job ended early ({type(error).__name__}): no budget follows from these figures."
        )
    if stats["budget_bytes"] >= UNLIMITED_BYTES:
        return "There was no budget; `dtr-alloc suggest` says which would do, and what it costs."
    if stats["evictions"] == 0:
        return f"This process evicted nothing: {peak} would have been enough, and less may do."
    if (of_budget(stats, "peak_kept_bytes") or 0) > FULL:
        return (
            "Most of the budget is never evicted (`--report=all` says what): swapping "
            "(DTR_ALLOC_SWAP) or sharding saves more than a smaller budget."
        )
    cost = sum(_cost_seconds(stats).values()) / own
    if cost > EXPENSIVE:
        return (
            "The budget costs more than the job's own compute: `dtr-alloc suggest` finds a better "
            "one."
        )
    if cost < CHEAP:
        return "The budget costs little: a smaller one, or a larger batch, would do."
    return (
        f"The budget costs {math.ceil(100 * cost)} % of the job's own compute; more memory would "
        "cost less."
    )


def of_budget(stats: Mapping[str, Any], name: str) -> float | None:
    """A size as a share of the budget; None without a budget."""
    budget = stats.get("budget_bytes", UNLIMITED_BYTES)
    return stats[name] / budget if 0 < budget < UNLIMITED_BYTES else None
