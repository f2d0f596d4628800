"""Static graphs made of op logs: real programs with measured costs, coarse enough to be solved.

What a log says is taken as the published simulator takes it: a mutation makes a new storage, a view
is its storage. Coarsening drops what hardly matters, always towards *less* cost and memory:

* A storage below ``least_bytes`` takes no memory and is always there.
* An operator none of whose results is left is computed once, and costs that.
* An operator with several results left costs its time for the first, nothing for the others.

So what is proven of the graph holds for the log: a run of the log within a budget costs at least
``Coarse.once`` plus the least cost of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.studies.static_graph import Node, StaticGraph
from dtr_alloc import oplog
from dtr_alloc.oplog import Program


@dataclass(frozen=True)
class Coarse:
    """A log as a graph.

    Attributes:
        graph: its large storages, and the operators that make them.
        once: cost of the operators that are not in the graph.
    """

    graph: StaticGraph
    once: int


def coarse_graph(name: str, program: Program, least_bytes: int) -> Coarse:
    """A log's graph. Raises ValueError for a log that makes constants after its first operator:
    they would not be pinned from the start."""
    return _Coarsening(name, program, least_bytes).run()


_DROPPED = -1
"""The node of a storage that is always there."""


class _Coarsening:
    def __init__(self, name: str, program: Program, least_bytes: int) -> None:
        self.name, self.program, self.least_bytes = name, program, least_bytes
        self.nodes: list[Node] = []
        self.storages: list[int] = []  # storage -> its node
        self.names: dict[int, int] = {}  # name -> storage, while it stands for one
        self.sizes: list[int] = []  # by storage
        self.pinned_bytes = 0
        self.once = 0

    def run(self) -> Coarse:
        operator = 0
        for code in oplog.instructions(self.program):
            kind = code[0]
            if kind in (oplog.CALL, oplog.MUTATE, oplog.EFFECT):
                label = self.program.operator_names[self.program.operators[operator]]
                operator += 1
                self.operator(code, label)
            elif kind == oplog.CONSTANT:
                self.names[code[1]] = self.storage(_DROPPED, code[2])
                if not operator:
                    self.pinned_bytes += code[2]
            elif kind == oplog.RELEASE:
                self.names.pop(code[1])
            else:  # COPY, COPY_FROM
                self.names[code[1]] = self.names[code[2]]
        outputs = {self.storages[storage] for storage in self.names.values()} - {_DROPPED}
        graph = StaticGraph(self.name, tuple(self.nodes), frozenset(outputs), self.pinned_bytes)
        return Coarse(graph, self.once)

    def storage(self, node: int, size_bytes: int) -> int:
        self.storages.append(node)
        self.sizes.append(size_bytes)
        return len(self.storages) - 1

    def operator(self, code: Sequence[int], label: str) -> None:
        end = 3 + code[2]
        arguments = code[3:end]
        args = [self.names[name] for name in arguments]
        fresh: list[tuple[int, int]] = []  # name, size
        if code[0] == oplog.MUTATE:
            for index in code[end + 1 :]:
                index = max(index, ~index)
                fresh.append((arguments[index], self.sizes[args[index]]))
        else:
            for at in range(end + 1, len(code), 3):
                name, size, alias = code[at : at + 3]
                if alias == oplog.FRESH:
                    fresh.append((name, size))
                else:
                    self.names[name] = args[alias]
        read = dict.fromkeys(self.storages[arg] for arg in args)
        read.pop(_DROPPED, None)
        cost = code[1]
        for name, size in fresh:
            node = _DROPPED
            if size >= self.least_bytes:
                node = len(self.nodes)
                self.nodes.append(Node(label, cost, size, tuple(read)))
                cost = 0
            self.names[name] = self.storage(node, size)
        self.once += cost
