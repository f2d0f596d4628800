"""Placement policies: where a block must land. Needs the native build and g++."""

import re

import pytest
from native_fixtures import ROOT, cpp_program
from native_pool import KIB, Invalid, NativePool

POLICIES = {"best-fit": 0, "first-fit": 1, "two-ended": 2, "size-classes": 3}
NONE, EXPENSIVE, CHEAP = 0, 1, 2


def test_every_block_of_a_random_heap_lands_where_its_policy_says(core_object, tmp_path):
    sources = ("tests/allocator/place_blocks.cpp", core_object)
    found = cpp_program(tmp_path, *sources, flags=["-ldl", "-lpthread"])(4000)
    compared = {line.split()[0]: int(line.split()[1]) for line in found.splitlines()}
    assert set(compared) == set(POLICIES)
    assert min(compared.values()) > 1000


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_works_under_every_policy(policy, make_pool):
    with make_pool(chunks=16, placement=POLICIES[policy]) as pool:
        live = []
        for step in range(200):
            size = (step * 7919) % (2 * pool.chunk) + 1
            if step % 3 == 2 or len(live) > 5:
                pool.free(live.pop(step % len(live)))
            live.append(pool.allocate_hinted(size, step % 3, stream=step % 2 * 16))
            pool.verify()
            while len(live) > 4:
                pool.free(live.pop(0))
        for address in live:
            pool.free(address)


def test_two_ends_of_a_hole_are_for_the_expensive_and_the_cheap():
    with NativePool("simulated-fixed", budget=1024 * KIB, placement=2) as pool:
        low = pool.allocate_hinted(10 * KIB, EXPENSIVE)
        high = pool.allocate_hinted(10 * KIB, CHEAP)
        assert high + 10 * KIB - low == 1024 * KIB
        assert pool.allocate_hinted(10 * KIB, NONE) == low + 10 * KIB
        assert pool.allocate_hinted(10 * KIB, CHEAP) == high - 10 * KIB


def test_other_policies_do_not_use_a_hint():
    for policy in (0, 1, 3):
        with NativePool("simulated-fixed", budget=1024 * KIB, placement=policy) as pool:
            low = pool.allocate_hinted(10 * KIB, EXPENSIVE)
            high = pool.allocate_hinted(10 * KIB, CHEAP)
            assert high == low + 10 * KIB


def test_size_classes_share_slabs_below_an_eighth_of_a_chunk():
    with NativePool("simulated", budget=4096 * KIB, chunk=512 * KIB, placement=3) as pool:
        first = pool.allocate(33 * KIB)
        pool.allocate(300 * KIB)
        assert pool.allocate(35 * KIB) == first + 36 * KIB  # both are of the class of 36 KiB
        assert pool.block_bytes(first) == 36 * KIB
        small = {block.address for block in pool.snapshot() if block.is_small}
        assert first in small


def test_a_class_above_the_budget_does_not_refuse_what_fits():
    with NativePool("simulated-fixed", budget=1024 * KIB, placement=3) as pool:
        assert pool.block_bytes(pool.allocate(1000 * KIB)) == 1024 * KIB
    with NativePool("simulated-fixed", budget=1088 * KIB, placement=3) as pool:
        assert pool.block_bytes(pool.allocate(1080 * KIB)) == 1080 * KIB


def test_what_is_no_policy_or_hint_is_refused():
    with pytest.raises(Invalid, match="placement is 4; allowed: 0"):
        NativePool("simulated", placement=4)
    with NativePool("simulated") as pool, pytest.raises(Invalid, match="hint is 4; allowed: 0"):
        pool.allocate_hinted(1, 4)


# ---- The checker itself: a rule that is broken by hand is named. Needs g++ ----


@pytest.fixture(scope="module")
def verdicts(core_object, tmp_path_factory):
    """What the checker says of each corruption: (broken rule, message)."""
    sources = ("tests/allocator/corrupt_heap.cpp", core_object)
    folder = tmp_path_factory.mktemp("corrupt")
    output = cpp_program(folder, *sources, flags=["-ldl", "-lpthread"])()
    return [line.split(" ", 1) for line in output.splitlines()]


def test_every_corruption_is_found_and_named(verdicts):
    assert len(verdicts) == 19
    for rule, message in verdicts:
        assert message.startswith(f"{rule}: "), f"{rule} was broken, the checker says: {message!r}"


def test_every_rule_is_broken_once(verdicts):
    headers = ("heap.h", "chunks.h", "slab.h", "pool.h")
    text = "".join((ROOT / "allocator" / header).read_text() for header in headers)
    rules = set(re.findall(r"^//   ([HCLP]\d)  ", text, re.MULTILINE))
    assert len(rules) >= 15
    assert rules == {rule for rule, _ in verdicts}
