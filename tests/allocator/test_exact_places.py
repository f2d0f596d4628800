"""A block at an address that the caller names (dtr_pool_try_at; allocator/pool_move.cpp)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_fixtures import few_or_many
from native_pool import FREE, IN_USE, KIB, MIB, NO_LIMIT, PENDING, NativePool, check, ffi, fill, lib
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


class TestInAFreeHole:
    """Of each driver's pools, mapped and fixed."""

    def test_the_block_begins_where_it_was_asked_for_and_counts(self, pool, chunk):
        base = base_of(pool)
        at = base + 3 * chunk + 5 * GRAIN
        assert pool.try_at(2 * chunk - 100, at) == given_at(at)
        assert pool.block_start(at + chunk) == at
        assert pool.block_bytes(at) == 2 * chunk
        stats = pool.stats()
        assert (stats.live_blocks, stats.allocations) == (1, 1)
        assert (stats.allocated_bytes, stats.requested_bytes) == (2 * chunk, 2 * chunk - 100)
        assert [block.state for block in pool.snapshot()] == [FREE, IN_USE, FREE]
        if pool.has_memory:
            fill(at, 2 * chunk - 100, 9)
            assert contents(at, 2 * chunk - 100) == {9}

    def test_a_block_that_was_given_is_freed_copied_and_moved_as_any(self, pool, chunk):
        at = base_of(pool) + 4 * chunk
        source = pool.allocate(chunk)
        assert pool.try_at(chunk, at) == given_at(at)
        if pool.has_memory:
            fill(source, chunk, 4)
        pool.copy(at, source, chunk)
        pool.synchronize(0)
        if pool.has_memory:
            assert contents(at, chunk) == {4}
        other = pool.allocate(chunk)
        assert abs(other - at) >= chunk

    def test_an_address_that_no_block_can_have_gives_nothing(self, pool, chunk):
        base = base_of(pool)
        before = address_order(pool)
        for offset in (1, 64, 128, GRAIN - 1, chunk + 64):
            assert pool.try_at(chunk, base + offset) == NOTHING, "off the grain"
        for address in (0, GRAIN, base - GRAIN, base - chunk, 2**64 - GRAIN, 2**64 - 1):
            assert pool.try_at(chunk, address) == NOTHING, "outside of the pool"
        for size in (8 * chunk + 1, 9 * chunk, 1 << 62, NO_LIMIT):
            assert pool.try_at(size, base) == NOTHING, "more than the budget"
        assert address_order(pool) == before

    def test_room_is_not_asked_for(self, pool, chunk):
        asked = []
        pool.set_room(lambda size, stream: asked.append(size))
        block = pool.allocate(chunk)
        assert pool.try_at(chunk, block) == (0, [block], 1)
        assert pool.try_at(8 * chunk, block) == (0, [block], 1)
        assert asked == []
        pool.set_room(None)


class TestInTheWay:
    @pytest.fixture
    def pool(self, make_pool):
        with make_pool(16) as pool:
            yield pool

    @pytest.fixture
    def blocks(self, pool, chunk):
        """Six of two chunks each, of which every other one is free."""
        blocks = [pool.allocate(2 * chunk) for _ in range(6)]
        assert blocks == sorted(blocks)
        for block in blocks[1::2]:
            pool.free(block)
        return blocks

    def test_one_that_is_touched_at_its_edge_counts(self, pool, blocks, chunk):
        assert pool.try_at(chunk, blocks[1] - GRAIN) == (0, [blocks[0]], 1)
        assert pool.try_at(2 * chunk + 1, blocks[1]) == (0, [blocks[2]], 1)
        both = (0, [blocks[0], blocks[2]], 2)
        assert pool.try_at(2 * chunk + 2 * GRAIN, blocks[1] - GRAIN) == both

    @pytest.mark.parametrize("capacity", [0, 1, 2, 3, 4])
    def test_how_many_there_are_is_said_with_any_capacity(self, pool, blocks, chunk, capacity):
        named = blocks[::2][:capacity]
        assert pool.try_at(12 * chunk, blocks[0], capacity=capacity) == (0, named, 3)

    def test_nothing_is_written_beyond_the_capacity(self, pool, blocks, chunk):
        in_the_way, count = ffi.new("void *[]", 3), ffi.new("uint64_t *")
        at, out = ffi.cast("void *", blocks[0]), ffi.new("void **")
        check(lib.dtr_pool_try_at(pool.handle, 12 * chunk, 0, at, in_the_way, 2, count, out))
        assert [int(ffi.cast("uintptr_t", one)) for one in in_the_way] == [blocks[0], blocks[2], 0]
        check(lib.dtr_pool_try_at(pool.handle, 12 * chunk, 0, at, ffi.NULL, 0, count, out))
        assert (count[0], out[0]) == (3, ffi.NULL)


def test_small_requests_have_none(pool, has_slabs, chunk):
    base = base_of(pool)
    assert pool.try_at(1, base) == NOTHING
    assert pool.try_at(2048, base) == NOTHING
    assert pool.try_at(2049, base) == given_at(base)
    small = pool.allocate(100)
    assert pool.try_at(chunk, small) == NOTHING, "where the slabs are"


@pytest.mark.parametrize("driver", ["counted", "guarded"])
def test_pools_without_addresses_have_none(driver):
    with NativePool(driver, budget=16 * MIB) as pool:
        block = pool.allocate(MIB)
        for address in (0, 4096, block, block + 2 * MIB):
            assert pool.try_at(MIB, address) == NOTHING
        pool.free(block)
        assert pool.try_at(MIB, block) == NOTHING


class TestOfAFixedPool:
    """All requests are blocks, and there are no addresses above the budget's."""

    @pytest.fixture
    def pool(self):
        with NativePool("host-fixed", budget=8 * CHUNK, chunk=CHUNK) as pool:
            yield pool

    def test_a_small_one_is_a_block_of_a_grain(self, pool):
        at = base_of(pool) + 3 * GRAIN
        assert pool.try_at(1, at) == given_at(at)
        assert pool.block_bytes(at) == GRAIN
        assert pool.try_at(1, at - GRAIN) == given_at(at - GRAIN)
        assert pool.try_at(1, at) == (0, [at], 1)

    def test_above_the_budget_there_is_nothing(self, pool):
        base = base_of(pool)
        for at in (base + 8 * CHUNK, base + 7 * CHUNK + GRAIN, base + 100 * CHUNK):
            assert pool.try_at(CHUNK, at) == NOTHING
        pool.set_budget(12 * CHUNK)
        assert pool.try_at(5 * CHUNK, base + 7 * CHUNK) == given_at(base + 7 * CHUNK)
        assert pool.stats().reserved_bytes == 5 * CHUNK


class TestWhereChunksAreAbsent:
    """Above the addresses that the budget allots, of mapped pools of 8 chunks."""

    @pytest.fixture
    def pool(self, make_pool, maps_chunks):
        with make_pool(8) as pool:
            self.base = base_of(pool)
            yield pool

    def holds(self, pool, chunk):
        """The budget, and what try_at must not have changed."""
        pool.verify()
        assert pool.stats().reserved_bytes <= 8 * chunk
        have = sum(block.size_bytes for block in pool.snapshot())
        assert have <= 8 * chunk, "no more addresses have memory than the budget allots"

    def test_it_is_the_budgets_share_and_not_more(self, pool, chunk):
        pool.set_budget(12 * chunk)
        at = self.base + 30 * chunk
        assert pool.try_at(12 * chunk, at) == given_at(at)
        assert pool.try_at(chunk, self.base) == NOTHING
        pool.free(at)
        pool.set_budget(4 * chunk)
        assert pool.try_at(4 * chunk + 1, at) == NOTHING
        assert pool.try_at(4 * chunk, at) == given_at(at)
        self.holds(pool, chunk)

    def test_the_reservations_end_is_the_last_that_there_is(self, maps_chunks, driver, chunk):
        # An eighth of the addresses is for slabs.
        with NativePool(driver, budget=8 * chunk, chunk=chunk, reserve=32 * chunk) as pool:
            base = base_of(pool)
            given = [n for n in range(32) if pool.try_at(chunk, base + n * chunk)[0]]
            for n in given:
                pool.free(base + n * chunk)
            assert given == list(range(8)), "the budget is used up"
            last = max(n for n in range(32) if self.is_given(pool, chunk, base + n * chunk))
            assert last == 27
            assert pool.try_at(2 * chunk, base + last * chunk) == NOTHING

    @staticmethod
    def is_given(pool, chunk, at) -> bool:
        place = pool.try_at(chunk, at)[0]
        pool.free(place)
        return place == at


class TestOnStreams:
    """On the stand-in for libcuda, which sees where work of two streams meets."""

    chunk = 2 * MIB

    @pytest.fixture
    def pool(self, fake_cuda):
        fake_cuda.hold(1)
        with NativePool("cuda", budget=8 * self.chunk) as pool:
            for stream in (A, B):
                pool.free(pool.allocate(100, stream))
            self.base = base_of(pool)
            yield pool
            fake_cuda.hold(0)

    def test_what_the_stream_itself_freed_serves_it_at_once(self, pool, fake_cuda):
        block = pool.allocate(4 * self.chunk, A)
        fake_cuda.launch(A, block, 4 * self.chunk)
        pool.free(block)
        at = block + self.chunk
        assert pool.try_at(2 * self.chunk, at, A) == given_at(at)
        fake_cuda.launch(A, at, 2 * self.chunk)
        assert fake_cuda.unfinished(A) >= 2
        assert pool.stats().host_waits == 0

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

    def test_a_pending_block_is_not_in_use(self, pool, fake_cuda):
        block = pool.allocate(2 * self.chunk, A)
        fake_cuda.launch(B, block, self.chunk)
        pool.record_stream(block, B)
        pool.free(block)
        assert {b.address: b.state for b in pool.snapshot()}[block] == PENDING
        assert pool.try_at(self.chunk, block, A) == NOTHING
        fake_cuda.finish(B)
        fake_cuda.finish(A)
        assert pool.try_at(self.chunk, block, A) == given_at(block)

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

    def test_a_driver_without_memory_gives_nothing(self, fake_cuda):
        fake_cuda.set_memory(4 * self.chunk)
        with NativePool("cuda", budget=8 * self.chunk) as pool:
            base = base_of(pool)
            assert pool.try_at(6 * self.chunk, base) == NOTHING
            pool.verify()
            assert pool.try_at(6 * self.chunk, base + 20 * self.chunk) == NOTHING
            pool.verify()
            assert pool.stats().live_blocks == 0
            assert pool.try_at(2 * self.chunk, base) == given_at(base)


OFFSETS = st.integers(0, 12 * 8)  # eighths of a chunk
LENGTHS = st.integers(1, 5 * 8)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), LENGTHS, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("try_at"), LENGTHS, OFFSETS),
        st.tuples(st.just("try_at"), LENGTHS, OFFSETS),
    ),
    max_size=40,
)


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
    others are no more than the budget's, or in a fixed pool lie below its end."""

    @settings(max_examples=examples)
    @given(steps=STEPS)
    def run(steps):
        eighth, budget = CHUNK // 8, 8
        has_memory = kind.startswith("host")
        with NativePool(kind, budget=budget * CHUNK, chunk=CHUNK) as pool:
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
                if step == "free" and live:
                    address = sorted(live)[number % len(live)]
                    pool.free(address)
                    del live[address]
                elif step == "allocate":
                    out = ffi.new("void **")
                    check(lib.dtr_pool_try_allocate(pool.handle, number * eighth, 0, out))
                    if out[0]:
                        took(int(ffi.cast("uintptr_t", out[0])), number * eighth)
                elif step == "try_at":
                    at, size = base + offset * eighth, number * eighth
                    is_inside = "fixed" not in kind or at + size <= base + budget * CHUNK
                    in_the_way = [
                        other
                        for other, length in sorted(live.items())
                        if at < other + length and other < at + size
                    ]
                    place, named, count = pool.try_at(size, at)
                    if not is_inside:
                        in_the_way = []
                    assert (named, count) == (in_the_way, len(in_the_way))
                    fits = len(chunks_of({**live, at: size}, base)) <= budget
                    assert place == (at if is_inside and not in_the_way and fits else 0)
                    if place:
                        took(place, size)
                pool.verify()
                stats = pool.stats()
                assert stats.reserved_bytes <= budget * CHUNK
                assert (stats.live_blocks, stats.allocated_bytes) == (len(live), sum(live.values()))
            in_use = {b.address: b.size_bytes for b in pool.snapshot() if b.state == IN_USE}
            assert in_use == live
            if has_memory:
                for address, size in live.items():
                    assert contents(address, size) == {values[address]}

    run()
