"""Addresses for blocks whose lifetimes are known (native/learn/layout.h). Needs a C++ compiler.

Times, sizes and addresses are small numbers: the code does not look at the grain.
"""

from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_fixtures import ROOT, load_cpp

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

    def __init__(self, sources, library):
        declarations = """
            typedef struct { uint64_t begin, end, size_bytes; } lifetime;
            typedef struct { uint64_t begin, end; } obstacle;
            uint64_t layout_of(const lifetime *, uint64_t, const obstacle *, uint64_t,
                               uint64_t limit, uint64_t *addresses);
            uint64_t gap_in(const obstacle *busy, uint64_t count, uint64_t size_bytes);
            uint64_t nowhere(void);
        """
        self.ffi, self.lib = load_cpp(sources, library, declarations)

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
def layouts(tmp_path_factory):
    path = tmp_path_factory.mktemp("layout") / "liblayout.so"
    sources = [ROOT / "tests/native/layout.cpp", ROOT / "native/learn/layout.cpp"]
    return Layouts(sources, path)


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
def test_every_address_is_a_gap_below_the_limit(layouts, lifetimes, obstacles, limit):
    addresses, missing = layouts.lay_out(lifetimes, obstacles, limit)
    blocks = taken(lifetimes, addresses)
    for (a, place), (b, other) in combinations(blocks, 2):
        assert apart(place, other) or not a.overlaps(b)
    for _, place in blocks:
        assert place[1] <= limit
        assert all(apart(place, obstacle) for obstacle in obstacles)
    without = [of for of, at in zip(lifetimes, addresses, strict=True) if at is None]
    assert missing == sum(of.size for of in without)


@given(lifetimes=LIFETIMES, obstacles=obstacles_apart(), limit=st.integers(0, 120))
def test_what_has_no_address_fits_nowhere_beside_the_others(layouts, lifetimes, obstacles, limit):
    addresses, _ = layouts.lay_out(lifetimes, obstacles, limit)
    blocks = taken(lifetimes, addresses)
    for of, at in zip(lifetimes, addresses, strict=True):
        if at is None:
            busy = [*obstacles, *(place for other, place in blocks if of.overlaps(other))]
            assert layouts.gap(sorted(busy), of.size) + of.size > limit


@given(lifetimes=LIFETIMES, obstacles=obstacles_apart())
def test_above_the_obstacles_there_is_room_for_the_sum_of_all_sizes(layouts, lifetimes, obstacles):
    limit = sum(of.size for of in lifetimes) + max((end for _, end in obstacles), default=0)
    addresses, missing = layouts.lay_out(lifetimes, obstacles, limit)
    assert None not in addresses
    assert missing == 0


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


class TestKnownOnes:
    def first_fit(self, layouts, order, limit) -> int:
        """The bytes that find no place in this order, each at the lowest."""
        placed: list[tuple[Lifetime, tuple[int, int]]] = []
        missing = 0
        for of in order:
            busy = sorted(place for other, place in placed if of.overlaps(other))
            at = layouts.gap(busy, of.size)
            if at + of.size > limit:
                missing += of.size
            else:
                placed.append((of, (at, at + of.size)))
        return missing

    def test_what_first_fit_cuts_into_pieces_is_laid_out_without_a_hole(self, layouts):
        """The short one below leaves a hole that the large one does not fit in; at each moment from
        2 on all 4 are in use, so that no layout needs less."""
        lifetimes = [Lifetime(0, 1, 1), Lifetime(1, 5, 1), Lifetime(2, 5, 3)]
        assert self.first_fit(layouts, lifetimes, 4) == 3, "in the order of their allocation"
        addresses, missing = layouts.lay_out(lifetimes, [], 4)
        assert missing == 0
        assert addresses == [0, 3, 0]
        assert layouts.lay_out(lifetimes, [], 3)[1] == 1, "the least that can be missing"

    def test_those_that_found_no_place_go_first_in_the_next_round(self, layouts):
        """No order of sizes, lifetimes or their products finds it at once."""
        lifetimes = [Lifetime(6, 7, 4), Lifetime(0, 4, 1), Lifetime(0, 1, 4), Lifetime(2, 7, 1)]

        def length(of: Lifetime) -> int:
            return of.end - of.begin + 1

        orders = (lambda of: of.size, lambda of: of.size * length(of), length)
        for weight in orders:
            order = sorted(lifetimes, key=weight, reverse=True)
            assert self.first_fit(layouts, order, 5) > 0
        assert layouts.lay_out(lifetimes, [], 5)[1] == 0
