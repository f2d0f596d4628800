"""Memory and time by the modules of a job; similar modules count as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dtr_alloc.oplog import Program
from dtr_alloc.records import Kept, Repeats

_NUMBER = re.compile(r"\b\d+\b")


class Where(NamedTuple):
    """A module, with ``*`` for numbers in its path, which count similar layers; and an operator
    there, or another holder of memory. The module is ``""`` if it is not known."""

    module: str
    operator: str

    @property
    def short_operator(self) -> str:
        return self.operator.removeprefix("aten.").removesuffix(".default")

    @property
    def label(self) -> str:
        """For a picture."""
        return f"{self.module}: {self.short_operator}" if self.module else self.short_operator

    @property
    def modules(self) -> tuple[str, ...]:
        """The parts of the path; a number belongs to the part before it."""
        return tuple(re.split(r"\.(?!\*)", self.module)) if self.module else ()


@dataclass(frozen=True)
class Call:
    """A call of an operator: its module, by its path, and the line of the job that called the
    module; "" if the log does not say."""

    operator: str
    module: str
    line: str


def call_of(program: Program, operator: int) -> Call:
    """The call of the operator with this index in a log."""
    place = program.places[program.operator_places[operator] if program.operator_places else 0]
    return Call(program.operator_names[program.operators[operator]], *place)


def where(entry: Kept | Repeats) -> Where:
    operator = entry.operator or getattr(entry, "why", "")
    return Where(_NUMBER.sub("*", entry.module), operator)


def bytes_by_place(entries: Iterable[Kept]) -> list[tuple[tuple[Where, bool], int]]:
    """Sizes by place, and by whether the contents cannot be evicted, the largest first."""
    sizes: Counter[tuple[Where, bool]] = Counter()
    for entry in entries:
        sizes[where(entry), bool(entry.why)] += entry.size_bytes
    return sizes.most_common()


def repeats_by_place(entries: Iterable[Repeats]) -> list[tuple[Where, float, int]]:
    """Seconds and times by place, the longest first."""
    found: dict[Where, tuple[float, int]] = {}
    for entry in entries:
        place = where(entry)
        seconds, times = found.get(place, (0.0, 0))
        found[place] = seconds + entry.seconds, times + entry.times
    rows = [(place, *spent) for place, spent in found.items()]
    return sorted(rows, key=lambda row: -row[1])
