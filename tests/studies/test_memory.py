"""The picture of memory holds what was in memory. Needs the core."""

import itertools
import json
import lzma
from pathlib import Path

from simrd_names import of_simrd

from bench.studies.linear_network import linear_network
from bench.studies.memory import intervals
from dtr_alloc.simulation.simulate import run_log

DATA = Path(__file__).parents[1] / "data/simrd/theory_traces_expected.jsonl.xz"
DEALLOCS = {"RuntimeV1": "banish", "RuntimeV2EagerOptimized": "eager"}


def test_each_column_has_as_many_tensors_as_the_published_simulator_had():
    with lzma.open(DATA, "rt") as lines:
        expected = [json.loads(line) for line in lines]
    assert len(expected) == 7
    for row in expected:
        dealloc = DEALLOCS[row["runtime"]]
        program = linear_network(row["n"])
        run = run_log(
            program,
            budget_bytes=row["budget"],
            dealloc=dealloc,
            decisions=True,
            **of_simrd(row["heuristic"]),
        )
        operators, found = intervals(run.decisions)
        assert operators == row["total_ops"]
        changes = [0] * (operators + 1)
        for _, first, after in found:
            changes[first] += 1
            changes[after] -= 1
        counts = list(itertools.accumulate(changes))
        assert counts[:-1] == row["resident_count_after_each_compute"]


def test_intervals_say_when_a_tensor_came_and_went():
    assert intervals("M0\nM1\nE0\nM2\nD1\nB1\nR0") == (
        4,
        [[0, 0, 2], [0, 3, 4], [1, 1, 3], [2, 2, 4]],
    )
