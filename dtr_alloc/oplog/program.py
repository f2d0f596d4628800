"""Programs: op logs as numbers, checked as a whole; see dtr_alloc/oplog."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from dtr_alloc import bounded
from dtr_alloc.bounded import shown
from dtr_alloc.oplog.format import (
    EFFECT_LINE,
    MOST,
    MOST_SHOWN,
    PLACE_LINE,
    WORKSPACE,
    Alias,
    Annotate,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    LogError,
    Memory,
    Mutate,
    Names,
    Reader,
    Release,
    to_line,
)

MOST_SUM = 2**60
"""Of all sizes of a program, and of all its times: sums with repetitions stay within 64 bits."""

MOST_NUMBERS = 1 << 28
MOST_NAMES = 1 << 24
MOST_EDGES = 1 << 28
"""The most numbers and names of a program; the most pairs of an operator's argument and result,
which a simulator may keep one by one."""

CONSTANT, CALL, MUTATE, COPY, COPY_FROM, RELEASE, EFFECT = range(7)
"""The first number of an instruction in Program.code."""

FRESH = -1
"""The alias index of a result with memory of its own."""

ALLOCATE, FREE, RESULT = range(3)
"""The kinds of entries in Program.workspace: +N, -i, =k."""


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Program:
    """A log as numbers, for the simulator. Made by compile_log, which checked it.

    ``code`` is a sequence of instructions without gaps. A *name* is its index in ``names``; MUTATE
    and COPY_FROM make a name stand for another tensor.

    =========  ==================================================================================
    CONSTANT   0, name, size_bytes
    CALL       1, time, nargs, args..., nresults, then per result: name, size_bytes, alias
    MUTATE     2, time, nargs, args..., nmutated, indices i of arguments: -1 - i for one UNREAD
    COPY       3, dst, src
    COPY_FROM  4, dst, src
    RELEASE    5, name
    EFFECT     6, time, nargs, args..., nresults, then per result: name, size_bytes, FRESH
    =========  ==================================================================================

    alias is FRESH or an index into args. The size of an alias is that of the log, and counts as 0.
    The k-th *operator* below is the k-th CALL, MUTATE or EFFECT of ``code``.
    """

    path: str
    """A label for messages."""

    code: array[int] = field(default_factory=_numbers)
    names: list[str] = field(default_factory=list)
    """In the order of their definitions."""

    operator_names: list[str] = field(default_factory=list)
    """Each once."""

    operators: array[int] = field(default_factory=lambda: array("i"))
    """For each operator, the index of its name in operator_names."""

    places: list[tuple[str, str]] = field(default_factory=lambda: [("", "")])
    """Call sites of operators: the path of a module, and the line of the job that called it; each
    once, and first the unknown one."""

    operator_places: array[int] = field(default_factory=lambda: array("i"))
    """For each operator, the index of its place in places; empty if the log does not say."""

    workspace: array[int] = field(default_factory=_numbers)
    """Allocations inside of operators, as pairs: ALLOCATE, bytes; FREE, index of the temporary;
    RESULT, index of the result."""

    workspace_at: array[int] = field(default_factory=lambda: array("q", [0]))
    """Operator k's entries are workspace[workspace_at[k]:workspace_at[k + 1]]; empty if the log
    does not say."""

    recorded: bool = False
    """Whether dtr_alloc recorded it: the engine then decides as it did in the job."""

    @property
    def operator_count(self) -> int:
        return len(self.operators)


def compile_log(path: str | os.PathLike[str]) -> Program:
    """Reads, checks and packs a log.

    Takes time as read(), and memory for MOST_NUMBERS numbers and MOST_NAMES names at most: some
    four gigabytes, and the names' texts.

    Raises as read() does, and LogError for a contradictory program: CALL or CONSTANT without its
    lines, a name that is undefined, defined twice, or released twice without a new tensor in
    between, an index that is out of range or repeated, sizes or times of more than MOST_SUM
    together.
    """
    compiler = _Compiler(Reader(path))
    try:
        return compiler.run()
    except MemoryError:
        raise compiler.error(bounded.OUT_OF_MEMORY) from None


class _Compiler:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.instructions = iter(reader)
        self.program = Program(reader.path)
        self.ids: dict[str, int] = {}
        self.released = bytearray()  # by name: 1 once it was, until it stands for something new
        self.operator_ids: dict[str, int] = {}
        self.bytes = self.time = self.edges = self.place = 0
        self.place_ids = {("", ""): 0}

    def error(self, reason: str) -> LogError:
        return self.reader.error(reason)

    def next(self, after: str) -> Instruction:
        if (instruction := next(self.instructions, None)) is None:
            raise self.error(f"the log ends after {after}")
        return instruction

    def define(self, name: str) -> int:
        index = self.ids.setdefault(name, len(self.ids))
        if index != len(self.released):
            raise self.error(f"{shown(name)} is defined twice")
        if index == MOST_NAMES:
            raise self.error(f"more than {MOST_NAMES} names, the most that are read")
        self.released.append(0)
        return index

    def known(self, name: str, role: str) -> int:
        index = self.ids.get(name)
        if index is None:
            raise self.error(f"{role} {shown(name)} is used before it is defined")
        return index

    def size_of(self, name: str, of: str) -> int:
        """The MEMORY line of a name."""
        line = self.next(of)
        if not isinstance(line, Memory) or line.name != name:
            raise self.error(f"MEMORY of {shown(name)} must follow {of}, not {_show(line)}")
        self.bytes += line.memory
        if self.bytes > MOST_SUM:
            raise self.error(
                f"sizes of more than {MOST_SUM} bytes together, the most that are read"
            )
        return line.memory

    def spend(self, time: int, edges: int) -> None:
        """Adds an operator's time and edges, and checks the limits."""
        self.time += time
        self.edges += edges
        if self.edges > MOST_EDGES:
            raise self.error(
                f"more than {MOST_EDGES} pairs of an argument and a result, the most that are read"
            )
        if self.time > MOST_SUM:
            raise self.error(f"times of more than {MOST_SUM} together, the most that are read")
        numbers = len(self.program.code) + len(self.program.workspace)
        if numbers > MOST_NUMBERS:
            raise self.error(f"more than {MOST_NUMBERS} numbers, the most that are read")

    def run(self) -> Program:
        code = self.program.code
        ids, released = self.ids, self.released
        for line in self.instructions:
            # In the order of how often they occur.
            if isinstance(line, Release):
                name = ids.get(line.name)
                if name is None:
                    continue
                if released[name]:
                    raise self.error(f"{shown(line.name)} is released twice")
                released[name] = 1
                code.append(RELEASE)
                code.append(name)
            elif isinstance(line, Copy):
                source = self.known(line.src, "SRC")
                code.extend((COPY, self.define(line.dst), source))
            elif isinstance(line, Call):
                self.call(line, ())
            elif isinstance(line, Constant):
                name = self.define(line.name)
                size = self.size_of(line.name, f"CONSTANT {line.name!r:.{MOST_SHOWN}}")
                code.extend((CONSTANT, name, size))
            elif isinstance(line, Mutate):
                self.mutate(line, ())
            elif isinstance(line, CopyFrom):
                name = self.known(line.dst, "DST")
                code.extend((COPY_FROM, name, self.known(line.src, "SRC")))
                released[name] = 0
            elif isinstance(line, Annotate):
                if line.annotation == WORKSPACE:
                    self.with_workspace(line.trace)
                elif line.annotation == EFFECT_LINE:
                    self.effect(line, ())
                elif line.annotation == PLACE_LINE:
                    self.at_place(line)
            else:
                raise self.error(f"{_show(line)} follows no CALL or CONSTANT that it belongs to")
        program = self.program
        program.names, program.operator_names = list(ids), list(self.operator_ids)
        program.places, program.recorded = list(self.place_ids), self.reader.recorded
        return program

    def call(self, line: Call, trace: Names) -> None:
        code = self.program.code
        args = [self.known(name, "argument") for name in line.args]
        self.spend(line.time, len(args) * len(line.result))
        code.extend((CALL, line.time, len(args), *args, len(line.result)))
        of = f"CALL {line.name!r:.{MOST_SHOWN}}"
        for name in line.result:
            size = self.size_of(name, of)
            alias = self.next(of)
            if not isinstance(alias, Alias) or alias.name != name:
                raise self.error(
                    f"ALIAS of {shown(name)} must follow its MEMORY, not {_show(alias)}"
                )
            if alias.alias >= len(args):
                raise self.error(
                    f"ALIAS of {shown(name)} is {alias.alias}; "
                    f"{of} has {len(args)} arguments, from 0"
                )
            code.extend((self.define(name), size, alias.alias))
        self.operator(line.name, trace, len(line.result))

    def mutate(self, line: Mutate, trace: Names) -> None:
        args = [self.known(name, "argument") for name in line.args]
        if len(set(line.mutate)) < len(line.mutate) or max(line.mutate) >= len(args):
            raise self.error(
                f"MUTATE {shown(line.name)} has indices {shown(list(line.mutate))}; allowed: "
                f"different ones below {len(args)}, the number of its arguments"
            )
        code = self.program.code
        unread = frozenset(line.unread)
        indices = [~index if index in unread else index for index in line.mutate]
        self.spend(line.time, len(args) * len(line.mutate))
        code.extend((MUTATE, line.time, len(args), *args, len(indices), *indices))
        for index in line.mutate:
            self.released[args[index]] = 0
        self.operator(line.name, trace, 0)

    def effect(self, line: Annotate, trace: Names) -> None:
        code = self.program.code
        args = [self.known(name, "argument") for name in line.args or ()]
        results = line.result or ()
        self.spend(line.time or 0, 0)
        code.extend((EFFECT, line.time or 0, len(args), *args, len(results)))
        for name in results:
            constant = self.next(EFFECT_LINE)
            if not isinstance(constant, Constant) or constant.name != name:
                raise self.error(
                    f"CONSTANT {shown(name)} must follow {EFFECT_LINE}, not {_show(constant)}"
                )
            index = self.define(name)
            size = self.size_of(name, f"CONSTANT {name!r:.{MOST_SHOWN}}")
            code.extend((index, size, FRESH))
        self.operator(line.name or EFFECT_LINE, trace, len(results))

    def operator(self, name: str, trace: Names, results: int) -> None:
        program = self.program
        program.operators.append(self.operator_ids.setdefault(name, len(self.operator_ids)))
        program.operator_places.append(self.place)
        if trace:
            program.workspace.extend(self.workspace(trace, results))
        program.workspace_at.append(len(program.workspace))

    def at_place(self, line: Annotate) -> None:
        place = (line.name or "", line.args[0] if line.args else "")
        self.place = self.place_ids.setdefault(place, len(self.place_ids))

    def with_workspace(self, trace: Names | None) -> None:
        line = self.next(WORKSPACE)
        if isinstance(line, Call):
            self.call(line, trace or ())
        elif isinstance(line, Mutate):
            self.mutate(line, trace or ())
        elif isinstance(line, Annotate) and line.annotation == EFFECT_LINE:
            self.effect(line, trace or ())
        else:
            raise self.error(
                f"CALL, MUTATE or {EFFECT_LINE} must follow {WORKSPACE}, not {_show(line)}"
            )

    def workspace(self, trace: Names, results: int) -> Iterator[int]:
        alive: list[bool] = []
        due = [True] * results
        for entry in trace:
            kind, number = entry[:1], entry[1:]
            is_number = number.isascii() and number.isdigit() and len(number) <= 19
            value = int(number) if is_number else -1
            if kind == "+" and 0 <= value <= MOST:
                alive.append(True)
                yield from (ALLOCATE, value)
            elif kind == "-" and 0 <= value < len(alive) and alive[value]:
                alive[value] = False
                yield from (FREE, value)
            elif kind == "=" and 0 <= value < len(due) and due[value]:
                due[value] = False
                yield from (RESULT, value)
            else:
                raise self.error(
                    f"an entry of {WORKSPACE} is {shown(entry)}; allowed: +N, bytes up to 2**62; "
                    "-i, a temporary that is there; =k, a result not named before"
                )


def _show(instruction: Instruction) -> str:
    line = to_line(instruction).decode().rstrip()
    return line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}..."
