"""Checks what a run of an op log did from the program and the list of its decisions alone.

Shares nothing with the simulators but the reading of the log. What it verifies:

* the program's operators run once each, in its order (M), others are repetitions (R);
* when one runs, each tensor that it reads is there;
* while it runs, its outputs stand beside all that is resident, within the budget;
* what is evicted (E, D) is resident, and no constant; what is banished (B) is not there;
* in simrd's semantics, that all of the program ran, and at the end all tensors that still have a
  name are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dtr_alloc import oplog
from dtr_alloc.oplog import Program
from dtr_alloc.oplog.steps import instructions


class Broken(AssertionError):
    """A decision cannot be: the message names it, its place and the rule."""


@dataclass(eq=False)
class Operator:
    cost: int
    inputs: list[int]
    outputs: list[int]
    overwritten: set[int] = field(default_factory=set)
    ran: bool = False


@dataclass(frozen=True)
class Followed:
    """What the decisions add up to: how many there are of each kind, the cost of all that ran, and
    of the repetitions among it; the most memory at a time."""

    counts: dict[str, int]
    total_cost: int
    remat_cost: int
    peak_bytes: int


class Model:
    """What decisions mean for the contents of a program.

    Tensors are known by their numbers, as in the decisions. On the engine (runtime) a name stands
    for a storage, whose versions have the numbers of their first tensors, and views are names; in
    simrd's semantics each view is a tensor, and what is overwritten is copied.
    """

    def __init__(self, program: Program, semantics: str = "runtime") -> None:
        self.is_simrd = semantics == "simrd"
        self.operators: list[Operator] = []
        self.operator_of: dict[int, Operator] = {}
        self.storage_of: list[int] = []  # its first tensor, by tensor
        self.size_of: list[int] = []  # 0: a view
        self.constants: set[int] = set()
        self.references: Counter[int] = Counter()
        # A box for each name, with the tensor that it stands for; names of one storage share it.
        self.names: dict[int, list[int]] = {}
        for kind, *numbers in instructions(program):
            self._read(kind, numbers)

    def _read(self, kind: int, numbers: list[int]) -> None:
        if kind == oplog.CONSTANT:
            self._constant(*numbers)
        elif kind == oplog.RELEASE:
            self.references[self.names[numbers[0]][0]] -= 1
        elif kind in (oplog.COPY, oplog.COPY_FROM):
            name, source = numbers
            if kind == oplog.COPY_FROM:
                self.references[self.names[name][0]] -= 1
            self._name(name, self.names[source])
        else:
            cost, count, *rest = numbers
            names, results = rest[:count], rest[count + 1 :]
            operator = Operator(cost, [self.names[name][0] for name in names], [])
            first = len(self.size_of)
            if kind == oplog.MUTATE:
                self._overwrite(operator, names, [max(index, ~index) for index in results])
            else:
                boxes = [self.names[name] for name in names]
                for result in zip(results[::3], results[1::3], results[2::3], strict=True):
                    self._result(operator, boxes, *result, is_constant=kind == oplog.EFFECT)
            if operator.outputs:
                self._add(operator, range(first, len(self.size_of)))

    def _add(self, operator: Operator, tensors: Iterable[int]) -> None:
        self.operators.append(operator)
        self.operator_of.update(dict.fromkeys(tensors, operator))

    def _name(self, name: int, box: list[int]) -> None:
        self.names[name] = box
        self.references[box[0]] += 1

    def _tensor(self, size: int, view_of: int | None = None) -> int:
        self.storage_of.append(len(self.size_of) if view_of is None else self.storage_of[view_of])
        self.size_of.append(size)
        return len(self.size_of) - 1

    def _constant(self, name: int, size: int) -> None:
        tensor = self._tensor(size)
        self.constants.add(tensor)
        self._name(name, [tensor])
        if self.is_simrd:
            self._add(Operator(0, [], [tensor]), [tensor])

    def _result(
        self,
        operator: Operator,
        boxes: list[list[int]],
        name: int,
        size: int,
        alias: int,
        is_constant: bool,
    ) -> None:
        if is_constant and alias < 0:
            self._constant(name, size)
            return
        tensor = self._tensor(0 if alias >= 0 else size, boxes[alias][0] if alias >= 0 else None)
        if alias < 0 or self.is_simrd:
            operator.outputs.append(tensor)
            self._name(name, [tensor])
        else:
            self._name(name, boxes[alias])

    def _overwrite(self, operator: Operator, names: list[int], indices: list[int]) -> None:
        made = [self._tensor(self.size_of[self.storage_of[operator.inputs[i]]]) for i in indices]
        operator.outputs += made
        for index, tensor in reversed(list(zip(indices, made, strict=True))):
            old = operator.inputs[index]
            if self.is_simrd:
                self.references[old] -= 1
                self._name(names[index], [tensor])
            else:
                operator.overwritten.add(old)
                self.names[names[index]][0] = tensor
                if old in self.constants:
                    self.constants.add(tensor)

    def follow(self, decisions: str, budget_bytes: int | None = None) -> Followed:
        """Raises Broken at the first decision that cannot be."""
        counts = dict.fromkeys("MREDB", 0)
        there = set() if self.is_simrd else set(self.constants)
        total = remat = peak = used = at = 0
        for operator in self.operators:
            operator.ran = False
        for line in decisions.split("\n") if decisions else ():
            kind, number = line[0], int(line[1:])
            counts[kind] = counts.get(kind, 0) + 1
            if kind in "MR":
                operator = self._operator(line, at)
                at += kind == "M"
                missing = [each for each in operator.inputs if each not in there]
                if not self.is_simrd:  # where tensors of no bytes are always there
                    missing = [each for each in missing if self.size_of[each]]
                self._require(not missing, f"{line}: its inputs {missing} are not there")
                beside = used + sum(self.size_of[output] for output in operator.outputs)
                holds = budget_bytes is None or beside <= budget_bytes
                self._require(holds, f"{line}: {beside} bytes in use; allowed: {budget_bytes}")
                peak = max(peak, beside)
                used += sum(self.size_of[new] for new in operator.outputs if new not in there)
                there -= operator.overwritten
                there.update(operator.outputs)
                total += operator.cost
                remat += operator.cost if kind == "R" else 0
            elif kind in "ED":
                is_there = number in there and self.storage_of[number] == number
                self._require(is_there, f"{line}: that storage is not resident")
                may_go = kind == "D" and not self.is_simrd  # with its last name
                is_constant = number in self.constants
                self._require(may_go or not is_constant, f"{line}: that is a constant")
                used -= self.size_of[number]
                there -= {each for each in there if self.storage_of[each] == number}
            else:
                is_banished = kind == "B" and not self.is_simrd
                self._require(is_banished, f"{line}: allowed: M, R, E, D")
                self._require(number not in there, f"{line}: it is still there")
        if self.is_simrd:
            self._require(at == len(self.operators), "the decisions end before the program")
            gone = [each for each, count in self.references.items() if count > 0]
            gone = [each for each in gone if each not in there]
            self._require(not gone, f"at the end {gone} are not there")
        return Followed(counts, total, remat, peak)

    def _operator(self, line: str, at: int) -> Operator:
        """Of a decision that runs one; so many have run before."""
        operator = self.operator_of.get(int(line[1:]))
        self._require(operator is not None, f"{line} names no operator's tensor")
        assert operator
        if line[0] == "M":
            self._require(not operator.ran, f"{line}: the operator ran before")
            self._require(operator is self.operators[at], f"{line}: another operator is the next")
        else:
            self._require(operator.ran, f"{line}: the operator ran never")
        operator.ran = True
        return operator

    @staticmethod
    def _require(holds: bool, otherwise: str) -> None:
        if not holds:
            raise Broken(otherwise)


def describe(run: Any) -> tuple[Any, ...]:
    """All of a run but real time."""
    return tuple(
        value
        for name, value in vars(run).items()
        if name not in ("seconds", "search_ns", "decisions")
    )
