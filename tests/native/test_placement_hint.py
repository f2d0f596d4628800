"""Which end of the heap the engine asks for (eviction/placement_hint.h)."""

import pytest
from toy import MUTATE, PAGE, WORDS, Failure, fail

PAGES = 64
EXPENSIVE, CHEAP = 1_000_000, 1_000


def price(operator):
    return EXPENSIVE if operator.name.startswith("expensive") else CHEAP


@pytest.fixture
def run_on(make_toy):
    """Makes engines with a fixed pool of a placement."""
    return lambda placement: make_toy(PAGES, driver="host-fixed", placement=placement, price=price)


def taught(run_on, placement=2):
    """An engine that has seen what cheap and expensive cost, and a constant."""
    toy = run_on(placement)
    source = toy.unseen(WORDS)
    for _ in range(8):
        for name in ("expensive", "cheap"):
            toy.one(name, source).release()
    return toy, source


def halves(tensors):
    """Which half of the addresses each of them is in, as the lowest is in the low one."""
    lowest = min(tensor.address for tensor in tensors)
    return ["low" if t.address - lowest < PAGES * PAGE // 2 else "high" for t in tensors]


def test_cheap_results_go_to_the_high_end_and_expensive_ones_to_the_low_end(run_on):
    toy, source = taught(run_on)
    made = [toy.one(name, source) for name in ("expensive", "cheap") * 6]
    assert halves([source, *made])[1:] == ["low", "high"] * 6


def test_the_same_operator_is_expensive_for_few_bytes_and_cheap_for_many(run_on):
    toy = run_on(2)
    source = toy.unseen(WORDS)
    for _ in range(8):
        for words in (WORDS, 8 * WORDS):
            toy.one(f"cheap {words}", source, words=words).release()
    made = [toy.one(f"cheap {words}", source, words=words) for words in (WORDS, 8 * WORDS)]
    assert halves([source, *made])[1:] == ["low", "high"]


def test_constants_and_what_cannot_be_repeated_are_low_however_cheap(run_on):
    """The source is a constant: what overwrites it cannot run again."""
    toy, source = taught(run_on)
    made = [
        toy.unseen(WORDS, seed=1),
        toy.one("cheap", source, words=WORDS, recomputable=False),
        *toy.run("cheap_", (source, MUTATE), results=[WORDS]),
        toy.one("cheap", source),
    ]
    assert halves([source, *made])[1:] == ["low", "low", "low", "high"]


def test_what_is_computed_again_goes_where_its_cost_says(run_on):
    toy, source = taught(run_on)
    made = [toy.one(name, source) for name in ("expensive", "cheap") * 3]
    for tensor in made:
        assert toy.evict(tensor)
    for tensor in reversed(made):
        toy.materialize(tensor)
    assert all(tensor.is_right() for tensor in made)
    assert halves([source, *made])[1:] == ["low", "high"] * 3
    outside = toy.unseen(WORDS, seed=2)  # the last step is over: nothing is running
    assert halves([source, outside])[1] == "low"


def test_an_operator_that_failed_leaves_no_hint_behind(run_on):
    toy, source = taught(run_on)
    with pytest.raises(Failure):
        toy.one("cheap", source, words=WORDS, fails=fail)
    outside = toy.unseen(WORDS, seed=1)
    assert halves([source, outside])[1] == "low"


@pytest.mark.parametrize("placement", [0, 1, 3])
def test_other_placements_put_cheap_and_expensive_side_by_side(run_on, placement):
    toy, source = taught(run_on, placement)
    made = [toy.one(name, source) for name in ("expensive", "cheap") * 6]
    assert set(halves([source, *made])) == {"low"}
