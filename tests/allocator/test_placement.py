"""Placement policies: where a block must land. Needs the native build and g++."""

import re
from random import Random

import pytest
from native_fixtures import ROOT, cpp_program
from native_pool import FREE, KIB, MIB, Invalid, NativePool, OutOfMemory

POLICIES = {"best-fit": 0, "first-fit": 1, "two-ended": 2, "size-classes": 3}
NONE, EXPENSIVE, CHEAP = 0, 1, 2
GRAIN = 256


def block_of(policy, size):
    """The bytes that a request takes: whole grains, or one of 8 classes for each power of two."""
    grains = -(-size // GRAIN) * GRAIN
    step = (1 << (grains - 1).bit_length()) // 16 if policy == "size-classes" else GRAIN
    return -(-grains // max(step, GRAIN)) * max(step, GRAIN)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_block_of_a_random_heap_lands_where_its_policy_says(policy):
    """A heap that fills up with many blocks of few sizes, so that holes of one size are many, and
    empties again. Only the two-ended policy uses a hint."""
    random, live, compared = Random(1), [], 0
    with NativePool("simulated-fixed", budget=16 * MIB, placement=POLICIES[policy]) as pool:
        for step in range(2400):
            if live and random.random() < (0.75 if step // 600 % 2 else 0.25):
                pool.free(live.pop(random.randrange(len(live))))
                continue
            size = 512 * random.randrange(5, 13)
            if random.random() < 0.25:
                size = random.randrange(2049, random.choice([100_000, 100_000, 2 * MIB]))
            block, hint = block_of(policy, size), random.choice([NONE, EXPENSIVE, CHEAP])
            holes = [b for b in pool.snapshot() if b.state == FREE and b.size_bytes >= block]
            if not holes:
                with pytest.raises(OutOfMemory):
                    pool.allocate_hinted(size, hint)
                continue
            is_first = policy == "first-fit"
            hole = min(holes, key=lambda hole: (0 if is_first else hole.size_bytes, hole.address))
            is_high = policy == "two-ended" and hint == CHEAP
            live.append(pool.allocate_hinted(size, hint))
            assert live[-1] == hole.address + (hole.size_bytes - block if is_high else 0)
            assert pool.block_bytes(live[-1]) == block
            compared += 1
            if step % 100 == 0:
                pool.verify()
    assert compared > 1000


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
