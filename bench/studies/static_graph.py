"""Static training graphs: programs whose operators, costs and sizes are all known beforehand.

A graph is a list of nodes in the order in which the program first computes them. A node is one
operator with one output; it reads earlier nodes. What is pinned all the time (inputs, parameters,
room for their gradients) is one number. At the end all *outputs* must be resident. This is the
form that Checkmate works on (Jain et al., MLSys 2020, section 4).

As an op log a graph is: one CONSTANT with what is pinned, then a CALL for each node, and a RELEASE
of each node that is no output right after the last node that reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dtr_alloc import bounded
from dtr_alloc.bounded import shown
from dtr_alloc.oplog import (
    FRESH,
    MOST_SUM,
    Alias,
    Call,
    Constant,
    Instruction,
    Memory,
    Program,
    Release,
    compile_instructions,
)

MOST_BYTES = 1 << 26
"""Of a file of graphs."""


@dataclass(frozen=True)
class Node:
    """One operator and its output.

    Attributes:
        name: what it computes; need not be unique.
        cost: of computing it once, in any unit that all nodes share.
        size_bytes: of its output.
        inputs: the indices of the nodes that it reads, in the operator's order, each once.
    """

    name: str
    cost: int
    size_bytes: int
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class StaticGraph:
    """A static training graph. Raises ValueError, naming the node, if it is none.

    Attributes:
        name: for reports.
        nodes: in the order of the program, in which each stands behind what it reads.
        outputs: the indices of the nodes that must be resident at the end.
        pinned_bytes: of memory that is never freed.
        forward: how many of the first nodes are the forward pass, loss included; 0: not known.
    """

    name: str
    nodes: tuple[Node, ...]
    outputs: frozenset[int]
    pinned_bytes: int = 0
    forward: int = 0

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            where = f"node {index} ({node.name}) of {self.name!r}"
            if any(not 0 <= source < index for source in node.inputs):
                raise ValueError(f"{where} reads {node.inputs}; allowed: nodes below {index}")
            if len(set(node.inputs)) < len(node.inputs):
                raise ValueError(f"{where} reads {node.inputs}; allowed: each node once")
            if node.cost < 0 or node.size_bytes < 0:
                raise ValueError(f"{where} has a negative cost or size")
        if not self.outputs <= set(range(len(self.nodes))):
            raise ValueError(f"the outputs of {self.name!r} are {sorted(self.outputs)}; not nodes")

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each node, those that read it, ascending."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source].append(index)
        return tuple(map(tuple, found))

    @property
    def cost(self) -> int:
        """Of computing each node once."""
        return sum(node.cost for node in self.nodes)

    @cached_property
    def released_after(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that are not wanted any more once it was first computed."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, users in enumerate(self.users):
            if index not in self.outputs:
                found[max(users, default=index)].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def peak_bytes(self) -> int:
        """The most memory if everything is computed once and freed after its last use."""
        now = peak = self.pinned_bytes
        for node, released in zip(self.nodes, self.released_after, strict=True):
            now += node.size_bytes
            peak = max(peak, now)
            now -= sum(self.nodes[index].size_bytes for index in released)
        return peak

    @cached_property
    def least_bytes(self) -> int:
        """No schedule needs less: the largest single operator, or all outputs together."""
        nodes = self.nodes
        operators = (
            node.size_bytes + sum(nodes[source].size_bytes for source in node.inputs)
            for node in nodes
        )
        at_the_end = sum(nodes[index].size_bytes for index in self.outputs)
        return self.pinned_bytes + max([at_the_end, *operators])


# ---- as JSON ----


def from_json(name: str, value: Mapping[str, Any]) -> StaticGraph:
    """A graph from its JSON form: ``nodes``, their number; ``cost_cpu`` and ``cost_ram``, by node;
    ``args_in_order``, node -> nodes that it reads; optionally ``outputs`` (default: what nothing
    reads), ``pinned_bytes``, ``names`` and ``forward``."""
    count = value["nodes"]
    if count != len(value["cost_cpu"]):
        raise ValueError(
            f"{name!r} says it has {shown(count)} nodes; it lists {len(value['cost_cpu'])}"
        )
    names = value.get("names", [str(index) for index in range(count)])
    inputs = value["args_in_order"]
    nodes = tuple(
        Node(label, int(cost), int(size), tuple(inputs.get(str(index), ())))
        for index, (label, cost, size) in enumerate(
            zip(names, value["cost_cpu"], value["cost_ram"], strict=True)
        )
    )
    outputs, pinned = value.get("outputs"), value.get("pinned_bytes", 0)
    if not isinstance(pinned, int) or pinned < 0:
        raise ValueError(
            f"pinned_bytes of {name!r} is {shown(pinned)}; allowed: a number from 0 up"
        )
    sums = sum(node.cost for node in nodes), sum(node.size_bytes for node in nodes) + pinned
    if max(sums) > MOST_SUM:
        raise ValueError(f"the costs or sizes of {name!r} are more than {MOST_SUM} together")
    if not all(isinstance(node.name, str) for node in nodes):
        raise ValueError(f"a name in {name!r} is no text")
    if not all(type(source) is int for node in nodes for source in node.inputs):
        raise ValueError(f"what a node of {name!r} reads is no number")
    return StaticGraph(
        name,
        nodes,
        _unread(nodes) if outputs is None else frozenset(outputs),
        pinned,
        value.get("forward", 0),
    )


def read(path: str | os.PathLike[str]) -> dict[str, StaticGraph]:
    """The graphs of a JSON file, an object of name -> graph.

    Takes at most three gigabytes, and four seconds, for MOST_BYTES. Raises ValueError that names
    the file, and the graph in it, if it is no such file; OSError if it cannot be opened.
    """
    where = os.fspath(path)
    try:
        document = json.loads(bounded.read_bytes(path, MOST_BYTES))
        if not isinstance(document, dict):
            raise ValueError(f"it holds {shown(document)}; allowed: an object of graphs")
        graphs = {}
        for name, value in document.items():
            where = f"{os.fspath(path)}, graph {shown(name)}"
            graphs[name] = from_json(name, value)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{where}: {type(error).__name__}: {error!s:.200}") from None
    except (MemoryError, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}: it is too large or too deep: {error!s:.200}") from None
    return graphs


def _unread(nodes: Sequence[Node]) -> frozenset[int]:
    read_by_some = {source for node in nodes for source in node.inputs}
    return frozenset(set(range(len(nodes))) - read_by_some)


def graph(name: str, nodes: Sequence[Node], pinned_bytes: int = 0, forward: int = 0) -> StaticGraph:
    """A graph whose outputs are what nothing reads."""
    return StaticGraph(name, tuple(nodes), _unread(nodes), pinned_bytes, forward)


# ---- as an op log ----


def instructions(graph: StaticGraph) -> Iterator[Instruction]:
    """The op log of a graph; tensors are named ``t0``, ``t1``, ... by their nodes."""
    if graph.pinned_bytes:
        yield Constant("pinned")
        yield Memory("pinned", graph.pinned_bytes)
    for index, (node, released) in enumerate(zip(graph.nodes, graph.released_after, strict=True)):
        name = f"t{index}"
        yield Call(node.name, tuple(f"t{source}" for source in node.inputs), (name,), node.cost)
        yield Memory(name, node.size_bytes)
        yield Alias(name, FRESH)
        for dead in released:
            yield Release(f"t{dead}")


def program(graph: StaticGraph) -> Program:
    """A graph as the simulator runs it."""
    return compile_instructions(graph.name, instructions(graph))
