"""A program that is built against a heuristic (DTR paper, theorem 3.2, appendix B, figure 5).

A tensor that stays in memory is the parent of B paths; the budget is B tensors. The program appends
one tensor at a time, always to a path of which nothing is in memory: there is one, as B paths share
the B - 1 tensors that are left of the budget. So the whole path is computed again. The paths in
another order, one after the other, repeat nothing.

The adversary has to see what the heuristic evicted before it goes on. A deterministic heuristic
decides the same on the same beginning of a program, so each beginning is run from the start,
and what is new in its decisions is what the last step did.

The proof leaves open which of the paths without anything in memory is extended. Both ends are
tried: the ``shortest`` keeps the paths equally long where it can, which is the least that the proof
counts, (N / B + 1) / 2 operators for each node; the ``longest`` costs most at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.studies.log import Log
from bench.studies.panels import name_axes, panel_grid
from bench.studies.study import Document, Options, Study
from dtr_alloc import oplog
from dtr_alloc.oplog import Program
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.simulation.simulate import Run, run_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEURISTICS = tuple(name for name, preset in PRESETS.items() if preset.select == "score")
"""Every preset that is deterministic."""
RULES: Mapping[str, Callable[[list[list[int]]], list[int]]] = {
    "shortest": lambda paths: min(paths, key=len),
    "longest": lambda paths: max(paths, key=len),
}
"""Which path is extended, of those without anything in memory."""


class Adversary:
    """Builds the program, node by node; node 0 is the parent of all paths.

    Args:
        heuristic: as ``run_log`` takes it; must be deterministic.
        budget: in tensors, at least 3 (the parent, a node and the one before it); also the number
            of paths.
        rule: one of RULES.

    Attributes:
        paths: the nodes of each path, in order.
        computed: for each node from 1 on, the operators that the program up to it takes, first
            and repeated ones.

    Raises ValueError for a budget below 3.
    """

    def __init__(self, heuristic: str, budget: int, rule: str) -> None:
        if budget < 3:
            raise ValueError(f"budget is {budget}; allowed: 3 tensors and more")
        self.heuristic = heuristic
        self.budget = budget
        self.choose = RULES[rule]
        self.paths: list[list[int]] = [[] for _ in range(budget)]
        self.computed: list[int] = []
        self._log = Log(f"adversary of {heuristic}")
        self._log.constant("0", 1)
        self._resident: set[int] = set()
        self._read = 0  # characters of the decisions that are known

    def extend(self) -> None:
        """Appends the next node and lets the heuristic run."""
        node = len(self.computed) + 1
        evicted = [path for path in self.paths if not self._resident.intersection(path)]
        path = min(evicted, key=len)
        if path:  # else the parent's children come first
            path = self.choose(evicted)
        self._log.call(str(path[-1] if path else 0), {str(node): 1})
        path.append(node)
        run = run_of(self._log.program, node, self.heuristic, self.budget)
        self.computed.append(run.total_cost)
        assert run.decisions is not None
        for line in run.decisions[self._read :].split():
            change = self._resident.discard if line[0] == "E" else self._resident.add
            change(int(line[1:]))
        self._read = len(run.decisions)

    def in_order(self, nodes: int) -> Run:
        """The program up to this node, one path after the other, under the same heuristic and
        budget."""
        log = Log("adversary's paths in order")
        log.constant("0", 1)
        for path in self.paths:
            for before, node in zip([0, *path], path, strict=False):
                if node <= nodes:
                    log.call(str(before), {str(node): 1})
        return run_of(log.program, nodes, self.heuristic, self.budget)


def run_of(program: Program, nodes: int, heuristic: str, budget: int) -> Run:
    """Runs a program whose names are 0 to nodes, and which wants all of them until its end."""
    # The names go at the end, as simrd would compute what still has one; with the policy "ignore"
    # nothing else comes of that.
    releases = array("q", (number for name in range(nodes + 1) for number in (oplog.RELEASE, name)))
    whole = Program(program.path, code=program.code + releases)
    run = run_log(whole, heuristic, budget, dealloc="ignore", decisions=True)
    if run.status != "ok":
        raise RuntimeError(f"{heuristic} with {budget} tensors, {nodes} nodes: {run.status}")
    return run


def compute(options: Options) -> Document:
    budgets, most = ((4,), 32) if options.smoke else ((4, 8, 16, 32), 512)
    return {
        "columns": ["rule", "budget", "heuristic", "nodes", "computed", "in_order", "longest_path"],
        "runs": [
            row
            for rule in RULES
            for budget in budgets
            for heuristic in HEURISTICS
            for row in _rows(rule, budget, heuristic, most)
        ],
    }


def _rows(rule: str, budget: int, heuristic: str, most: int) -> Iterator[list[Any]]:
    adversary = Adversary(heuristic, budget, rule)
    for nodes in range(1, most + 1):
        adversary.extend()
        if nodes >= 2 * budget and nodes & (nodes - 1) == 0:
            longest = max(map(len, adversary.paths))
            in_order = adversary.in_order(nodes).total_cost
            computed = adversary.computed[-1]
            yield [rule, budget, heuristic, nodes, computed, in_order, longest]


LINES = {"shortest": "-", "longest": ":"}
COLORS = {4: "#d55e00", 8: "#e69f00", 16: "#009e73", 32: "#0072b2"}


def draw(document: Document) -> Mapping[str, Figure]:
    shown = list(dict.fromkeys(row[2] for row in document["runs"]))
    figure, panels = panel_grid(len(shown), panel=(3, 3.1), margin=(0.8, 1.2))
    for axes, heuristic in zip(panels.flat, shown, strict=False):
        _panel(axes, [row for row in document["runs"] if row[2] == heuristic])
        axes.set_title(heuristic, fontsize=10)
    name_axes(figure, panels, "N / B", "operators per node", ncols=3)
    return {"": figure}


def _panel(axes: Axes, rows: Sequence[Sequence[Any]]) -> None:
    for rule, style in LINES.items():
        for budget, color in COLORS.items():
            points = [row for row in rows if row[0] == rule and row[1] == budget]
            if not points:
                continue
            axes.plot(
                [nodes / budget for _, _, _, nodes, *_ in points],
                [computed / nodes for _, _, _, nodes, computed, *_ in points],
                color=color,
                linestyle=style,
                marker="o",
                markersize=4,
                markerfacecolor=color if rule == "shortest" else "white",
                linewidth=1.2,
                label=f"B = {budget}, {rule} evicted path extended",
            )
    ratios = sorted({row[3] / row[1] for row in rows})
    axes.plot(ratios, [(x + 1) / 2 for x in ratios], "k--", lw=1, label="the proof: (N/B + 1) / 2")
    in_order = [max(row[5] / row[3] for row in rows if row[3] / row[1] == x) for x in ratios]
    axes.plot(ratios, in_order, color="0.5", lw=1.6, label="the same nodes, path after path")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.25)


STUDY = Study(
    title="a program built against each deterministic heuristic",
    source="DTR paper, theorem 3.2, appendix B",
    compute=compute,
    draw=draw,
)
