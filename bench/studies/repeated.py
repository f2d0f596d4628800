"""Logs of one step as logs of a job that makes the step several times."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise

from dtr_alloc.oplog import (
    CALL,
    CONSTANT,
    COPY,
    COPY_FROM,
    EFFECT,
    FRESH,
    MUTATE,
    RELEASE,
    Program,
)
from dtr_alloc.oplog.steps import starts


def repeated(program: Program, times: int) -> Program:
    """The program of a job that makes the step of a log so many times.

    A constant that has a name at the end of the step, be it another one, exists once, as parameters
    do. An EFFECT that takes no time loads other constants in each step, as batches are. All other
    names are released at the end of the step.

    Raises ValueError for less than one time.
    """
    if times < 1:
        raise ValueError(f"times is {times}; allowed: 1 and more")
    code = program.code
    begins = [*starts(code), len(code)]
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
        for at, end in pairwise(begins):
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
    for at in starts(code):
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
