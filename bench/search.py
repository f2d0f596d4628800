"""How long the engine searches for what to evict, and how its work grows with the job.

    python -m bench.search [--json PATH] [--size N]... [--smoke]

The engine of the build runs a job on simulated memory: a chain of operators with skip
connections, whose results are kept, as for a backward pass, in a budget that holds half of them;
then operators that read one of those results each, at random. So storages are evicted, recomputed,
used and dropped while the search is timed, and costs change between any two searches. Operators
take the time that their Python takes and then wait for a random time, log-uniform from 1 to 16
microseconds. Python runs between the searches, as in a real job, and leaves them cold caches.

A row is one way to search among so many candidates. Its time is that of the engine's own counter
(search_ns: from the call to the choice, without the eviction), beside it stands the cost that the
whole job recomputed. Every search is exact. `times_single` is its time over that of the
search for the least score of the same heuristic, pool and size ("exact"), taken in the same run.
Where one search does not make the room for a request, there are several: "us each" is the mean time
of all searches of a request that searched.
"""

from __future__ import annotations

import operator
import random
import statistics
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import click
from dtr_alloc._lab import ffi
from dtr_alloc._lab import lib as toys

from bench import results
from dtr_alloc.core import check, lib
from dtr_alloc.simulation import presets

SIZES = (1_000, 10_000)
SEARCHES = 1_000  # operators of each phase that are measured
SKIP = 4  # every so many operators read one that many before
KIB = 1024
HEURISTICS = ("dtr-eqclass", "marginal", "dtr-full", "dtr-local", "lru", "megengine")
MOST_REPEATS = 20_000
INT8 = 1  # c10::ScalarType::Char

VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {"room": lib.DTR_ROOM_SINGLE},
    "windows": {"room": lib.DTR_ROOM_WINDOW},
    "auto": {"room": lib.DTR_ROOM_AUTO},
    "exact, fixed pool": {"room": lib.DTR_ROOM_SINGLE, "fixed": True},
    "windows, fixed pool": {"room": lib.DTR_ROOM_WINDOW, "fixed": True},
    "auto, fixed pool": {"room": lib.DTR_ROOM_AUTO, "fixed": True},
}


@dataclass
class Timing:
    """What was seen of the searches, one entry for each allocation that searched."""

    microseconds: list[float] = field(default_factory=list)
    searches: list[int] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)


class SimulatedJob:
    """The engine on simulated memory, with operators that only take time."""

    def __init__(
        self, heuristic: str, budget: int, seed: int, fixed: bool = False, **options: Any
    ) -> None:
        self.random = random.Random(seed)
        self.timing = Timing()
        self.measuring = False
        driver = ffi.new("char[]", b"simulated")
        pool_options = ffi.new("dtr_pool_options *", [driver, 0, budget, 0, 0, 0, 0, 0, fixed])
        self.pool = self._created(lib.dtr_pool_create, "dtr_pool **", pool_options)
        engine_options = ffi.new("dtr_engine_options *")
        parsed = presets.parse(heuristic)
        engine_options.heuristic = ffi.new("dtr_heuristic *", parsed.numbers())[0]
        engine_options.history_ops = 1 << 40
        engine_options.tiny_bytes = lib.DTR_TINY_BYTES
        for name, value in options.items():
            setattr(engine_options, name, value)
        self.engine = self._created(lib.dtr_engine_create, "dtr_engine **", engine_options)
        check(lib.dtr_engine_connect(self.engine, toys.dtr_toy_table()))
        self.core = ffi.cast("const dtr_core *", lib.dtr_engine_core(self.engine))
        self.framework = toys.dtr_toy_create(self.core)
        check(lib.dtr_engine_add_pool(self.engine, 0, -1, self.pool))
        self.frame = self._created(self.core.frame_create, "dtr_frame **", self.core.engine)
        self._stats = ffi.new("dtr_engine_stats *")
        self._out = ffi.new("dtr_toy_tensor **")
        self._message = ffi.new("const char **")
        self._dropped = ffi.new("void *[]", 4096)

    @staticmethod
    def _created(create: Any, ctype: str, argument: Any) -> Any:
        out = ffi.new(ctype)
        check(create(argument, out))
        return out[0]

    def stats(self) -> Any:
        lib.dtr_engine_get_stats(self.engine, self._stats, ffi.NULL, 0)
        return self._stats

    def tensor(self, size_bytes: int) -> Any:
        """A new tensor; a search that it needs is timed."""
        if not self.measuring:
            return self._tensor(size_bytes)
        stats = self.stats()
        searches, nanoseconds, evaluated = stats.searches, stats.search_ns, stats.evaluations
        made = self._tensor(size_bytes)
        stats = self.stats()
        if count := stats.searches - searches:
            self.timing.microseconds.append((stats.search_ns - nanoseconds) / count / 1000)
            self.timing.searches.append(count)
            self.timing.evaluations.append((stats.evaluations - evaluated) / count)
        return made

    def _tensor(self, size_bytes: int) -> Any:
        out, message = self._out, self._message
        if toys.dtr_toy_make(self.framework, 0, -1, 0, INT8, size_bytes, out, message):
            raise MemoryError(ffi.string(message[0]).decode())
        return out[0]

    def run(self, size_bytes: int, *inputs: Any) -> Any:
        """One operator with one result."""
        buffer = self.core.frame_buffer(self.frame, len(inputs) + 1)
        for i, tensor in enumerate(inputs):
            buffer[i] = int(ffi.cast("intptr_t", tensor))
        need = self.core.op_begin(self.frame, len(inputs), lib.DTR_OP_RECOMPUTABLE, 1)
        if need < 0:
            check(-need)
        if need & lib.DTR_NEED_WORK:
            while self.core.op_prepare(self.frame):
                self._rematerialize()
        made = self.tensor(size_bytes)
        self.core.frame_buffer(self.frame, 1)[0] = int(ffi.cast("intptr_t", made))
        closure = ffi.cast("void *", size_bytes)
        op_id = self.core.op_end(self.frame, 1, lib.DTR_OP_RECOMPUTABLE, self._cost_ns(), closure)
        if op_id < 0:
            check(-op_id)
        return made

    def _cost_ns(self) -> int:
        """What an operator costs by the engine's clock: 1 to 16 microseconds."""
        return int(1000 * 2 ** self.random.uniform(0, 4))

    def _rematerialize(self) -> None:
        while op_id := self.core.remat_next(self.frame):
            if op_id < 0:
                check(-op_id)
            step = self.core.frame_step(self.frame, 0)
            tensors = step[1 + 2 * step[0]]
            made = self.tensor(int(ffi.cast("intptr_t", self.core.step_closure(self.frame))))
            step = self.core.frame_step(self.frame, tensors + 1)
            step[0:tensors] = [0] * tensors  # no argument was overwritten
            step[tensors] = int(ffi.cast("intptr_t", made))
            status = self.core.remat_commit(self.frame, tensors, 1)
            toys.dtr_toy_release(made)
            if status < 0:
                check(-status)

    def close(self, tensors: list[Any]) -> None:
        # The last first: dead results that wait for the next one would change sides with each.
        for tensor in reversed(tensors):
            toys.dtr_toy_release(tensor)
        self.core.frame_destroy(self.frame)
        while toys.dtr_toy_dropped(self._dropped, len(self._dropped)):
            pass  # they are numbers
        toys.dtr_toy_destroy(self.framework)
        check(lib.dtr_engine_destroy(self.engine))
        check(lib.dtr_pool_destroy(self.pool))


def measure(heuristic: str, candidates: int, variant: str, searches: int) -> dict[str, Any]:
    """One row: a job in which about so many candidates are resident once memory is full."""
    sizes = random.Random(0)
    length = 2 * candidates
    bytes_of = [int(4 * KIB * 2 ** sizes.uniform(0, 8)) for _ in range(length)]
    budget = sum(bytes_of[:candidates])
    job = SimulatedJob(heuristic, budget, 0, **VARIANTS[variant])
    first = job.tensor(64 * KIB)
    saved: list[Any] = []
    for i in range(length):
        # From here on: memory is full, and half of the results are evicted.
        job.measuring = i >= length - searches
        before = saved[-1] if saved else first
        skip = [saved[-SKIP]] if i % SKIP == 0 and i else []
        saved.append(job.run(bytes_of[i], before, *skip))
    gradient = job.run(16 * KIB, saved[-1])
    for _ in range(searches):
        if job.stats().rematerializations > MOST_REPEATS:
            break  # it thrashes: enough was seen
        newer = job.run(16 * KIB, gradient, saved[sizes.randrange(length)])
        toys.dtr_toy_release(gradient)
        gradient = newer
    stats, timing = job.stats(), job.timing
    row = {
        "heuristic": heuristic,
        "candidates": candidates,
        "search": variant,
        "requests": len(timing.microseconds),
        "searches_per_request": statistics.mean(timing.searches),
        "request_us": statistics.mean(map(operator.mul, timing.microseconds, timing.searches)),
        "median_us": statistics.median(timing.microseconds),
        "p90_us": statistics.quantiles(timing.microseconds, n=10)[8],
        "evaluations_per_search": statistics.mean(timing.evaluations),
        "storage_accesses_per_evaluation": stats.storage_accesses / max(stats.evaluations, 1),
        "rematerializations": int(stats.rematerializations),
        "recompute_seconds": stats.recompute_cost_ns / 1e9,
        "search_seconds": stats.search_ns / 1e9,
    }
    job.close([first, gradient, *saved])
    return row


def compare(rows: list[dict[str, Any]]) -> None:
    """Sets times_single of each row."""
    single: dict[tuple[str, int, bool], float] = {}
    for row in rows:
        key = row["heuristic"], row["candidates"], "fixed" in row["search"]
        if row["search"].startswith("exact"):
            single[key] = row["median_us"]
        row["times_single"] = row["median_us"] / single[key]


COLUMNS = {
    "heuristic": "{heuristic}",
    "candidates": "{candidates:,}",
    "search": "{search}",
    "requests": "{requests:}",
    "searches each": "{searches_per_request:.1f}",
    "us each": "{request_us:.1f}",
    "median us": "{median_us:.2f}",
    "times single": "{times_single:.2f}",
    "p90 us": "{p90_us:.2f}",
    "evaluations": "{evaluations_per_search:.1f}",
    "remats": "{rematerializations:}",
    "s": "{recompute_seconds:.3f}",
}


@click.command(help="How long the engine searches for what to evict.")
@click.option("--heuristic", "names", multiple=True, default=HEURISTICS)
@click.option("--size", "sizes", type=int, multiple=True, default=SIZES, help="Candidates.")
@results.options("A few hundred candidates, seconds.")
def main(names: tuple[str, ...], sizes: tuple[int, ...], path: str | None, smoke: bool) -> None:
    sizes, searches = ((200, 400), 100) if smoke else (sizes, SEARCHES)
    console = results.console()
    rows = []
    for candidates, name, variant in product(sizes, names, VARIANTS):
        with console.status(f"{name}, {variant}, {candidates:,} candidates"):
            rows.append(measure(name, candidates, variant, min(searches, candidates)))
    compare(rows)
    console.print(results.table("Searching for what to evict", COLUMNS, rows))
    results.write(path, "search", searches=searches, results=rows)


if __name__ == "__main__":
    main()
