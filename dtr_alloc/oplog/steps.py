"""Operators of a program: the number that a run counts, and their allocations."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
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


def computed(program: Program) -> list[int]:
    """The indices of the operators that a run in runtime semantics counts as ``model_ops``: neither
    EFFECT nor a CALL of views alone."""
    code = program.code
    operators = [at for at in starts(code) if code[at] in (CALL, MUTATE, EFFECT)]

    def counts(at: int) -> bool:
        first = at + 4 + code[at + 2]
        aliases = code[first + 2 : first + 3 * code[first - 1] : 3]
        return code[at] == MUTATE or (code[at] == CALL and FRESH in aliases)

    return [index for index, at in enumerate(operators) if counts(at)]


def made_bytes(program: Program, operator: int, results: list[int]) -> int:
    """The most that an operator has allocated at once; results: bytes of each."""
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
    """The instructions of the code."""
    for at, end in pairwise([*starts(program.code), len(program.code)]):
        yield program.code[at:end]


def starts(code: array[int]) -> Iterator[int]:
    """Where instructions begin."""
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
