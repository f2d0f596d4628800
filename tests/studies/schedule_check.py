"""Checks what a run of an op log did from the log and the list of its decisions alone.

Shares nothing with the simulator but the reading of lines: neither its records nor its program.
What it verifies, in simrd's semantics:

* the program's operators run once each, in the log's order (M), others are repetitions (R);
* when one runs, each tensor that it reads is there;
* while it runs, its outputs stand beside all that is resident, within the budget;
* what is evicted (E, D) is resident, and no constant;
* at the end all tensors that still have a name are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dtr_alloc.oplog import (
    Alias,
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Memory,
    Mutate,
    Release,
)


class Broken(ValueError):
    """A decision cannot be: the message names it, its place and the rule."""


@dataclass(frozen=True)
class Checked:
    """What the decisions add up to: the cost of all that ran, and of the repetitions among it; the
    most memory at a time."""

    total_cost: int
    remat_cost: int
    peak_bytes: int


@dataclass
class _Op:
    cost: int
    inputs: list[int]
    outputs: list[int]
    done: bool = False


class _Run:
    def __init__(self, decisions: Iterable[str], budget_bytes: int | None) -> None:
        self.decisions = enumerate(decisions)
        self.next = next(self.decisions, None)
        self.budget_bytes = budget_bytes
        self.op_of: list[_Op] = []  # by tensor, like the next two
        self.storage_of: list[int] = []  # its first tensor
        self.size_of: list[int] = []  # 0: a view
        self.there: set[int] = set()  # tensors
        self.constants: set[int] = set()
        self.total = self.remat = self.used = self.peak = 0

    def tensor(self, op: _Op, size_bytes: int, view_of: int | None) -> int:
        new = len(self.op_of)
        self.op_of.append(op)
        self.storage_of.append(new if view_of is None else self.storage_of[view_of])
        self.size_of.append(size_bytes if view_of is None else 0)
        op.outputs.append(new)
        return new

    def first_run(self, op: _Op) -> None:
        """Follows the decisions up to this operator's own."""
        while not op.done:
            self.step()

    def step(self) -> None:
        if self.next is None:
            raise Broken("the decisions end before the program")
        at, text = self.next
        where = f"decision {at} ({text})"
        try:
            kind, tensor = text[0], int(text[1:])
            op = self.op_of[tensor]
        except (IndexError, ValueError):
            raise Broken(f"{where} names no tensor that exists by then") from None
        if kind in "MR":
            if op.done != (kind == "R"):
                raise Broken(f"{where}: the operator ran {'before' if op.done else 'never'}")
            self.execute(op, where)
            self.remat += op.cost if kind == "R" else 0
        elif kind in "ED":
            if tensor not in self.there or self.storage_of[tensor] != tensor:
                raise Broken(f"{where}: that storage is not resident")
            if tensor in self.constants:
                raise Broken(f"{where}: that is a constant")
            self.used -= self.size_of[tensor]
            self.there = {each for each in self.there if self.storage_of[each] != tensor}
        else:
            raise Broken(f"{where}: allowed: M, R, E, D")
        self.next = next(self.decisions, None)

    def execute(self, op: _Op, where: str) -> None:
        for read in op.inputs:
            if read not in self.there:
                raise Broken(f"{where}: its input {read} is not there")
        beside = self.used + sum(self.size_of[output] for output in op.outputs)
        if self.budget_bytes is not None and beside > self.budget_bytes:
            raise Broken(f"{where}: {beside} bytes in use; the budget is {self.budget_bytes}")
        self.peak = max(self.peak, beside)
        self.used += sum(self.size_of[new] for new in op.outputs if new not in self.there)
        self.there.update(op.outputs)
        self.total += op.cost
        op.done = True


def verify(
    log: Iterable[Instruction], decisions: Iterable[str], budget_bytes: int | None = None
) -> Checked:
    """Follows the decisions through the log. Raises Broken at the first that cannot be."""
    run = _Run(decisions, budget_bytes)
    names: dict[str, int] = {}
    references: Counter[int] = Counter()
    order: list[str] = []  # of the names' first definition
    lines = iter(log)

    def name(given: str, tensor: int) -> None:
        if given not in names:
            order.append(given)
        names[given] = tensor
        references[tensor] += 1

    for line in lines:
        match line:
            case Constant(given):
                size = next(lines)
                assert isinstance(size, Memory)
                op = _Op(0, [], [])
                run.constants.add(run.tensor(op, size.memory, None))
                run.first_run(op)
                name(given, op.outputs[0])
            case Call(_, arguments, results, cost):
                op = _Op(cost, [names[each] for each in arguments], [])
                for _ in results:
                    size, alias = next(lines), next(lines)
                    assert isinstance(size, Memory)
                    assert isinstance(alias, Alias)
                    view_of = None if alias.alias < 0 else op.inputs[alias.alias]
                    run.tensor(op, size.memory, view_of)
                run.first_run(op)
                for given, tensor in zip(results, op.outputs, strict=True):
                    name(given, tensor)
            case Mutate(_, arguments, mutated, cost):
                op = _Op(cost, [names[each] for each in arguments], [])
                for index in mutated:
                    run.tensor(op, run.size_of[run.storage_of[op.inputs[index]]], None)
                run.first_run(op)
                for index, tensor in zip(mutated, op.outputs, strict=True):
                    references[names[arguments[index]]] -= 1
                    name(arguments[index], tensor)
            case Copy(new, old):
                name(new, names[old])
            case CopyFrom(new, old):
                references[names[new]] -= 1
                name(new, names[old])
            case Release(given) if given in names:
                references[names[given]] -= 1
            case _:
                pass  # EFFECT is nothing to simrd: what it makes are the CONSTANT lines that follow
    while run.next is not None:
        run.step()
    for given in order:
        tensor = names[given]
        if references[tensor] > 0 and tensor not in run.there:
            raise Broken(f"at the end {given!r} (tensor {tensor}) is not there")
    return Checked(run.total, run.remat, run.peak)
