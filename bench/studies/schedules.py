"""Schedules: what to evict when, decided with the whole log known, and files of them.

A schedule says for one log and budget which storages are evicted for room, and when. All else of
a run follows from the log, so that a schedule determines it: simrd's semantics
(native/lab/simrd.h), where what is needed again is computed when it is needed.

``search`` looks for a schedule that costs little. It is never worse than a preset: their runs are
schedules too. What it finds has no bound, but no online policy knows as much.

A file of schedules is text, one JSON value a line; .gz, .bz2, .xz and .zst are compressed. It is a
sequence of schedules, each an object and then the lists of its evictions:

``{"SCHEDULE": 1, "LOG": "a.log", "SHA256": "...", "SEMANTICS": "simrd", "DEALLOC": "ignore",
"BUDGET": 1048576, "COST": 5210, "BY": "search, 1000 steps, seed 0", "LISTS": 17}``
    The version of the format; the log, and the SHA-256 of its program as numbers (``identity``);
    what becomes of storages that the program releases: ``eager`` evicts them at once, ``ignore``
    leaves it to the lists; bytes; the cost of all that is computed; who made it; how many lists
    follow. Unknown keys are ignored.
``[34, 12, 7]``
    After 34 executions (first and repeated ones count), right before the outputs of the next are
    allocated, the storages 12 and 7 are evicted, in this order. A storage is named by its first
    tensor; tensors are numbered in the order of creation, as in the simulator's decisions: the
    results of CONSTANT, CALL and MUTATE lines, one after the other. The lists ascend.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

from dtr_alloc import bounded
from dtr_alloc.bounded import shown
from dtr_alloc.heuristics import DEALLOCS, Heuristic
from dtr_alloc.oplog import Program, open_file, packer
from dtr_alloc.output_file import OutputFile
from dtr_alloc.simulation import lab
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.simulation.simulate import Run, run_log
from dtr_alloc.simulation.simulate import run as run_function

VERSION = 1
MOST_BYTES = 1 << 30
MOST_LINE_BYTES = 1 << 24
MOST_EVICTIONS = 1 << 26
"""The most text of a file and of a line, and the most evictions in it."""

SEMANTICS = "simrd"
ALLOWED_DEALLOCS = ("eager", "ignore")


class ScheduleError(ValueError):
    """A file of schedules is wrong. Names the file, the line and what is wrong."""


def identity(program: Program) -> str:
    """What a schedule knows its log by: the same for each way of writing or compressing it."""
    code = array("q", program.code)
    if sys.byteorder == "big":
        code.byteswap()
    return hashlib.sha256(code.tobytes()).hexdigest()


@dataclass(frozen=True)
class Schedule:
    """What is evicted in the run of one log under one budget.

    Attributes:
        log: a label; the log itself is known by its ``sha256``.
        dealloc: one of ALLOWED_DEALLOCS.
        cost: of all that the run computes.
        by: who made it.
        evictions: pairs, flat: after how many executions, and the storage's first tensor.
    """

    log: str
    sha256: str
    dealloc: str
    budget_bytes: int
    cost: int
    by: str
    evictions: array[int] = field(repr=False)

    def pairs(self) -> Iterator[tuple[int, int]]:
        return zip(self.evictions[::2], self.evictions[1::2], strict=True)


def run(program: Program, schedule: Schedule, *, decisions: bool = False) -> Run:
    """Runs a log under a schedule, checking each eviction.

    Raises ValueError if the schedule is another log's, or evicts what cannot be evicted, or too
    little; or if the run costs another sum than it says.
    """
    if schedule.sha256 != identity(program):
        raise ValueError(f"the schedule is not for {program.path}: it is for {schedule.log}")
    done = _run(program, schedule.dealloc, schedule.budget_bytes, schedule.evictions, decisions)
    if done.status == "ok" and done.total_cost != schedule.cost:
        raise ValueError(f"the schedule costs {done.total_cost}; it says {schedule.cost}")
    return done


def _run(
    program: Program, dealloc: str, budget_bytes: int, evictions: array[int], decisions: bool
) -> Run:
    ffi, lib = lab.library()
    return run_function(
        lib.dtr_lab_given,
        DEALLOCS.index(dealloc),
        budget_bytes,
        ffi.from_buffer("int64_t[]", program.code),
        len(program.code),
        ffi.from_buffer("int64_t[]", evictions),
        len(evictions) // 2,
        checked=lab.check,
        decisions=decisions,
    )


# ---- finding one ----


def evictions_of(decisions: str) -> array[int]:
    """The evictions for room among a run's decisions, as a schedule has them."""
    found = array("q")
    executions = 0
    for decision in decisions.splitlines():
        if decision[0] in "MR":
            executions += 1
        elif decision[0] == "E":
            found.extend((executions, int(decision[1:])))
    return found


def of_policy(
    program: Program,
    heuristic: Heuristic,
    budget_bytes: int,
    most: int | None,
    dealloc: str = "eager",
) -> Schedule | None:
    """What a policy decides, as a schedule; None if it fails, or recomputes at more than most."""
    done = run_log(
        program, heuristic, budget_bytes, dealloc=dealloc, max_recompute=most, decisions=True
    )
    if done.status != "ok":
        return None
    assert done.decisions is not None
    return Schedule(
        program.path,
        identity(program),
        dealloc,
        budget_bytes,
        done.total_cost,
        f"{heuristic.name}, {dealloc}",
        evictions_of(done.decisions),
    )


def best_preset(
    program: Program,
    budget_bytes: int,
    *,
    deallocs: Sequence[str] = ALLOWED_DEALLOCS,
    thrash: float = 10,
) -> Schedule | None:
    """The cheapest of what the presets do; None if each fails, or computes more than thrash times
    what the log takes without a budget."""
    base = run_log(program, "lru").model_cost
    best = None
    for preset, dealloc in product(PRESETS.values(), deallocs):
        most = int(base * (thrash - 1)) if best is None else best.cost - base
        found = of_policy(program, preset, budget_bytes, most, dealloc)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


def search(
    program: Program,
    budget_bytes: int,
    *,
    steps: int = 1000,
    seed: int = 0,
    seconds: float = 0,
    among: Iterable[Schedule | None] = (),
) -> Schedule | None:
    """The cheapest schedule found: by the search in the laboratory (native/lab/search.h), or among
    those given, so that the result is never worse than these. None if there is none.

    Args:
        steps: of local search. The same steps and seed give the same schedule,
        seconds: unless local search is ended after these (0: it is not).
    """
    ffi, lib = lab.library()
    options = ffi.new(
        "dtr_lab_search_options *",
        {"budget_bytes": budget_bytes, "seed": seed, "steps": steps, "seconds": seconds},
    )
    code = ffi.from_buffer("int64_t[]", program.code)
    result = ffi.new("dtr_lab_search_result *")
    evictions = array("q")
    pairs = ffi.new("const int64_t **")
    lab.check(lib.dtr_lab_search(options, code, len(program.code), result, pairs))
    if result.evictions:
        evictions.frombytes(ffi.buffer(pairs[0], 2 * result.evictions * evictions.itemsize)[:])
    best = min((given for given in among if given), key=lambda given: given.cost, default=None)
    if not result.found:
        return best
    dealloc = DEALLOCS[result.dealloc]
    done = _run(program, dealloc, budget_bytes, evictions, False)
    if done.remat_cost != result.remat_cost:
        raise RuntimeError(
            f"the search says that its schedule recomputes at a cost of {result.remat_cost}; "
            f"its run says {done.remat_cost}"
        )
    if best is not None and best.cost <= done.total_cost:
        return best
    by = f"search, {result.steps} steps, seed {seed}"
    return Schedule(
        program.path, identity(program), dealloc, budget_bytes, done.total_cost, by, evictions
    )


# ---- files ----


def write(path: str | os.PathLike[str], schedules: Sequence[Schedule]) -> None:
    """Raises OSError."""
    pack = packer(os.fspath(path))
    with OutputFile(Path(path)) as file:
        for schedule in schedules:
            lists = [
                [after, *(storage for _, storage in pairs)]
                for after, pairs in groupby(schedule.pairs(), key=lambda pair: pair[0])
            ]
            head = {
                "SCHEDULE": VERSION,
                "LOG": schedule.log,
                "SHA256": schedule.sha256,
                "SEMANTICS": SEMANTICS,
                "DEALLOC": schedule.dealloc,
                "BUDGET": schedule.budget_bytes,
                "COST": schedule.cost,
                "BY": schedule.by,
                "LISTS": len(lists),
            }
            lines = [json.dumps(head), *(json.dumps(each, separators=(",", ":")) for each in lists)]
            file.append(pack("".join(f"{line}\n" for line in lines).encode()))
        file.put_in_place()


def read(path: str | os.PathLike[str]) -> list[Schedule]:
    """The schedules of a file.

    Takes memory for a line and 16 bytes for each eviction (MOST_EVICTIONS), and less than a
    microsecond for each.

    Raises OSError if the file cannot be opened, and ScheduleError where it is no schedule, or too
    large.
    """
    label = os.fspath(path)
    with open_file(label) as file:
        lines = _Lines(label, bounded.lines(io.BufferedReader(file), MOST_LINE_BYTES, MOST_BYTES))
        try:
            found = [_schedule(lines, head) for head in lines]
        except MemoryError:
            raise lines.error(bounded.OUT_OF_MEMORY) from None
    if not found:
        raise ScheduleError(f"{label}: the file is empty")
    return found


class _Lines:
    """The JSON values of a file, and where one is."""

    def __init__(self, path: str, file: Iterable[bytes]) -> None:
        self.path = path
        self._file = iter(file)
        self._line = 0
        self.evictions = 0

    def error(self, reason: str) -> ScheduleError:
        return ScheduleError(f"{self.path}, line {self._line}: {reason}")

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                line = next(self._file, None)
            except bounded.TooMuch as error:
                raise self.error(f"after this line {error}") from None
            except MemoryError:
                raise
            except Exception as error:  # each way of compressing has its own kinds
                raise self.error(f"the file is damaged after this line ({error})") from None
            if line is None:
                return
            self._line += 1
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self.error(str(error)) from None


_TEXTS = ("LOG", "SHA256", "SEMANTICS", "DEALLOC", "BY")
_COUNTS = ("BUDGET", "COST", "LISTS")
_MOST = 2**63 - 1


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _schedule(lines: _Lines, head: Any) -> Schedule:
    if not isinstance(head, dict) or head.get("SCHEDULE") != VERSION:
        raise lines.error(f"no schedule begins here; allowed: an object with SCHEDULE {VERSION}")
    for key in (*_TEXTS, *_COUNTS):
        value = head.get(key)
        if not (_is_count(value) if key in _COUNTS else isinstance(value, str)):
            allowed = "a whole number from 0 up" if key in _COUNTS else "text"
            raise lines.error(f"{key} is {shown(value)}; allowed: {allowed}")
    for key, allowed_values in (("SEMANTICS", (SEMANTICS,)), ("DEALLOC", ALLOWED_DEALLOCS)):
        if head[key] not in allowed_values:
            raise lines.error(f"{key} is {shown(head[key])}; allowed: {', '.join(allowed_values)}")
    evictions = array("q")
    entries = iter(lines)
    for _ in range(head["LISTS"]):
        entry = next(entries, None)
        if not (isinstance(entry, list) and len(entry) >= 2 and all(map(_is_count, entry))):
            raise lines.error(
                f"{shown(entry)} is no list of evictions; allowed: [executions, storages...]"
            )
        lines.evictions += len(entry) - 1
        if lines.evictions > MOST_EVICTIONS:
            raise lines.error(f"more than {MOST_EVICTIONS} evictions, the most that are read")
        for storage in entry[1:]:
            evictions.extend((entry[0], storage))
    named = (head["LOG"], head["SHA256"], head["DEALLOC"], head["BUDGET"], head["COST"], head["BY"])
    return Schedule(*named, evictions)
