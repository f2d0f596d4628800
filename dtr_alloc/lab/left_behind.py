"""What each step of a job leaves allocated, such as a list that keeps a result of each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dtr_alloc.lab.at_peak import NEVER, Step
from dtr_alloc.lab.where import Call, call_of
from dtr_alloc.oplog import Program


@dataclass(frozen=True)
class Left:
    """Memory that one operator makes in each step, and nobody releases."""

    made_by: Call
    size_bytes: int
    """In a step."""


def left_behind(program: Program, steps: int) -> list[Left]:
    """The most first.

    Args:
        program: the log of so many steps, from the job's beginning. With less than three it is not
            known what happens in each.
    """
    if steps < 3:
        return []
    seen = Step(program, 1)
    births: defaultdict[tuple[Call, int], list[int]] = defaultdict(list)
    for memory in seen.memory:
        if memory.died == NEVER and not memory.is_constant:
            births[call_of(program, memory.born), memory.size_bytes].append(memory.born)
    apart = seen.end / steps / 2
    found: defaultdict[Call, int] = defaultdict(int)
    for (made_by, size_bytes), at in births.items():
        # So many in each step; in the first there may have been none.
        each = -(-len(at) // steps)
        is_everywhere = len(at) >= (steps - 1) * each
        if is_everywhere and all(b - a > apart for a, b in zip(at, at[each:], strict=False)):
            found[made_by] += each * size_bytes
    left = [Left(made_by, size_bytes) for made_by, size_bytes in found.items()]
    return sorted(left, key=lambda each: -each.size_bytes)
