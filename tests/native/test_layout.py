"""Addresses for blocks whose lifetimes are known (native/learn/layout.h). Needs a C++ compiler.

Times, sizes and addresses are small numbers: the code does not look at the grain.
"""

from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

STEP = 12  # moments


class Lifetime(NamedTuple):
    begin: int
    end: int  # this moment included; before begin: over the end of the step
    size: int

    def moments(self) -> set[int]:
        end = self.end if self.begin <= self.end else self.end + STEP
        return {moment % STEP for moment in range(self.begin, end + 1)}

    def overlaps(self, other: "Lifetime") -> bool:
        return not self.moments().isdisjoint(other.moments())


class Layouts:
    """The compiled functions."""

    def __init__(self, learn):
        self.ffi, self.lib = learn

    def lay_out(self, lifetimes, obstacles, limit) -> tuple[list[int | None], int]:
        """The addresses, None for nowhere, and the missing bytes."""
        addresses = self.ffi.new("uint64_t[]", len(lifetimes))
        missing = self.lib.layout_of(
            self.ffi.new("lifetime[]", [tuple(of) for of in lifetimes]),
            len(lifetimes),
            self.ffi.new("obstacle[]", obstacles),
            len(obstacles),
            limit,
            addresses,
        )
        nowhere = self.lib.nowhere()
        return [None if at == nowhere else at for at in addresses], missing

    def gap(self, busy, size: int) -> int:
        return self.lib.gap_in(self.ffi.new("obstacle[]", busy), len(busy), size)


@pytest.fixture(scope="session")
def layouts(learn):
    return Layouts(learn)


MOMENTS = st.integers(0, STEP - 1)
LIFETIMES = st.lists(st.builds(Lifetime, MOMENTS, MOMENTS, st.integers(1, 20)), max_size=14)


@st.composite
def obstacles_apart(draw):
    """By address, apart from each other."""
    obstacles, at = [], 0
    for gap, size in draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=4)):
        obstacles.append((at + gap, at + gap + size))
        at += gap + size + 1
    return obstacles


def apart(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[1] <= b[0] or b[1] <= a[0]


def taken(lifetimes, addresses) -> list[tuple[Lifetime, tuple[int, int]]]:
    return [
        (of, (at, at + of.size))
        for of, at in zip(lifetimes, addresses, strict=True)
        if at is not None
    ]


@settings(max_examples=400)
@given(lifetimes=LIFETIMES, obstacles=obstacles_apart(), limit=st.integers(0, 120))
def test_an_address_is_a_gap_below_the_limit_and_what_has_none_fits_nowhere(
    layouts, lifetimes, obstacles, limit
):
    addresses, missing = layouts.lay_out(lifetimes, obstacles, limit)
    blocks = taken(lifetimes, addresses)
    for (a, place), (b, other) in combinations(blocks, 2):
        assert apart(place, other) or not a.overlaps(b)
    for _, place in blocks:
        assert place[1] <= limit
        assert all(apart(place, obstacle) for obstacle in obstacles)
    without = [of for of, at in zip(lifetimes, addresses, strict=True) if at is None]
    for of in without:
        busy = [*obstacles, *(place for other, place in blocks if of.overlaps(other))]
        assert layouts.gap(sorted(busy), of.size) + of.size > limit
    assert missing == sum(of.size for of in without)


@given(
    busy=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8),
    size=st.integers(1, 12),
)
def test_a_gap_is_the_lowest_one(layouts, busy, size):
    """What is busy may overlap, and may be nothing at all."""
    ranges = sorted((begin, begin + length) for begin, length in busy)

    def is_free(at: int) -> bool:
        return all(apart((at, at + size), of) for of in ranges)

    # A range of nothing is a wall as well: what is free is what lies between any two.
    assert layouts.gap(ranges, size) == next(at for at in range(200) if is_free(at))


@pytest.mark.parametrize(
    ("lifetimes", "limit", "missing"),
    [
        # Where the first one is laid lowest, as it comes first, the last one finds no place.
        ([(0, 1, 1), (1, 5, 1), (2, 5, 3)], 4, 0),
        ([(0, 1, 1), (1, 5, 1), (2, 5, 3)], 3, 1),
        # In no order of sizes, lifetimes or their products all find one at once: those that did not
        # go first in the next round.
        ([(6, 7, 4), (0, 4, 1), (0, 1, 4), (2, 7, 1)], 5, 0),
    ],
)
def test_the_least_is_missing_where_first_fit_leaves_more(layouts, lifetimes, limit, missing):
    assert layouts.lay_out([Lifetime(*of) for of in lifetimes], [], limit)[1] == missing
