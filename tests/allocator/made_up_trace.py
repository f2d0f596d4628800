"""Small traces of made-up programs, the same for the same seed."""

import random
import re

from dtr_alloc.fragment.ranges import Ranges
from dtr_alloc.traces.trace import Kind, Trace

MIB = 1 << 20

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


def a_life(seed: int = 4, steps: int = 400, devices: int = 2) -> Trace:
    """A trace of a mapped heap with evictions, returns and moves."""
    rng = random.Random(seed)
    trace = Trace({"source": "dtr_alloc", "time_unit": "ns"}, ["", "aten::mm", "größe"])
    live: list[dict[int, int]] = [{} for _ in range(devices)]  # address -> slots
    mapped: list[set[int]] = [set() for _ in range(devices)]
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
        device = rng.randrange(devices)
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
