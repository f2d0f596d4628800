"""The step of an op log at its peak of memory: bytes by kind, and possible savings without a
budget."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from dtr_alloc import oplog
from dtr_alloc.oplog import Program, instructions, made_bytes

_BLOCK = re.compile(r"(.*?\b)(\d+)\b")
NEVER = 2**62


@dataclass(frozen=True)
class Blocks:
    """Similar modules, such as ``h.*``, with a checkpoint around each.

    Attributes:
        size_bytes: of their results in memory at the peak.
        kept_bytes: the rest with checkpoints: results that others read, and all of the largest
            block.
        compute: of their operators before the peak, relative to the step's: it is paid again.
    """

    modules: str
    size_bytes: int
    kept_bytes: int
    compute: float


@dataclass(frozen=True)
class AtPeak:
    """A step at its peak of memory.

    Attributes:
        kinds: bytes by kind. Batches are made of no parameter and outside of modules, or stay from
            step to step but belong to no module or optimizer; activations are other results of
            steps; workspaces are temporaries of the operator that runs.
        optimizer_bytes: the most that the optimizer's step makes and frees.
        fused_peak_bytes: the peak if it made nothing.
        blocks: those with the largest results; None: no modules are similar.
    """

    kinds: Mapping[str, int]
    optimizer_bytes: int
    fused_peak_bytes: int
    blocks: Blocks | None


@dataclass(slots=True)
class _Memory:
    """Memory from the operator ``born``, by index, until before ``died``."""

    size_bytes: int
    born: int
    is_constant: bool
    names: int = 0
    died: int = NEVER
    is_data: bool = False
    readers: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)


class Step:
    """The last operators of a program, and all its memory."""

    def __init__(self, program: Program, operators: int) -> None:
        self.memory: list[_Memory] = []
        self.read: list[list[_Memory]] = []
        """By operator."""
        self.times: list[int] = []
        self.workspaces: list[int] = []
        self.effects: set[int] = set()
        """Operators that are never repeated."""
        named: dict[int, _Memory] = {}
        counted: list[int] = []

        def let_go(name: int) -> None:
            if (memory := named.pop(name, None)) is not None:
                memory.names -= 1
                if memory.names == 0:
                    memory.died = len(self.read)

        def define(name: int, memory: _Memory) -> None:
            memory.names += 1
            let_go(name)
            named[name] = memory

        def new(size_bytes: int, is_constant: bool) -> _Memory:
            self.memory.append(_Memory(size_bytes, len(self.read), is_constant))
            return self.memory[-1]

        for code in instructions(program):
            kind = code[0]
            if kind == oplog.CONSTANT:
                define(code[1], new(code[2], True))
            elif kind == oplog.RELEASE:
                let_go(code[1])
            elif kind in (oplog.COPY, oplog.COPY_FROM):
                define(code[1], named[code[2]])
            else:
                index, end = len(self.read), 3 + code[2]
                reads = [named[name] for name in code[3:end]]
                fresh = []
                counts = kind != oplog.CALL
                if kind == oplog.MUTATE:
                    for at in code[end + 1 :]:
                        reads[max(at, -1 - at)].writers.append(index)
                else:
                    for at in range(end + 1, len(code), 3):
                        name, size_bytes, alias = code[at : at + 3]
                        is_fresh = alias == oplog.FRESH
                        counts |= is_fresh
                        fresh.append(size_bytes if is_fresh else 0)
                        define(name, new(size_bytes, False) if is_fresh else reads[alias])
                if counts:
                    counted.append(index)
                if kind == oplog.EFFECT:
                    self.effects.add(index)
                for memory in reads:
                    memory.readers.append(index)
                self.workspaces.append(max(0, made_bytes(program, index, fresh) - sum(fresh)))
                self.times.append(code[1])
                self.read.append(reads)
        self.end = len(self.read)
        self.start = counted[-operators] if operators <= len(counted) else 0
        places = program.operator_places
        self.modules = [program.places[places[i]][0] if places else "" for i in range(self.end)]
        self.made = [memory for memory in self.memory if memory.born >= self.start]
        self.updated = [
            memory
            for memory in self.memory
            if memory.born < self.start
            and memory.died == NEVER
            and memory.writers
            and memory.writers[-1] >= self.start
        ]

    def mark_data(self) -> None:
        """Marks results outside of modules that depend on data alone. Data is not updated by the
        step. If the step updates nothing, data and results cannot be told apart."""
        if not self.updated:
            return
        knows_modules = any(self.modules[self.start :])
        updated = set(map(id, self.updated))
        for memory in self.memory:
            if memory.born < self.start and (memory.is_constant or memory.died == NEVER):
                memory.is_data = knows_modules and id(memory) not in updated
            else:
                memory.is_data = memory.is_constant or (
                    not self.modules[memory.born]
                    and all(read.is_data for read in self.read[memory.born])
                )

    def in_use(self, memory: list[_Memory]) -> list[int]:
        """Bytes at each operator."""
        changes = [0] * (self.end + 1)
        for each in memory:
            changes[min(each.born, self.end)] += each.size_bytes
            changes[min(each.died, self.end)] -= each.size_bytes
        return list(accumulate(changes))[:-1]

    def optimizer_start(self) -> int:
        """The first operator after those of modules that writes to older memory."""
        after = max((i for i in range(self.start, self.end) if self.modules[i]), default=-1) + 1
        after = max(after, self.start)
        updates = [each.writers for each in self.updated]
        writers = [each[at] for each in updates if (at := bisect_left(each, after)) < len(each)]
        return min(writers, default=self.end)


def at_peak(
    program: Program, operators: int, held_bytes: Mapping[str, int], peak_bytes: int
) -> AtPeak:
    """Examines the last step of a log.

    Args:
        operators: of a step, 1 and more.
        held_bytes: allocated between steps, by kind.
        peak_bytes: of the job.
    """
    step = Step(program, operators)
    step.mark_data()
    steps = range(step.start, step.end)
    totals = [a + b for a, b in zip(step.in_use(step.memory), step.workspaces, strict=True)]
    peak = max(steps, key=totals.__getitem__)
    begin = step.optimizer_start()
    passing = [each for each in step.made if begin <= each.born and each.died < NEVER]
    temporary = [
        in_use + (step.workspaces[i] if i >= begin else 0)
        for i, in_use in enumerate(step.in_use(passing))
    ]
    return AtPeak(
        _kinds(step, peak, held_bytes, peak_bytes),
        max(temporary[step.start :]),
        peak_bytes - totals[peak] + max(totals[i] - temporary[i] for i in steps),
        _blocks(step, peak),
    )


def _kinds(step: Step, peak: int, held_bytes: Mapping[str, int], peak_bytes: int) -> dict[str, int]:
    def size_of(found: Iterable[_Memory]) -> int:
        return sum(each.size_bytes for each in found)

    there = [each for each in step.memory if each.born <= peak < each.died]
    stays = [each for each in there if each.born < step.start and each.died == NEVER]
    passes = [each for each in there if each.born < step.start and each.died < NEVER]
    made = [each for each in there if each.born >= step.start]
    kinds = {kind: size for kind, size in held_bytes.items() if kind != "other"}
    gradients = kinds.get("gradients", 0)
    results = [each for each in step.made if each.died == NEVER and not each.is_data]
    known = sum(kinds.values())
    others = size_of(each for each in passes if not each.is_data)
    if 2 * size_of(results) > gradients:  # they are made anew in each step
        known -= gradients
        here = others + size_of(each for each in results if each.born <= peak)
        kinds["gradients"] = min(gradients, here)
        others = here - kinds["gradients"]
    kinds["batches"] = size_of(each for each in passes + made if each.is_data)
    kinds["batches"] += max(0, size_of(stays) - known)
    kinds["activations"] = others + size_of(
        each for each in made if each.died < NEVER and not each.is_data
    )
    kinds["workspaces"] = step.workspaces[peak]
    return kinds | {"other": max(0, peak_bytes - sum(kinds.values()))}


def _blocks(step: Step, peak: int) -> Blocks | None:
    """By the modules of operators, also in the backward pass."""
    found = [_BLOCK.match(module) for module in step.modules]
    families = [match[1] + "*" if match else "" for match in found]
    numbers = [match[2] if match else "" for match in found]
    own: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    passed: defaultdict[str, int] = defaultdict(int)
    for each in step.made:
        if each.is_constant or each.is_data or not each.born <= peak < each.died < NEVER:
            continue
        place = families[each.born], numbers[each.born]
        own[place[0]][place[1]] += 0
        if all((families[i], numbers[i]) == place for i in each.readers):
            own[place[0]][place[1]] += each.size_bytes
        else:
            passed[place[0]] += each.size_bytes
    sizes = {
        name: passed[name] + sum(own[name].values()) for name in own if name and len(own[name]) > 1
    }
    if not sizes:
        return None
    name = max(sizes, key=sizes.__getitem__)
    times = step.times[step.start :]
    before = sum(step.times[i] for i in range(step.start, peak) if families[i] == name)
    compute = before / max(1, sum(times))
    return Blocks(name, sizes[name], passed[name] + max(own[name].values()), compute)
