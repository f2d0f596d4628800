"""The adversary does what the proof says, to every heuristic. Needs the core."""

import pytest

from bench.studies.adversary import HEURISTICS, RULES, Adversary


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_each_node_costs_its_whole_path_and_another_order_costs_nothing(heuristic, rule):
    adversary = Adversary(heuristic, 4, rule)
    for nodes in range(1, 65):
        adversary.extend()
        lengths = [len(path) for path in adversary.paths]
        assert sum(lengths) == nodes
        assert adversary.computed[-1] == sum(length * (length + 1) // 2 for length in lengths)
        assert adversary.computed[-1] / nodes >= (nodes / 4 + 1) / 2
    assert adversary.in_order(64).total_cost == 64


def test_a_budget_that_holds_no_path_is_named():
    with pytest.raises(ValueError, match="budget is 2"):
        Adversary("lru", 2, "longest")
