"""Places for what moves (allocator/pool_move.cpp): a block at an address that the caller names."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_fixtures import few_or_many, held_pool
from native_pool import (
    IN_USE,
    KIB,
    MIB,
    NO_LIMIT,
    Invalid,
    NativePool,
    OutOfMemory,
    WrongState,
    check,
    ffi,
    fill,
    lib,
)
from native_pool import read as contents

CHUNK = 64 * KIB
GRAIN = 256
A, B = 16, 32
NOTHING = (0, [], 0)


def given_at(address):
    """What try_at returns if it gives the block."""
    return (address, [], 0)


def base_of(pool):
    return pool.snapshot()[0].address


def address_order(pool):
    return [(block.address, block.size_bytes, block.state) for block in pool.snapshot()]


def test_an_address_that_no_block_can_have_gives_nothing(pool, chunk):
    base = base_of(pool)
    before = address_order(pool)
    for offset in (1, 64, 128, GRAIN - 1, chunk + 64):
        assert pool.try_at(chunk, base + offset) == NOTHING, "off the grain"
    for address in (0, GRAIN, base - GRAIN, base - chunk, 2**64 - GRAIN, 2**64 - 1):
        assert pool.try_at(chunk, address) == NOTHING, "outside of the pool"
    for size in (8 * chunk + 1, 9 * chunk, 1 << 62, NO_LIMIT):
        assert pool.try_at(size, base) == NOTHING, "more than the budget"
    assert address_order(pool) == before


def test_those_in_the_way_are_counted_and_named_up_to_the_capacity(make_pool, chunk):
    with make_pool(16) as pool:
        blocks = [pool.allocate(2 * chunk) for _ in range(6)]
        for block in blocks[1::2]:
            pool.free(block)
        at, out, count = ffi.cast("void *", blocks[0]), ffi.new("void **"), ffi.new("uint64_t *")
        for capacity in range(5):
            named = ffi.new("void *[]", 4)
            given = named if capacity else ffi.NULL
            check(lib.dtr_pool_try_at(pool.handle, 12 * chunk, 0, at, given, capacity, count, out))
            assert (count[0], out[0]) == (3, ffi.NULL)
            found = [int(ffi.cast("uintptr_t", one)) for one in named]
            assert found == [*blocks[::2][:capacity], *[0] * 4][:4]


def test_small_requests_have_none(pool, has_slabs, chunk):
    base = base_of(pool)
    assert pool.try_outside(1) == pool.try_outside(100) == 0
    assert pool.try_at(1, base) == NOTHING
    assert pool.try_at(2048, base) == NOTHING
    assert pool.try_at(2049, base) == given_at(base)
    small = pool.allocate(100)
    assert pool.try_at(chunk, small) == NOTHING, "where the slabs are"


@pytest.mark.parametrize("driver", ["counted", "guarded"])
def test_pools_without_addresses_have_none(driver):
    with NativePool(driver, budget=16 * MIB) as pool:
        block = pool.allocate(MIB)
        assert pool.try_outside(MIB) == 0
        for address in (0, 4096, block, block + 2 * MIB):
            assert pool.try_at(MIB, address) == NOTHING
        pool.free(block)
        assert pool.try_at(MIB, block) == NOTHING


def test_the_reservations_end_is_the_last_that_there_is(maps_chunks, driver, chunk):
    # An eighth of the addresses is for slabs.
    with NativePool(driver, budget=8 * chunk, chunk=chunk, reserve=32 * chunk) as pool:
        base = base_of(pool)

        def is_given(n):
            place = pool.try_at(chunk, base + n * chunk)[0]
            pool.free(place)
            return place == base + n * chunk

        given = [n for n in range(32) if pool.try_at(chunk, base + n * chunk)[0]]
        for n in given:
            pool.free(base + n * chunk)
        assert given == list(range(8)), "the budget is used up"
        assert max(n for n in range(32) if is_given(n)) == 27
        assert pool.try_at(2 * chunk, base + 27 * chunk) == NOTHING


class TestOnStreams:
    """On the stand-in for libcuda, which sees where work of two streams meets."""

    chunk = 2 * MIB

    @pytest.fixture
    def pool(self, fake_cuda):
        for pool in held_pool(fake_cuda):
            for stream in (A, B):
                pool.free(pool.allocate(100, stream))
            yield pool

    def test_what_another_one_freed_only_once_its_work_is_done(self, pool, fake_cuda):
        block = pool.allocate(4 * self.chunk, A)
        fake_cuda.launch(A, block, 4 * self.chunk)
        pool.free(block)
        waits = fake_cuda.waits()
        assert pool.try_at(2 * self.chunk, block, B) == NOTHING
        assert (fake_cuda.waits(), pool.stats().host_waits) == (waits, 0)
        fake_cuda.finish(A)
        assert pool.try_at(2 * self.chunk, block, B) == given_at(block)
        fake_cuda.launch(B, block, 2 * self.chunk)

    def test_memory_moves_while_work_runs_on_it_and_nobody_waits(self, fake_cuda):
        """The addresses that it left give nothing before that work is done."""
        fake_cuda.hold(1)
        with NativePool("cuda", budget=8 * self.chunk) as pool:
            blocks = [pool.allocate(self.chunk, A) for _ in range(8)]
            for block in blocks:
                fake_cuda.launch(A, block, self.chunk)
            for block in blocks[::2]:
                pool.free(block)
            at = blocks[0] + 20 * self.chunk
            assert pool.try_at(2 * self.chunk, at, A) == given_at(at)
            fake_cuda.launch(A, at, 2 * self.chunk)
            left = [n for n in (0, 2, 4, 6) if not self.has_memory_at(pool, blocks[n])]
            assert len(left) == 2
            pool.verify()
            assert pool.try_at(self.chunk, blocks[left[0]], A) == NOTHING
            assert (pool.stats().remaps, pool.stats().host_waits) == (1, 0)
            assert fake_cuda.unfinished(A) >= 9
            assert fake_cuda.physical_bytes() == 8 * self.chunk
            fake_cuda.finish(A)
            assert pool.try_at(self.chunk, blocks[left[0]], A) == given_at(blocks[left[0]])
            fake_cuda.launch(A, blocks[left[0]], self.chunk)
            fake_cuda.hold(0)

    @staticmethod
    def has_memory_at(pool, address) -> bool:
        """Addresses that are absent are no part of a snapshot."""
        blocks = pool.snapshot()
        return any(block.address <= address < block.address + block.size_bytes for block in blocks)


OFFSETS = st.tuples(st.integers(0, 12 * 8), st.sampled_from([0, 0, -GRAIN, GRAIN])).filter(
    lambda offset: offset >= (0, 0)
)
"""In eighths of a chunk, and beside them."""
LENGTHS = st.tuples(st.integers(1, 5 * 8), st.sampled_from([0, 0, 1, -1, -GRAIN]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), LENGTHS, st.none()),
        st.tuples(st.just("free"), st.integers(0, 20), st.none()),
        st.tuples(st.just("set_budget"), st.integers(4, 12), st.none()),
        st.tuples(st.just("try_outside"), LENGTHS, st.tuples(OFFSETS, OFFSETS, st.integers(0, 1))),
        st.tuples(st.just("try_at"), LENGTHS, OFFSETS),
        st.tuples(st.just("try_at"), LENGTHS, OFFSETS),
    ),
    max_size=40,
)


def place_of(offset: tuple[int, int], base: int) -> int:
    return base + offset[0] * CHUNK // 8 + offset[1]


def chunks_of(blocks: dict[int, int], base: int) -> set[int]:
    return {
        number
        for address, size in blocks.items()
        for number in range((address - base) // CHUNK, (address - base + size - 1) // CHUNK + 1)
    }


@pytest.mark.parametrize("kind", ["host", "simulated", "host-fixed", "simulated-fixed"])
@few_or_many(60, 400)
def test_a_block_is_given_exactly_where_nothing_is_in_the_way_and_memory_remains(kind, examples):
    """Of a pool of 8 chunks whose requests are all large: it begins where it was asked for, others
    stay where and what they are, and it is given if and only if the chunks under it and under all
    others are no more than the budget's, or in a fixed pool lie below its end. A place outside of
    a range is outside, and in a fixed pool it is given where there is one. All of this under each
    placement policy that rounds no request."""

    @settings(max_examples=examples)
    @given(steps=STEPS, placement=st.integers(0, 2))
    def run(steps, placement):
        budget = 8
        has_memory, is_fixed = kind.startswith("host"), "fixed" in kind
        options = {"chunk": CHUNK, "placement": placement}
        with NativePool(kind, budget=budget * CHUNK, **options) as pool:
            base = base_of(pool)
            live: dict[int, int] = {}
            values: dict[int, int] = {}

            def took(address, size):
                assert all(
                    address + size <= other or other + length <= address
                    for other, length in live.items()
                )
                live[address], values[address] = size, len(values) % 250 + 1
                if has_memory:
                    fill(address, size, values[address])

            for step, number, offset in steps:
                size = 0 if isinstance(number, int) else number[0] * CHUNK // 8 + number[1]
                whole = -(-size // GRAIN) * GRAIN
                if step == "free" and live:
                    address = sorted(live)[number % len(live)]
                    pool.free(address)
                    del live[address]
                elif step == "set_budget":
                    used = chunks_of(live, base)
                    needed = max(used, default=-1) + 1 if is_fixed else len(used)
                    if needed <= number:
                        pool.set_budget(number * CHUNK)
                        budget = number
                    else:
                        with pytest.raises(OutOfMemory):
                            pool.set_budget(number * CHUNK)
                elif step == "allocate":
                    out = ffi.new("void **")
                    check(lib.dtr_pool_try_allocate(pool.handle, size, 0, out))
                    if out[0]:
                        took(int(ffi.cast("uintptr_t", out[0])), whole)
                elif step == "try_at":
                    at = place_of(offset, base)
                    end = at - base + whole if is_fixed else whole
                    is_inside = end <= budget * CHUNK
                    in_the_way = [
                        other
                        for other, length in sorted(live.items())
                        if is_inside and at < other + length and other < at + whole
                    ]
                    place, named, count = pool.try_at(size, at)
                    assert (named, count) == (in_the_way, len(in_the_way))
                    fits = len(chunks_of({**live, at: whole}, base)) <= budget
                    assert place == (at if is_inside and not in_the_way and fits else 0)
                    if place:
                        took(place, whole)
                elif step == "try_outside":
                    begin, end = sorted(place_of(each, base) + offset[2] for each in offset[:2])
                    place = pool.try_outside(size, begin, end)
                    if place:
                        assert place + whole <= begin or place >= end
                        took(place, whole)
                    elif is_fixed:
                        walls = [(begin, -(-end // GRAIN) * GRAIN)]
                        walls += [(other, other + length) for other, length in live.items()]
                        at, top = base, base + budget * CHUNK
                        for wall, behind in [*sorted(walls), (top, 0)]:
                            assert min(wall, top) - at < whole, "there was a place"
                            at = max(at, behind)
                pool.verify()
                stats = pool.stats()
                assert stats.reserved_bytes <= budget * CHUNK
                assert (stats.live_blocks, stats.allocated_bytes) == (len(live), sum(live.values()))
                blocks = pool.snapshot()
                assert sum(block.size_bytes for block in blocks) <= budget * CHUNK
                assert {b.address: b.size_bytes for b in blocks if b.state == IN_USE} == live
            if has_memory:
                for address, size in live.items():
                    assert contents(address, size) == {values[address]}

    run()


# ---- A place outside of a range, and copies between blocks ----


def test_room_is_not_asked_for_and_nothing_changes(make_pool, chunk):
    with make_pool(4, reserve=0) as pool:
        asked = []
        pool.set_room(lambda size, stream: asked.append(size))
        blocks = [pool.allocate(chunk) for _ in range(4)]
        pool.free(blocks[1])
        before = address_order(pool)
        assert pool.try_outside(2 * chunk) == 0
        assert pool.try_outside(chunk, blocks[1], blocks[1] + chunk) == 0
        assert pool.try_at(chunk, blocks[0]) == (0, blocks[:1], 1)
        assert pool.try_at(4 * chunk, blocks[0]) == (0, [blocks[0], *blocks[2:]], 3)
        assert address_order(pool) == before
        assert asked == []
        pool.set_room(None)


def test_a_packed_place_costs_no_chunk():
    """It lies at either end of a hole, in chunks that other blocks touch."""
    with NativePool("simulated", budget=8 * CHUNK, chunk=CHUNK) as pool:
        assert pool.try_outside(CHUNK // 2, packed=True) == 0, "nothing is touched yet"
        low = pool.allocate(CHUNK + CHUNK // 2)
        middle = pool.allocate(2 * CHUNK)
        high = pool.allocate(CHUNK // 2)
        pool.free(middle)
        before = pool.stats().reserved_bytes
        places = [pool.try_outside(CHUNK // 2, packed=True) for _ in range(3)]
        # Behind the first block, before the last one, and none in the chunk between them.
        assert places == [low + CHUNK + CHUNK // 2, high - CHUNK // 2, 0]
        pool.free(places[1])
        assert pool.try_outside(CHUNK // 2, places[1], high, packed=True) == 0
        assert pool.stats().reserved_bytes == before
        pool.verify()


def test_a_copy_has_the_bytes(pool, chunk):
    source, to = pool.allocate(chunk), pool.allocate(chunk)
    if pool.has_memory:
        fill(source, chunk, 7)
        fill(to, chunk, 1)
    pool.copy(to, source, chunk)
    pool.synchronize(0)
    if pool.has_memory:
        assert contents(to, chunk) == {7}
    with pytest.raises(Invalid, match="copy: address"):
        pool.copy(to, 4096, chunk)


def test_a_copy_of_what_another_stream_uses_comes_behind_it_and_is_timed(fake_cuda):
    with NativePool("cuda", budget=16 * MIB) as pool:
        for stream in (A, B):
            pool.free(pool.allocate(MIB, stream))
        source, to = pool.allocate(2 * MIB, A), pool.allocate(2 * MIB, A)
        fake_cuda.hold(1)
        fake_cuda.launch(B, source, 2 * MIB)
        pool.record_stream(source, B)
        timer = pool.copy(to, source, 2 * MIB, A)
        assert timer != 0
        assert pool.times() == {}
        fake_cuda.hold(0)
        assert list(pool.times()) == [timer]
        assert pool.stats().host_waits == 0


def test_on_a_captured_stream_nothing_is_copied(fake_cuda):
    with NativePool("cuda", budget=16 * MIB) as pool:
        pool.free(pool.allocate(MIB, B))
        source, to = pool.allocate(2 * MIB, A), pool.allocate(2 * MIB, A)
        fake_cuda.capture(A, 1)
        with pytest.raises(WrongState, match="captured"):
            pool.copy(to, source, 2 * MIB, A)
        fake_cuda.capture(A, 0)


def openings(pool, capacity=32):
    """What became free since the last call; None: more than there is room for."""
    found, count = ffi.new("dtr_opening[]", capacity), ffi.new("uint64_t *")
    check(lib.dtr_pool_take_openings(pool.handle, found, capacity, count))
    if count[0] > capacity:
        return None
    return [(hole.begin, hole.end) for hole in found[0 : count[0]]]


def test_free_bytes_grow_only_beside_what_is_said_to_be_open(make_pool, chunk):
    random = Random(0)
    sizes = [chunk // 4, chunk // 2, chunk, 2 * chunk]
    blocks, free = [], {}
    with make_pool(32) as pool:
        assert openings(pool) is None
        for _ in range(300):
            for _ in range(random.randrange(1, 6)):
                if len(blocks) < 12:
                    blocks.append(pool.allocate(random.choice(sizes)))
                else:
                    address = blocks.pop(random.randrange(len(blocks)))
                    free.pop(address, None)
                    pool.free(address)
            found = openings(pool)
            for block in blocks:
                beside = lib.dtr_pool_free_beside(pool.handle, ffi.cast("void *", block))
                end = block + pool.block_bytes(block)
                is_near = any(begin <= end and block <= last for begin, last in found)
                assert is_near or beside <= free.get(block, beside)
                free[block] = beside


def test_more_openings_than_there_is_room_for_are_not_told(pool, chunk):
    openings(pool)
    for block in [pool.allocate(chunk) for _ in range(4)]:
        pool.free(block)
    assert openings(pool, 3) is None
    assert openings(pool, 3) == []
