"""Records of a session: its counters, now and over time, its kept and recomputed contents, and the
observations of its job."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn


def in_seconds(counters: Mapping[str, Any]) -> dict[str, Any]:
    """The counters with each ``<name>_ns`` as ``<name>_seconds``."""
    found = dict(counters)
    for name in counters:
        if name.endswith("_ns") and isinstance(found[name], int):
            found[f"{name[:-3]}_seconds"] = found.pop(name) / 1e9
    return found


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Stats(dict[str, Any]):
    """The counters of a session: of all its devices together, since it began. Sizes are in bytes,
    times in seconds; peaks are since reset_peak_stats().

    Each counter is an attribute, and an item of the same name: ``stats().evictions`` is
    ``stats()["evictions"]``. It cannot be changed; ``dict(stats())`` is a copy that can. A notebook
    shows the figures that matter.
    """

    budget_bytes: int
    """The budget; 2**64 - 1 if it is unlimited."""
    allocated_bytes: int
    """In use, each block rounded up to the allocator's size."""
    peak_allocated_bytes: int
    reserved_bytes: int
    """Memory that the driver gave to the pools: never more than the budget."""
    peak_reserved_bytes: int
    requested_bytes: int
    """In use, as asked for."""
    peak_requested_bytes: int
    largest_free_bytes: int
    """The largest request that fits now, without an eviction or a remap."""
    total_bytes: int
    """Memory of the devices, or that the process may use of the machine's; 0 if unknown."""
    chunk_bytes: int
    """The unit in which memory is mapped."""
    peak_unused_bytes: int
    """Mapped, but in no block that is in use."""
    beyond_bytes: int
    """Of workspaces of operators that are served beyond the budget now."""
    peak_beyond_bytes: int
    beyond_requests: int
    """Requests for workspaces that were served beyond the budget."""
    beyond_seconds: float
    """The host's time from these requests until they were freed."""
    live_blocks: int
    peak_live_blocks: int
    allocations: int
    """Requests that succeeded."""
    frees: int
    ever_allocated_bytes: int
    ever_requested_bytes: int
    mapped_chunks: int
    """Calls of the driver that mapped memory."""
    unmapped_chunks: int
    remaps: int
    """Requests that were given memory that had been mapped elsewhere."""
    out_of_memory_errors: int
    """Requests that failed."""
    host_waits: int
    """Calls of the pools that made the host wait for the device."""
    host_wait_seconds: float
    evictions: int
    """Contents that were given up, to make room or by evict()."""
    evicted_bytes: int
    rematerializations: int
    """Operators that ran again."""
    recompute_seconds: float
    """The time that they took; where work is queued, that it should take."""
    recompute_cost_seconds: float
    """The same by the recorded costs of the operators."""
    twice_cost_seconds: float
    """The part of it that went to contents that had been recomputed before."""
    total_cost_seconds: float
    """The job's own compute, by the recorded costs of its operators."""
    clock_seconds: float
    """The engine's clock: both together."""
    search_seconds: float
    """Processor time of searches for storages to evict."""
    searches: int
    evaluations: int
    """Scores that were computed."""
    storage_accesses: int
    """The DTR paper's measure of a heuristic's overhead (appendix D.3)."""
    window_searches: int
    window_evictions: int
    """Evictions of neighbors that were chosen together."""
    contiguity_evictions: int
    """Evictions while enough bytes were free, but not in one piece."""
    preemptions: int
    """Evictions of inputs of an operator that waited for its other inputs."""
    moves: int
    """Tensors that were copied elsewhere in the heap."""
    moved_bytes: int
    move_seconds: float
    """The host's time for them."""
    swaps: int
    """Contents that were moved to host memory."""
    swapped_out_bytes: int
    swapped_in_bytes: int
    swap_seconds: float
    """The time that these copies should take, by the measured bandwidth."""
    host_bytes: int
    """Of contents in host memory now."""
    prefetches: int
    """Contents that were swapped in before they were needed."""
    prefetch_hits: int
    """Of these, the ones that were needed before they were swapped out again."""
    live_storages: int
    """Storages that the engine knows."""
    live_ops: int
    """Operators that the engine knows."""
    live_records: int
    """Both together. It must not grow from step to step."""
    evicted_storages: int
    """Storages whose content is evicted now."""
    evictable_bytes: int
    """In use by contents that may be evicted."""
    peak_kept_bytes: int
    """The most that could not be evicted at once."""
    kept_constant_bytes: int
    """Of dead constants that are kept because something may be recomputed from them."""
    settled: int
    """Storages that became constants, because the inputs of their recomputation were to be lost."""
    banished: int
    """Dead storages that were removed for good."""
    recorded_ops: int
    """Operators that were recorded."""
    rests: int
    """Times that the recorder went to rest, as nothing had to be evicted."""
    unrecorded_ops: int
    """Operators that it did not record then."""
    verified: int
    """Recomputed contents that were compared (``DTR_ALLOC_DEBUG=verify:N``)."""
    unseen_writes: int
    """Contents that changed without an operator that writes them."""
    learning: str
    """The state of the step tuner in words; empty if there is none."""
    learned: int
    """Policies that the tuner found and that were followed."""
    planned: int
    """Requests that got the address that the plan of the step has for them."""
    plan_misses: int
    """Requests that could not get it."""
    session_seconds: float
    """Since the session began, until it ended."""
    steps: int
    """Steps of optimizers."""
    step_seconds: float
    """The median of the time between the ends of two steps; 0 before there are two."""

    def __post_init__(self) -> None:
        dict.update(self, vars(self))

    def __missing__(self, name: str) -> int:
        """Times used to be in nanoseconds."""
        seconds = f"{name.removesuffix('_ns')}_seconds"
        if not name.endswith("_ns") or seconds not in self:
            raise KeyError(name)
        warnings.warn(f"stats(): {name} is now {seconds}", DeprecationWarning, stacklevel=2)
        return int(1e9 * self[seconds] + 0.5)

    def __reduce__(self) -> tuple[object, ...]:
        return _stats_of, (dict(self),)

    def _cannot_change(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("statistics cannot be changed: dict(stats()) is a copy that can")

    __setitem__ = __delitem__ = __ior__ = _cannot_change
    clear = pop = popitem = setdefault = update = _cannot_change

    def _repr_html_(self) -> str:
        from html import escape

        from dtr_alloc.figures import advice, figures
        from dtr_alloc.report import html_table

        return f"{html_table(figures(self))}<p>{escape(advice(self))}</p>"


def _stats_of(counters: dict[str, Any]) -> Stats:
    return Stats(**counters)


class Kept(NamedTuple):
    """Storages that cannot be evicted, for one reason.

    Attributes:
        size_bytes: all of them.
        operator: the one that made the content, such as ``aten.add.Tensor``; ``""`` if unknown.
        why: the reason, a clause.
        line: of the job, such as ``model.py:81``: the line that asked for their address, or that
            called ``module``; "" if neither is known.
        module: the one that made them, such as ``h.3.attn``; "" if unknown. It is recorded for a
            page of the run or an op log.
    """

    size_bytes: int
    operator: str
    why: str
    line: str = ""
    module: str = ""


class Repeats(NamedTuple):
    """Recomputations of an operator in a module.

    Attributes:
        seconds: their time, by their costs.
        times: their number.
        operator: such as ``aten.add.Tensor``.
        line: of the job, which called the module.
        module: as of a Kept.
    """

    seconds: float
    times: int
    operator: str
    line: str
    module: str


class Moment(NamedTuple):
    """Counters at one moment; those that only grow do so since the runtime was created."""

    seconds: float
    steps: int
    budget_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    scattered_bytes: int
    """Free, but not in the largest free block."""
    evictions: int
    evicted_bytes: int
    total_cost_ns: int
    recompute_cost_ns: int
    moved_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    planned: int
    evictable_bytes: int
    """In use by contents that may be evicted."""

    @property
    def unevictable_bytes(self) -> int:
        """In use by anything else: constants, pinned contents, contents of others."""
        return max(0, self.allocated_bytes - self.evictable_bytes)

    @property
    def whole_bytes(self) -> int:
        """Free, in the largest free block."""
        return max(0, self.reserved_bytes - self.allocated_bytes - self.scattered_bytes)

    def seconds_a_step(self, before: Moment) -> float:
        """On average since a moment with fewer steps."""
        return (self.seconds - before.seconds) / (self.steps - before.steps)

    def recompute_share(self, before: Moment) -> float:
        """The recomputed share of all computation since then."""
        again = self.recompute_cost_ns - before.recompute_cost_ns
        computed = again + self.total_cost_ns - before.total_cost_ns
        return again / computed if computed else 0.0

    def is_planned(self, before: Moment) -> bool:
        """Whether a plan was followed since then."""
        return self.planned > before.planned


class Span(NamedTuple):
    """Blocks in use with nothing between them."""

    address: int
    size_bytes: int


@dataclass
class Rows:
    """The rows of one session."""

    steps: list[Moment] = field(default_factory=list)
    samples: list[Moment] = field(default_factory=list)
    fullest: list[Kept] = field(default_factory=list)
    """After its end: the contents at the peak of memory, to a sixteenth."""
    repeats: list[Repeats] = field(default_factory=list)
    """After its end: recomputations, the longest first."""
    worst_heap: list[Span] = field(default_factory=list)
    """The first device's heap when most of it was free but scattered."""


@dataclass(frozen=True)
class Observed:
    """The memory and the time of a job.

    Attributes:
        device: "cpu" or "cuda".
        steps: that were recorded; 0: the job has no optimizer, or ended before.
        step_seconds: of each timed step; none if something was evicted. On the CPU it is processor
            time of the training thread.
        peak_bytes: the most that was allocated at once in the recorded steps, tensors from before
            the session included.
        held_bytes: the allocated memory at the end of the last of them, by kind: parameters,
            gradients, optimizer states, buffers, other.
        fullest: the contents at the peak of memory, to a sixteenth.
        chunk_bytes: the unit in which the pool maps memory.
        is_float32: all parameters are, and nothing was cast, as autocast does.
    """

    device: str
    steps: int
    step_seconds: list[float]
    peak_bytes: int
    held_bytes: dict[str, int]
    fullest: list[Kept]
    chunk_bytes: int
    is_float32: bool
