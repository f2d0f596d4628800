"""Small traces of made-up programs, the same for the same seed: for documents, tests and trying.

They come from an arena of one piece with first fit: enough to fragment, to evict and to fail.
"""

import random
import re

from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.traces.trace import Kind, Trace

BASE = 0x7F0000000000
"""The arena's first address."""
MIB = 1 << 20


class Arena:
    """An arena of ``budget_bytes`` that notes what it does.

    Args:
        budget_bytes: its size; all of it is reserved from the beginning.
        source: for the trace's meta.
        unit: sizes are rounded up to a multiple of it.
    """

    def __init__(self, budget_bytes: int, source: str = "dtr_alloc", unit: int = 512) -> None:
        meta = {"source": source, "time_unit": "ns", "budget_bytes": budget_bytes}
        self.trace = Trace(meta)
        self.unit = unit
        self.now_ns = 0
        self._holes = Ranges()
        self._sizes: dict[int, int] = {}
        self._holes.add(BASE, BASE + budget_bytes)
        self.note(Kind.BUDGET, size=budget_bytes)
        self.note(Kind.SEGMENT_ALLOCATE, BASE, budget_bytes)

    def note(self, kind: Kind, address: int = 0, size: int = 0, name: str = "") -> None:
        """Adds an event at ``now_ns``."""
        names = self.trace.names
        if name not in names:
            names.append(name)
        self.trace.add(
            kind, time_ns=self.now_ns, address=address, size_bytes=size, name=names.index(name)
        )

    def allocate(self, size: int, name: str = "") -> int | None:
        """The address of a block, or None if it fits nowhere."""
        block = -(-size // self.unit) * self.unit
        address = next((begin for begin, end in self._holes if end - begin >= block), None)
        if address is None:
            return None
        self._holes.remove(address, address + block)
        self._sizes[address] = block
        self.note(Kind.ALLOCATE, address, size, name)
        return address

    def free(self, address: int) -> None:
        """Frees a block."""
        size = self._sizes.pop(address)
        self._holes.add(address, address + size)
        self.note(Kind.FREE, address, size)

    def size_of(self, address: int) -> int:
        """Of a block, in bytes."""
        return self._sizes[address]


def fragmented(rounds: int = 6, seed: int = 0, budget_bytes: int = 256 * MIB) -> Trace:
    """Each round fills the arena with large blocks and some small ones between them; the large
    ones go, the small ones stay. So ever more of what is free lies in ever smaller holes, and a
    last request, for half of the arena, fails."""
    choose = random.Random(seed)
    arena = Arena(budget_bytes)
    for _ in range(rounds):
        arena.note(Kind.STEP)
        large: list[int] = []
        while True:
            arena.now_ns += choose.randrange(10_000, 30_000)
            address = arena.allocate(choose.randrange(256, 4 << 10) << 10, "works")
            if address is None:
                break
            large.append(address)
            if choose.random() < 0.06:
                arena.allocate(choose.randrange(16, 256) << 10, "stays")
        choose.shuffle(large)
        for address in large:
            arena.now_ns += choose.randrange(5_000, 15_000)
            arena.free(address)
        arena.now_ns += 300_000
    arena.note(Kind.OUT_OF_MEMORY, size=budget_bytes // 2, name="half of all")
    arena.now_ns += 300_000
    arena.note(Kind.MARK, name="end")
    return arena.trace


def training(
    layers: int = 24, steps: int = 3, seed: int = 0, budget_bytes: int = 96 * MIB
) -> Trace:
    """Steps of a network whose activations do not fit: a layer's is evicted to make room, and
    computed again on the way back."""
    choose = random.Random(seed)
    arena = Arena(budget_bytes)
    weights = [choose.randrange(256, 1024) << 10 for _ in range(layers)]
    shapes = [choose.randrange(2 << 10, 9 << 10) << 10 for _ in range(layers)]
    for size in weights:
        _place(arena, size, "weights", {})
    for _ in range(steps):
        arena.note(Kind.STEP)
        at: dict[int, int] = {}  # layer -> address of its activation, where resident
        for layer, size in enumerate(shapes):
            arena.now_ns += choose.randrange(200_000, 400_000)
            at[layer] = _place(arena, size, "forward", at, {layer - 1})
        gradient = _place(arena, shapes[-1], "gradient", at, {layers - 1})
        for layer in reversed(range(layers)):
            arena.now_ns += choose.randrange(400_000, 800_000)
            if layer not in at:
                before = max(below for below in (-1, *at) if below < layer)
                for again in range(before + 1, layer + 1):
                    needed = {again - 1, again, layer}
                    at[again] = _place(arena, shapes[again], "forward", at, needed)
                    arena.note(Kind.REMATERIALIZE, at[again], arena.size_of(at[again]))
                    arena.now_ns += 200_000
            new = _place(arena, shapes[max(0, layer - 1)], "gradient", at, {layer, layer - 1})
            arena.free(gradient)
            arena.free(at.pop(layer))
            gradient = new
        arena.free(gradient)
    return arena.trace


def _place(
    arena: Arena, size: int, name: str, at: dict[int, int], needed: set[int] | None = None
) -> int:
    """Allocates, and evicts activations from the first layer on until it fits."""
    address = arena.allocate(size, name)
    if address is None:
        arena.note(Kind.ROOM, size=size)
    while address is None:
        victim = next((layer for layer in at if layer not in (needed or ())), None)
        if victim is None:
            arena.note(Kind.OUT_OF_MEMORY, size=size, name=name)
            raise MemoryError(f"{size} bytes fit nowhere; allowed: a larger budget")
        place = at.pop(victim)
        arena.note(Kind.EVICT, place, arena.size_of(place))
        arena.free(place)
        address = arena.allocate(size, name)
    return address


LETTERS = {
    "A": Kind.ALLOCATE, "F": Kind.FREE, "E": Kind.EVICT, "C": Kind.REMATERIALIZE, "R": Kind.ROOM,
    "<": Kind.MOVE_FROM, ">": Kind.MOVE_TO, "O": Kind.OUT_OF_MEMORY, "B": Kind.BUDGET,
    "S": Kind.SEGMENT_ALLOCATE, "U": Kind.SEGMENT_FREE, "T": Kind.STEP,
}  # fmt: skip


def of_text(text: str, trace: Trace | None = None, size: int = 0, name: int = 0) -> Trace:
    """Events a microsecond apart, as "A512:2K/1": a kind's letter, an address, a size, a name."""
    trace = Trace() if trace is None else trace
    for event in text.split():
        found = re.fullmatch(r"(\D)(\d*)(K?)(?::(\d+)(K?))?(?:/(\d))?", event)
        assert found, event
        kind, address, in_kib, its_size, of_kib, its_name = found.groups()
        trace.add(
            LETTERS[kind],
            time_ns=1000 * len(trace),
            address=int(address or 0) << (10 if in_kib else 0),
            size_bytes=int(its_size) << (10 if of_kib else 0) if its_size else size,
            name=int(its_name or name),
        )
    return trace


def a_life(seed: int = 4, steps: int = 400) -> Trace:
    """A trace of a mapped heap with evictions, returns and moves, on two devices."""
    rng = random.Random(seed)
    trace = Trace({"source": "dtr_alloc", "time_unit": "ns"}, ["", "aten::mm", "größe"])
    live: list[dict[int, int]] = [{}, {}]  # by device: address -> slots
    mapped: list[set[int]] = [set(), set()]
    now = 0

    def add(kind: Kind, address: int = 0, size: int = 0, device: int = 0, name: int = 0) -> None:
        nonlocal now
        trace.add(kind, time_ns=now, address=address, size_bytes=size, device=device, name=name)
        now += 1000 * rng.randrange(1, 9)

    def place(device: int, slots: int) -> int | None:
        taken = {s for a, n in live[device].items() for s in range(a, a + n)}
        for at in range(64):
            if not taken & set(range(at, at + slots)):
                for chunk in range(at // 4, (at + slots - 1) // 4 + 1):
                    if chunk not in mapped[device]:
                        mapped[device].add(chunk)
                        add(Kind.SEGMENT_ALLOCATE, (1 << 46) + chunk * 2 * MIB, 2 * MIB, device)
                return at
        return None

    def address(slot: int) -> int:
        return (1 << 46) + slot * MIB // 2

    add(Kind.BUDGET, size=64 * MIB)
    for _ in range(steps):
        device = rng.randrange(2)
        if rng.random() < 0.5 or not live[device]:
            slots = rng.randrange(1, 7)
            at = place(device, slots)
            size = slots * MIB // 2 - rng.randrange(300)
            if at is None:
                add(Kind.ROOM, size=size, device=device, name=1)
                add(Kind.OUT_OF_MEMORY, size=size, device=device, name=1)
                continue
            live[device][at] = slots
            add(Kind.ALLOCATE, address(at), size, device, name=rng.randrange(3))
            if rng.random() < 0.2:
                add(Kind.REMATERIALIZE, address(at), size, device, name=2)
            continue
        old = rng.choice(sorted(live[device]))
        slots = live[device][old]
        fate = rng.random()
        if fate < 0.3:
            add(Kind.EVICT, address(old), 0, device, name=1)
        elif fate < 0.5 and (at := place(device, slots)) is not None:
            live[device][at] = slots
            add(Kind.ALLOCATE, address(at), slots * MIB // 2, device)
            add(Kind.MOVE_FROM, address(old), slots * MIB // 2, device)
            add(Kind.MOVE_TO, address(at), slots * MIB // 2, device)
        del live[device][old]
        add(Kind.FREE, address(old), slots * MIB // 2, device)
        used = {s // 4 for a, n in live[device].items() for s in range(a, a + n)}
        for chunk in sorted(mapped[device] - used):
            if rng.random() < 0.3:
                mapped[device].remove(chunk)
                add(Kind.SEGMENT_FREE, (1 << 46) + chunk * 2 * MIB, 2 * MIB, device)
    add(Kind.STEP, name=2)
    trace.validate()
    return trace


def live_at_end(trace: Trace) -> list[tuple[int, int, int]]:
    """(device, address, bytes) of what is in use at the end."""
    lifetimes = trace.lifetimes()
    return sorted(
        (trace.device[start], trace.address[start], size)
        for start, end, size in zip(
            lifetimes.start, lifetimes.end, lifetimes.size_bytes, strict=True
        )
        if end < 0
    )


def memory_at_end(trace: Trace) -> list[list[tuple[int, int]]]:
    """The ranges that have memory at the end, of each of two devices."""
    memory = [Ranges(), Ranges()]
    for kind, address, size, device in zip(
        trace.kind, trace.address, trace.size_bytes, trace.device, strict=True
    ):
        if kind == Kind.SEGMENT_ALLOCATE:
            memory[device].add(address, address + size)
        elif kind == Kind.SEGMENT_FREE:
            memory[device].remove(address, address + size)
    return [list(of) for of in memory]


def without_segments(trace, device):
    """The allocations, frees and failures of a device, as a log of RMM has them."""
    rows = enumerate(zip(trace.kind, trace.device, strict=True))
    chosen = (Kind.ALLOCATE, Kind.FREE, Kind.OUT_OF_MEMORY)
    return trace.select(row for row, (kind, of) in rows if kind in chosen and of == device)
