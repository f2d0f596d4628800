"""Random operations on a pool against a plain model. Needs the native build and g++.

Hypothesis prints a failing run as a list of rule calls; keep it as a named test below.
"""

from contextlib import contextmanager
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run
from native_fixtures import OUT_OF_MEMORY, UNKNOWN, few_or_many
from native_pool import IN_USE, KIB, DriverFailed, Invalid, NativePool, OutOfMemory, fill, read

STREAMS = (0, 16, 32)
SIZES = st.one_of(
    st.integers(1, 2048),
    st.integers(2049, 64 * KIB),
    st.integers(1, 40).map(lambda eighths: eighths / 8),  # chunks
)


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: the blocks in use with their sizes and contents, what arenas keep, the budget."""

    driver = "host"
    chunk = 64 * KIB
    fake = None
    options: ClassVar = {}  # more of the pool's
    hold = 1  # how the stand-in holds work back

    def __init__(self):
        super().__init__()
        if self.fake:
            self.fake.reset()
            self.fake.hold(self.hold)
        self.budget = 16
        self.pool = NativePool(self.driver, budget=self.budget * self.chunk, **self.options)
        self.base = self.pool.snapshot()[0].address
        self.live: dict[int, tuple[int, int, int]] = {}  # address -> size, stream, content
        self.arenas: list[int] = []  # open ones
        self.arena_of: dict[int, int] = {}  # of blocks in use
        self.kept: dict[tuple[int, int], dict[int, int]] = {}  # (arena, stream) -> free blocks
        self.next_content = 0
        self.armed = False  # a driver call is going to fail
        self.gives_room = False

    def victim(self, index: int) -> int:
        return sorted(self.live)[index % len(self.live)]

    def certainly_fits(self, *extra: int, budget: int | None = None) -> bool:
        """Even if every block had its edges alone in their chunks."""
        sizes = [*self.sizes(), *extra]
        return sum(size // self.chunk + 2 for size in sizes) <= (budget or self.budget)

    @contextmanager
    def may_fail(self, may_lack_memory: bool | None = None):
        """Around a call that may meet the prepared failure. Whether memory may be short, too; None:
        the call never says that it is."""
        try:
            yield
        except OutOfMemory:
            if may_lack_memory is None:
                raise
            assert self.armed or may_lack_memory
        except DriverFailed:
            assert self.armed
        else:
            return
        self.disarm()

    def room(self, size, stream):
        if not self.live:
            return False
        address = min(self.live)
        try:
            self.pool.free(address)
        except DriverFailed:
            assert self.armed
            self.armed = False
            return False
        self.forget(address)
        return True

    def forget(self, address: int) -> None:
        """A block was freed; an open arena keeps it."""
        size, stream, _ = self.live.pop(address)
        arena = self.arena_of.pop(address, None)
        if arena in self.arenas:
            self.kept.setdefault((arena, stream), {})[address] = size

    def took(self, address: int, size: int, stream: int, arena: int | None) -> None:
        """The place of a new block is nobody else's."""
        for other, (other_size, _, _) in self.live.items():
            assert address + size <= other or other + other_size <= address
        for home, blocks in self.kept.items():
            for other, other_size in list(blocks.items()):
                if address + size <= other or other + other_size <= address:
                    continue
                assert home == (arena, stream)
                del blocks[other]
                if other < address:
                    blocks[other] = address - other
                if address + size < other + other_size:
                    blocks[address + size] = other + other_size - address - size
        self.next_content = self.next_content % 250 + 1
        fill(address, size, self.next_content)
        self.live[address] = (size, stream, self.next_content)
        if arena is not None:
            self.arena_of[address] = arena
        if self.fake:
            self.fake.launch(stream, address, size)

    @rule(size=SIZES, stream=st.sampled_from(STREAMS))
    def allocate(self, size, stream):
        size = size if isinstance(size, int) else int(size * self.chunk)
        with self.may_fail(may_lack_memory=not self.certainly_fits(size)):
            self.took(self.pool.allocate(size, stream), size, stream, None)

    @rule(size=SIZES, eighths=st.integers(0, 40 * 8), stream=st.sampled_from(STREAMS))
    def allocate_at(self, size, eighths, stream):
        """What is in the way is named, or the block begins where it was asked for."""
        size = size if isinstance(size, int) else int(size * self.chunk)
        at = self.base + eighths * self.chunk // 8
        named, address, count = [], 0, 0
        with self.may_fail():
            address, named, count = self.pool.try_at(size, at, stream, capacity=100)
        in_the_way = [
            other
            for other in sorted(self.live)
            if at < other + self.pool.block_bytes(other) and other < at + size
        ]
        assert named in ([], in_the_way)
        assert count == len(named)
        assert address in (0, at)
        if not address:
            self.disarm()
            return
        assert in_the_way == []
        self.took(address, size, stream, None)

    @precondition(lambda self: len(self.arenas) < 2)
    @rule()
    def open_arena(self):
        with self.may_fail():
            self.arenas.append(self.pool.arena_open())

    @precondition(lambda self: self.arenas)
    @rule(index=st.integers(0, 1), size=SIZES, stream=st.sampled_from(STREAMS))
    def allocate_in_an_arena(self, index, size, stream):
        size = size if isinstance(size, int) else int(size * self.chunk)
        arena = self.arenas[index % len(self.arenas)]
        with self.may_fail(may_lack_memory=True):
            self.took(self.pool.arena_allocate(arena, size, stream), size, stream, arena)

    @precondition(lambda self: self.kept)
    @rule(index=st.integers(0, 1000))
    def allocate_again_in_an_arena(self, index):
        places = [(*home, *block) for home, own in self.kept.items() for block in own.items()]
        if not places:
            return
        arena, stream, address, size = places[index % len(places)]
        try:
            self.pool.arena_allocate_at(arena, address, size, stream)
        except Invalid:
            return  # another stream's work may use it
        self.took(address, size, stream, arena)

    @precondition(lambda self: self.arenas)
    @rule(index=st.integers(0, 1))
    def close_arena(self, index):
        arena = self.arenas.pop(index % len(self.arenas))
        self.pool.arena_close(arena)
        self.kept = {home: blocks for home, blocks in self.kept.items() if home[0] != arena}

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 1000))
    def free(self, index):
        address = self.victim(index)
        size, _, content = self.live[address]
        assert read(address, size) == {content}
        with self.may_fail():
            self.pool.free(address)
            self.forget(address)  # else the block is still ours

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 1000), stream=st.sampled_from(STREAMS))
    def use_on_another_stream(self, index, stream):
        address = self.victim(index)
        with self.may_fail():
            self.pool.record_stream(address, stream)
            if self.fake:
                # The user's own synchronization: the block's work so far is done.
                self.fake.hold(0)
                self.fake.hold(self.hold)
                self.fake.launch(stream, address, self.live[address][0])

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 1000), part=st.floats(0, 1, exclude_max=True))
    def look_up_an_interior_pointer(self, index, part):
        address = self.victim(index)
        assert self.pool.block_start(address + int(part * self.live[address][0])) == address

    @precondition(lambda self: self.fake)
    @rule(stream=st.sampled_from(STREAMS), steps=st.integers(1, 20))
    def complete_some_work(self, stream, steps):
        for _ in range(steps):
            self.fake.step(stream)

    @rule(chunks=st.integers(1, 24))
    def set_budget(self, chunks):
        with self.may_fail(may_lack_memory=not self.certainly_fits(budget=chunks)):
            self.pool.set_budget(chunks * self.chunk)
            self.budget = chunks

    def sizes(self) -> list[int]:
        """Of all memory that cannot be taken elsewhere."""
        kept = [size for blocks in self.kept.values() for size in blocks.values()]
        return [size for size, _, _ in self.live.values()] + kept

    @rule()
    def trim(self):
        with self.may_fail():
            self.pool.trim()

    @precondition(lambda self: self.fake)
    @rule(n=st.integers(1, 12), error=st.sampled_from([UNKNOWN, OUT_OF_MEMORY]))
    def fail_a_driver_call(self, n, error):
        self.fake.fail_call(n, error)
        self.armed = True

    def disarm(self):
        if self.fake:
            self.fake.fail_call(0, 0)
        self.armed = False

    @rule(gives=st.booleans())
    def set_room(self, gives):
        self.pool.set_room(self.room if gives else None)

    @invariant()
    def rules_hold(self):
        self.pool.verify()
        stats = self.pool.stats()
        assert stats.budget_bytes == self.budget * self.chunk
        assert stats.reserved_bytes <= stats.budget_bytes
        assert stats.live_blocks == len(self.live)
        assert stats.requested_bytes == sum(size for size, _, _ in self.live.values())
        if self.fake:
            assert self.fake.violations() == []
            assert self.fake.physical_bytes() >= stats.reserved_bytes

    def teardown(self):
        self.disarm()
        blocks = [block for block in self.pool.snapshot() if block.state == IN_USE]
        assert {block.address for block in blocks} == set(self.live)
        for address in list(self.live):
            self.pool.free(address)
        self.pool.destroy()
        if self.fake:
            assert self.fake.violations() == []
            assert self.fake.leaks() == 0


SETTINGS = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))


ON_CUDA = {"driver": "cuda", "chunk": 2 << 20}
GIVES_BACK = {"keep": 5 << 20, "poison": 1, "placement": 2}
MACHINES = {
    "host": {},
    # With streams, events completing at will, and failing driver calls.
    "cuda": ON_CUDA,
    # Idle memory goes back as soon as it can, and freed blocks are filled: at once, as the model
    # writes at once, too. Blocks are placed from both ends.
    "cuda that gives back": ON_CUDA | {"options": GIVES_BACK, "hold": 2},
}


@few_or_many(50, 400)
@pytest.mark.parametrize("name", MACHINES)
def test_memory_agrees_with_the_model(name, fake_cuda, examples):
    fake = {"fake": fake_cuda} if name != "host" else {}
    machine = type("Machine", (PoolAgainstModel,), {**MACHINES[name], **fake})
    run(machine, settings=settings(SETTINGS, max_examples=examples))


def test_memory_that_was_not_released_is_released_in_its_context(fake_cuda):
    """Found by the model: a refused cuMemRelease was repaired at the end without the context."""
    for n in range(1, 20):
        pool = NativePool("cuda", budget=32 << 20)
        pool.free(pool.allocate(1))
        with fake_cuda.failing(n):
            pool.trim()
        pool.destroy()
        assert fake_cuda.leaks() == 0


def test_slabs_emptied_while_the_budget_is_lowered_give_their_chunks_back(fake_cuda):
    """Found by the model: slabs that became empty at the last moment still waited for events."""
    fake_cuda.hold(1)
    with NativePool("cuda", budget=32 << 20) as pool:
        small = [pool.allocate(1), pool.allocate(513)]
        for address in small:
            pool.record_stream(address, 16)
        pool.set_room(lambda size, stream: bool(small) and (pool.free(small.pop()) is None))
        pool.set_budget(2 << 20)
        assert pool.stats().budget_bytes == 2 << 20
