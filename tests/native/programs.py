"""What a simulation's decisions say about a program.

``Model`` follows them with nothing but sets, and objects where one cannot be true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtr_alloc import oplog
from dtr_alloc.oplog import Program


class Model:
    """What the decisions of a simulation on the engine mean for contents.

    A storage's version is known by the number of its first tensor, as in the decisions. The model
    knows which were made, and which may be in memory: it never takes one for evicted that is not
    (a repeated operator may bring back any of its results).
    """

    def __init__(self, program: Program) -> None:
        self.parents: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # inputs, outputs
        self.operators: list[tuple[int, tuple[int, ...], tuple[int, ...], set[int]]] = []
        self.sizes: dict[int, int] = {}
        self.constants: set[int] = set()
        self._read(program)

    def _read(self, program: Program) -> None:
        code = list(program.code)
        names: dict[int, list[int]] = {}  # name -> its storage's version, shared by its names
        tensors = at = 0
        while at < len(code):
            kind = code[at]
            if kind == oplog.CONSTANT:
                names[code[at + 1]] = [tensors]
                self.sizes[tensors] = code[at + 2]
                self.constants.add(tensors)
                tensors += 1
                at += 3
            elif kind in (oplog.CALL, oplog.MUTATE, oplog.EFFECT):
                count = code[at + 2]
                args = [names[name] for name in code[at + 3 : at + 3 + count]]
                inputs = tuple(arg[0] for arg in args)
                at += 3 + count
                results = code[at]
                at += 1
                first, outputs, overwritten = tensors, [], set()
                if kind != oplog.MUTATE:
                    for i in range(results):
                        name, size, alias = code[at + 3 * i : at + 3 * i + 3]
                        names[name] = [first + i] if alias < 0 else args[alias]
                        if alias < 0:
                            self.sizes[first + i] = size
                            outputs.append(first + i)
                    at += 3 * results
                else:
                    indices = [max(index, ~index) for index in code[at : at + results]]
                    for i, index in reversed(list(enumerate(indices))):
                        overwritten.add(inputs[index])
                        self.sizes[first + i] = self.sizes[inputs[index]]
                        args[index][0] = first + i
                        outputs.append(first + i)
                        if inputs[index] in self.constants:
                            self.constants.add(first + i)
                    at += results
                tensors += results
                if outputs:
                    self.operators.append((first, inputs, tuple(outputs), overwritten))
                    for output in outputs:
                        self.parents[output] = (inputs, tuple(outputs))
            elif kind == oplog.RELEASE:
                at += 2
            else:
                names[code[at + 1]] = names[code[at + 2]]
                at += 3

    def follow(self, decisions: str) -> dict[str, int]:
        """Raises AssertionError where the decisions contradict themselves; counts them."""
        counts = dict.fromkeys("MREDB", 0)
        resident = set(self.constants)
        operators = iter(self.operators)
        for line in decisions.split("\n") if decisions else ():
            kind, number = line[0], int(line[1:])
            counts[kind] += 1
            if kind == "M":
                first, inputs, outputs, overwritten = next(operators)
                assert first == number, f"{line}: the next operator is {first}"
                self._check_inputs(line, inputs, resident)
                resident -= overwritten
                resident |= set(outputs)
            elif kind == "R":
                inputs, outputs = self.parents[number]
                self._check_inputs(line, inputs, resident)
                resident |= set(outputs)
            elif kind in "ED":
                assert number in resident, f"{line}: it was not there"
                assert kind == "D" or number not in self.constants, f"{line}: a constant"
                resident.discard(number)
            else:
                assert number not in resident, f"{line}: it is still there"
        return counts

    def _check_inputs(self, line: str, inputs: Sequence[int], resident: set[int]) -> None:
        missing = [number for number in inputs if number not in resident and self.sizes[number]]
        assert not missing, f"{line} reads {missing}, which were evicted"


def describe(run: Any) -> tuple[Any, ...]:
    """All of a run but real time."""
    return tuple(
        value
        for name, value in vars(run).items()
        if name not in ("seconds", "search_ns", "decisions")
    )
