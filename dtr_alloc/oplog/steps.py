"""What the instructions of a program mean for its steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise

from dtr_alloc.oplog.program import (
    ALLOCATE,
    CALL,
    CONSTANT,
    COPY,
    COPY_FROM,
    EFFECT,
    FREE,
    FRESH,
    MUTATE,
    RELEASE,
    Program,
)


def repeated(program: Program, times: int) -> Program:
    """The program of a job that does so often what a log of one step says.

    A constant of the step that has a name at its end, be it another one, is there once, as
    parameters are. Any other is loaded in each step, as a batch is: by an EFFECT that takes no
    time. What else has a name at the end is released there.

    Raises ValueError for less than one time.
    """
    if times < 1:
        raise ValueError(f"times is {times}; allowed: 1 and more")
    code = program.code
    starts = [*_starts(code), len(code)]
    once = _constants_alive(code)
    many = Program(
        f"{program.path}, {times} times",
        operator_names=[*program.operator_names, "load"],
        places=program.places,
    )
    places = program.operator_places

    def add_operator(name: int, place: int = 0, workspace: Iterable[int] = ()) -> None:
        many.operators.append(name)
        many.operator_places.append(place)
        many.workspace.extend(workspace)
        many.workspace_at.append(len(many.workspace))

    kept: dict[int, int] = {}  # by where a constant is made: a name of its own
    for step in range(times):
        names: dict[int, int] = {}
        alive: set[int] = set()
        operator = 0
        for at, end in pairwise(starts):
            instruction = code[at:end]
            for i in _names(instruction):
                name = instruction[i]
                if name not in names:
                    names[name] = len(many.names)
                    many.names.append(f"{program.names[name]}/{step}")
                instruction[i] = names[name]
                (alive.discard if instruction[0] == RELEASE else alive.add)(names[name])
            if at in once:
                if not step:
                    kept[at] = len(many.names)
                    many.names.append(program.names[code[at + 1]])
                    many.code.extend((CONSTANT, kept[at], code[at + 2]))
                many.code.extend((COPY, instruction[1], kept[at]))
            elif instruction[0] == CONSTANT:
                many.code.extend((EFFECT, 0, 0, 1, *instruction[1:], FRESH))
                add_operator(len(program.operator_names))
            else:
                many.code.extend(instruction)
            if instruction[0] in (CALL, MUTATE, EFFECT):
                of = slice(*program.workspace_at[operator : operator + 2])
                place = places[operator] if places else 0
                add_operator(program.operators[operator], place, program.workspace[of])
                operator += 1
        for name in sorted(alive):
            many.code.extend((RELEASE, name))
    return many


def _constants_alive(code: array[int]) -> set[int]:
    """Where the constants are made that have a name at the end."""
    made_at: dict[int, int | None] = {}  # by name, what it stands for
    for at in _starts(code):
        name = code[at + 1]
        if code[at] == CONSTANT:
            made_at[name] = at
        elif code[at] in (COPY, COPY_FROM):
            made_at[name] = made_at.get(code[at + 2])
        elif code[at] == RELEASE:
            made_at.pop(name, None)
        elif code[at] in (CALL, EFFECT):
            first = at + 4 + code[at + 2]
            for i in range(first, first + 3 * code[first - 1], 3):
                alias = code[i + 2]
                made_at[code[i]] = None if alias == FRESH else made_at.get(code[at + 3 + alias])
    return {at for at in made_at.values() if at is not None}


def computed(program: Program) -> list[int]:
    """The operators, by their indices, that a run in runtime semantics counts as ``model_ops``: not
    EFFECT, and no CALL of nothing but views."""
    code = program.code
    operators = [at for at in _starts(code) if code[at] in (CALL, MUTATE, EFFECT)]

    def counts(at: int) -> bool:
        first = at + 4 + code[at + 2]
        aliases = code[first + 2 : first + 3 * code[first - 1] : 3]
        return code[at] == MUTATE or (code[at] == CALL and FRESH in aliases)

    return [index for index, at in enumerate(operators) if counts(at)]


def made_bytes(program: Program, operator: int, results: list[int]) -> int:
    """The most that an operator has allocated at once while it runs; results: bytes of each."""
    trace = program.workspace[program.workspace_at[operator] : program.workspace_at[operator + 1]]
    temporaries: list[int] = []
    missing = dict(enumerate(results))
    held = most = 0
    for kind, value in zip(trace[::2], trace[1::2], strict=True):
        if kind == ALLOCATE:
            temporaries.append(value)
            held += value
        elif kind == FREE:
            held -= temporaries[value]
        else:
            held += missing.pop(value)
        most = max(most, held)
    return max(most, held + sum(missing.values()))


def instructions(program: Program) -> Iterator[array[int]]:
    """The code, cut."""
    for at, end in pairwise([*_starts(program.code), len(program.code)]):
        yield program.code[at:end]


def _starts(code: array[int]) -> Iterator[int]:
    at = 0
    while at < len(code):
        yield at
        if code[at] == RELEASE:
            at += 2
        elif code[at] in (CONSTANT, COPY, COPY_FROM):
            at += 3
        else:
            arguments = code[at + 2]
            each = 3 if code[at] in (CALL, EFFECT) else 1
            at += 4 + arguments + each * code[at + 3 + arguments]


def _names(instruction: array[int]) -> Iterator[int]:
    """Where names stand in it, in the order of their definition."""
    kind = instruction[0]
    if kind in (CONSTANT, RELEASE):
        yield 1
    elif kind in (COPY, COPY_FROM):
        yield from (1, 2)
    else:
        arguments = instruction[2]
        yield from range(3, 3 + arguments)
        if kind in (CALL, EFFECT):
            yield from range(4 + arguments, len(instruction), 3)
