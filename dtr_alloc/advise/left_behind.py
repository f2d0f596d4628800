"""Memory that each step of a job leaves allocated, such as a list with a result of each step."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass

from dtr_alloc.advise.at_peak import NEVER, Step
from dtr_alloc.advise.where import Call, call_of
from dtr_alloc.oplog import Program


@dataclass(frozen=True)
class Left:
    """Memory that one operator makes in each step, and that is never released."""

    made_by: Call
    size_bytes: int
    """In a step."""


def left_behind(program: Program, steps: int) -> list[Left]:
    """The largest first. Memory that each step overwrites, such as parameters, shows where steps
    end.

    Args:
        program: the log of so many steps. Less than three do not tell steps apart.
    """
    if steps < 3:
        return []
    seen = Step(program, 1)
    stays = [memory for memory in seen.memory if memory.died == NEVER]
    written = [each.writers for each in stays if each.writers and len(each.writers) % steps == 0]
    if not written:
        return []
    widest = max(written, key=lambda writers: writers[-1] - writers[0])
    each = len(widest) // steps
    ends = widest[each - 1 :: each]
    counts: defaultdict[tuple[Call, int], Counter[int]] = defaultdict(Counter)
    for memory in stays:
        if not memory.is_constant and ends[0] < memory.born <= ends[-1]:
            step = bisect_left(ends, memory.born)
            counts[call_of(program, memory.born), memory.size_bytes][step] += 1
    found: Counter[Call] = Counter()
    for (made_by, size_bytes), by_step in counts.items():
        found[made_by] += min(by_step[step] for step in range(1, steps)) * size_bytes
    return [Left(made_by, size_bytes) for made_by, size_bytes in found.most_common() if size_bytes]
