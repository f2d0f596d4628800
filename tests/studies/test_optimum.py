"""The optimum of static graphs: solvers against each other, against brute force, against simrd.

Needs the core and scipy. Where the published figures are from: tests/data/simrd/README.md.
"""

import json
import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from exact_states import MOST_NODES, least_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.studies import checkpointing, optimum, static_graph, training_graphs
from bench.studies.any_schedule import bound
from bench.studies.checkmate import Checkmate
from bench.studies.log_graph import coarse_graph
from bench.studies.static_graph import Node, StaticGraph
from bench.studies.static_schedule import ScheduleError, measure
from dtr_alloc.oplog import (
    FRESH,
    Alias,
    Call,
    Constant,
    Copy,
    Memory,
    Mutate,
    Release,
    compile_instructions,
    compile_log,
)
from dtr_alloc.simulation import simulate

pytest.importorskip("scipy")

DATA = Path(__file__).parents[1] / "data" / "simrd"
REFERENCE = static_graph.read(DATA / "optimum_graphs.json")
EXPECTED = [json.loads(line) for line in (DATA / "optimum_expected.jsonl").open()]
SECONDS = math.inf  # a solver is never ended early
CLOSE = 1e-6


def label(row):
    return f"{row['graph']}-{row['frac']}"


# ---- graphs ----


def as_published(graph):
    """The log of the published comparison: the last node is released as well, and what is released
    after a node goes in the order of a Python set."""
    lines = static_graph.instructions(replace(graph, outputs=frozenset()))
    for are_releases, run in groupby(lines, lambda line: isinstance(line, Release)):
        if are_releases:
            yield from (Release(f"t{i}") for i in {int(line.name[1:]) for line in run})
        else:
            yield from run


@pytest.mark.parametrize("row", EXPECTED, ids=label)
def test_a_static_graph_makes_every_decision_of_the_published_comparison(row):
    graph = REFERENCE[row["graph"]]
    program = compile_instructions(graph.name, as_published(graph))
    assert graph.peak_bytes == row["simrd_V1inf_peak"] == simulate.baseline(program).peak_bytes
    for heuristic, theirs in row["simrd"].items():
        run = simulate.run_log(program, heuristic, row["budget"], max_recompute=graph.cost)
        assert (run.status, run.remat_ops, run.peak_bytes, run.decisions_sha256) == (
            theirs["status"],
            theirs["remat_ops"],
            theirs["peak"],
            theirs["sha256"],
        )
        assert round(run.total_cost / graph.cost, 6) == theirs["overhead"]


def test_vgg16_is_checkmates():
    ours, theirs = training_graphs.vgg16(), REFERENCE["VGG16_flops_b256"]
    assert [replace(node, name="") for node in ours.nodes] == [
        replace(node, name="") for node in theirs.nodes
    ]
    assert ours.outputs == theirs.outputs


@pytest.mark.parametrize("make", [*optimum.GRAPHS, *optimum.SMOKE_GRAPHS])
def test_a_graph_as_a_program_has_its_peak_and_its_cost(make):
    graph = make()
    base = simulate.run_log(static_graph.program(graph), "lru")
    assert (base.peak_bytes, base.total_cost) == (graph.peak_bytes, graph.cost)


@pytest.mark.parametrize(
    ("inputs", "message"), [((1,), "nodes below 1"), ((0, 0), "each node once")]
)
def test_a_node_that_reads_what_it_cannot_is_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        static_graph.graph("wrong", [Node("a", 1, 1), Node("b", 1, 1, inputs)])


# ---- schedules ----

DIAMOND = static_graph.graph(
    "diamond", [Node("a", 1, 2), Node("b", 1, 2, (0,)), Node("c", 1, 1, (1,))]
)
C, F = "compute", "free"


def test_a_schedule_is_measured_step_by_step():
    steps = [(C, 0), (C, 1), (F, 0), (C, 2), (F, 1), (C, 0)]
    measured = measure(DIAMOND, steps, 5)
    assert (measured.cost, measured.peak_bytes, measured.computed) == (4, 4, 4)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(C, 0), (F, 0), (C, 1)], r"inputs \[0\] are not resident"),
        ([(C, 0), (F, 1)], "not resident"),
        ([(C, 0), (C, 0)], "it is resident"),
        ([(C, 0), (C, 2)], r"inputs \[1\] are not resident"),
        ([(C, 0), (C, 1), (C, 2)], "takes 5 bytes; the budget is 4"),
        ([(C, 0), (C, 1)], "node 2 is never computed"),
        ([(C, 0), (C, 1), (F, 0), (C, 2), (F, 2)], r"outputs \[2\]"),
        ([(C, 3)], "there are 3 nodes"),
    ],
)
def test_the_checker_names_what_a_schedule_breaks(steps, message):
    with pytest.raises(ScheduleError, match=message):
        measure(DIAMOND, steps, 4)


def test_a_schedule_does_not_reorder_the_program():
    graph = static_graph.graph("two", [Node("a", 1, 1), Node("b", 1, 1)])
    with pytest.raises(ScheduleError, match="node 0 comes before it"):
        measure(graph, [(C, 1), (C, 0)])


# ---- optima ----


@st.composite
def graphs(draw, most=8):
    nodes = []
    for index in range(draw(st.integers(3, most))):
        near = st.integers(max(0, index - 5), index - 1)
        inputs = draw(st.lists(near, max_size=3, unique=True)) if index else []
        cost, size = draw(st.integers(0, 9)), draw(st.integers(1, 6))
        nodes.append(Node(f"n{index}", cost, size, tuple(inputs)))
    nodes.append(Node("last", 1, 1, (len(nodes) - 1,)))
    return static_graph.graph("random", nodes, pinned_bytes=draw(st.integers(0, 3)))


def steps_of(run, graph):
    """A run of the simulator as a schedule."""
    decisions = run.decisions.split()
    first = int(graph.pinned_bytes > 0)  # tensor 0 is then what is pinned
    kinds = {"M": C, "R": C, "E": F, "D": F}
    return [(kinds[decision[0]], int(decision[1:]) - first) for decision in decisions[first:]]


@settings(max_examples=25)
@given(graph=graphs(), room=st.floats(0, 1))
def test_no_schedule_is_below_the_bound_and_checkmates_is_not_below_brute_force(graph, room):
    budget = int(graph.least_bytes + room * (graph.peak_bytes - graph.least_bytes))
    exact = least_cost(graph, budget)
    proven = bound(graph, budget, SECONDS)
    solution = Checkmate(graph).optimum(budget, SECONDS)
    if exact is None:
        assert proven.steps is None
        assert solution.status == "infeasible"
        return
    assert proven.cost <= exact * (1 + CLOSE)
    if proven.steps is not None:
        assert measure(graph, proven.steps, budget).cost == exact
    if solution.steps is not None:
        assert measure(graph, solution.steps, budget).cost >= exact


@settings(max_examples=25)
@given(graph=graphs(), room=st.floats(0, 1))
def test_every_heuristics_run_is_a_schedule_and_costs_at_least_the_proven_bound(graph, room):
    budget = int(graph.least_bytes + room * (graph.peak_bytes - graph.least_bytes))
    program = static_graph.program(graph)
    proven, exact = bound(graph, budget, SECONDS), least_cost(graph, budget)
    for rule in simulate.parse_heuristics(["all"], "simrd"):
        run = simulate.run_log(program, rule, budget, max_recompute=20 * graph.cost, decisions=True)
        if run.status != "ok":
            continue
        measured = measure(graph, steps_of(run, graph), budget)
        assert (measured.cost, measured.peak_bytes) == (run.total_cost, run.peak_bytes)
        assert exact <= run.total_cost
        assert proven.cost <= run.total_cost * (1 + CLOSE)


def test_a_schedule_outside_checkmates_form_can_be_cheaper():
    """Why Checkmate's optimum is no bound for a policy: computing out of order saves 5 of 63."""
    reads = [(), (0,), (1, 0), (2, 1, 0), (), (4, 1), (3, 4), (2, 5), (7, 4)]
    costs, sizes = (5, 2, 0, 2, 3, 6, 4, 8, 6), (1, 5, 4, 5, 5, 5, 6, 2, 1)
    nodes = [Node("", *of) for of in zip(costs, sizes, reads, strict=True)]
    graph = static_graph.graph("out of order", nodes)
    found = measure(graph, Checkmate(graph).optimum(19, SECONDS).steps, 19).cost
    assert (found, least_cost(graph, 19)) == (63, 58)
    assert bound(graph, 19, SECONDS).cost <= 58 * (1 + CLOSE)


QUICK = [row for row in EXPECTED if row["milp"]["seconds"] < 5]


@pytest.mark.parametrize("row", QUICK, ids=label)
def test_the_optimum_is_that_of_the_published_comparison(row):
    graph, budget = REFERENCE[row["graph"]], row["budget"]
    solution = Checkmate(graph).optimum(budget, SECONDS)
    proven = bound(graph, budget, SECONDS)
    assert (solution.status, proven.status) == ("optimal", "optimal")
    for steps in (solution.steps, proven.steps):
        cost = measure(graph, steps, budget).cost
        assert cost / graph.cost == pytest.approx(row["milp"]["overhead"], abs=2e-6)
    assert proven.cost / graph.cost == pytest.approx(row["milp"]["bound"], abs=2e-6)


def test_without_a_schedule_the_programs_say_so():
    graph = training_graphs.chain(6)
    assert bound(graph, graph.least_bytes - 1, SECONDS).status == "infeasible"
    assert Checkmate(graph).optimum(graph.least_bytes - 1, SECONDS).status == "infeasible"
    assert least_cost(graph, graph.least_bytes - 1) is None


def test_a_bound_holds_for_smaller_budgets_too():
    rows = [
        {"graph": "a", "bound": 1.1, "best": 1.1},
        {"graph": "a", "bound": 1.0, "best": 1.2},
        {"graph": "b", "bound": 1.0, "best": None},
    ]
    found = optimum.conclusions(rows)
    assert [row["bound"] for row in found] == [1.1, 1.1, 1.0]
    assert [row.get("is_proven") for row in found] == [True, False, None]


def test_rounding_the_relaxation_gives_schedules():
    graph = training_graphs.unet(levels=1)
    schedules = Checkmate(graph).rounded(int(0.8 * graph.peak_bytes), SECONDS)
    assert schedules
    assert all(measure(graph, steps).cost >= graph.cost for steps in schedules)


def test_brute_force_refuses_what_it_cannot_search():
    with pytest.raises(ValueError, match=f"at most {MOST_NODES}"):
        least_cost(training_graphs.chain(20), 20)


# ---- checkpointing schemes ----


def binomial_steps(length: int, checkpoints: int) -> int:
    """Griewank & Walther 2000, equation 2: the steps that `checkpoints`, the start among them,
    take for `length` steps."""
    repetitions = 0
    while math.comb(checkpoints + repetitions, checkpoints) < length:
        repetitions += 1
    return repetitions * length - math.comb(checkpoints + repetitions, repetitions - 1)


def test_treeverse_takes_the_binomial_number_of_steps():
    for length in range(2, 40):
        for slots in range(6):
            assert checkpointing._steps(length, slots) == binomial_steps(length, slots + 1)


@pytest.mark.parametrize("make", optimum.GRAPHS)
def test_every_scheme_gives_schedules(make):
    graph = make()
    rows = optimum.schemes(graph)
    assert {row["scheme"] for row in rows} >= {"√n, all nodes", "Chen greedy, all nodes"}
    assert all(row["overhead"] >= 1 for row in rows)
    # With everything kept nothing is recomputed.
    assert min(row["overhead"] for row in rows) == 1


def test_sqrt_n_halves_the_memory_of_a_long_chain_for_less_than_a_forward_pass():
    graph = training_graphs.chain(64)
    measured = measure(graph, checkpointing.sqrt_n(graph, checkpointing.separators(graph)))
    assert measured.peak_bytes <= 2 * 8 + 3
    assert graph.cost < measured.cost < graph.cost + graph.forward


def test_separators_are_where_no_skip_passes():
    nodes = [Node("", 1, 1, read) for read in ((), (0,), (1, 0), (2,), (3,))]
    graph = StaticGraph("skip", tuple(nodes), frozenset({4}), forward=5)
    assert checkpointing.separators(graph) == [0, 2, 3]


# ---- logs as graphs ----


def test_a_log_of_a_graph_is_the_graph():
    graph = training_graphs.residual(blocks=1)
    coarse = coarse_graph(graph.name, static_graph.program(graph), 0)
    assert coarse.once == 0
    assert replace(coarse.graph, forward=graph.forward) == graph


def test_small_storages_of_a_log_are_always_there_and_their_operators_run_once():
    graph = training_graphs.transformer(layers=1)
    program = static_graph.program(graph)
    least = sorted(node.size_bytes for node in graph.nodes)[len(graph) // 3]
    coarse = coarse_graph(graph.name, program, least)
    assert len(coarse.graph) < len(graph)
    assert coarse.graph.cost + coarse.once == graph.cost
    assert coarse.graph.peak_bytes <= graph.peak_bytes


def test_views_mutations_and_copies_of_a_log_are_their_storages():
    lines = [
        *[Constant("w"), Memory("w", 7)],
        Call("make", ("w",), ("x", "tiny"), 5),
        *[Memory("x", 4), Alias("x", FRESH), Memory("tiny", 1), Alias("tiny", FRESH)],
        *[Call("look", ("x",), ("view",), 2), Memory("view", 4), Alias("view", 0)],
        Mutate("change", ("view", "w"), (0,), 3),
        Copy("again", "view"),
        *[Call("read", ("again", "tiny"), ("y",), 1), Memory("y", 6), Alias("y", FRESH)],
        *[Release("view"), Release("again"), Release("tiny")],
    ]
    coarse = coarse_graph("log", compile_instructions("log", lines), 2)
    assert [(node.cost, node.size_bytes, node.inputs) for node in coarse.graph.nodes] == [
        (5, 4, ()),
        (3, 4, (0,)),
        (1, 6, (1,)),
    ]
    assert coarse.once == 2
    assert coarse.graph.outputs == {0, 2}
    assert coarse.graph.pinned_bytes == 7


@pytest.mark.parametrize("name", [pytest.param("plain_chain", marks=pytest.mark.long), "unet_skip"])
def test_what_is_proven_of_a_coarse_log_holds_for_its_runs(name):
    program = compile_log(DATA / "synthetic_logs" / f"{name}.log.xz")
    base = simulate.baseline(program)
    coarse = coarse_graph(name, program, base.peak_bytes // 100)
    for ratio in (0.5, 0.8):
        budget = int(ratio * base.peak_bytes)
        proven = bound(coarse.graph, budget, 2)
        for heuristic in ("dtr-full", "msps", "lru"):
            run = simulate.run_log(program, heuristic, budget, max_recompute=2 * base.compute)
            if run.status == "ok":
                assert proven.cost + coarse.once <= run.total_cost * (1 + CLOSE)
