"""Records of a session: what it kept, what ran again, its counters over time, and what was seen of
its job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Kept(NamedTuple):
    """Storages that cannot be evicted, for one reason.

    Attributes:
        size_bytes: all of them.
        operator: what made the content, such as ``aten.add.Tensor``; ``""`` if it is not known.
        why: a clause.
        line: of the job, such as ``model.py:81``: where their address was asked for, or else where
            ``module`` was called; "" if neither is known.
        module: in which they were made, such as ``h.3.attn``; "" if that is not known. It is where
            there is a page of the run, or an op log.
    """

    size_bytes: int
    operator: str
    why: str
    line: str = ""
    module: str = ""


class Repeats(NamedTuple):
    """Calls of an operator in a module that ran again.

    Attributes:
        seconds: what they took, by their costs.
        times: how many there were.
        operator: such as ``aten.add.Tensor``.
        line: of the job, where the module was called.
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
    """In use by what may be evicted."""

    @property
    def unevictable_bytes(self) -> int:
        """In use by anything else: constants, pinned contents, what is not the engine's."""
        return max(0, self.allocated_bytes - self.evictable_bytes)

    @property
    def whole_bytes(self) -> int:
        """Free, in the largest free block."""
        return max(0, self.reserved_bytes - self.allocated_bytes - self.scattered_bytes)

    def seconds_a_step(self, before: Moment) -> float:
        """On average since a moment with fewer steps."""
        return (self.seconds - before.seconds) / (self.steps - before.steps)

    def recompute_share(self, before: Moment) -> float:
        """Of what was computed since then, the share that was computed again."""
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
    """Once it has ended: what filled the memory when most of it was in use, to a sixteenth."""
    repeats: list[Repeats] = field(default_factory=list)
    """Likewise: what ran again, what took longest first."""
    worst_heap: list[Span] = field(default_factory=list)
    """The first device's heap when most of it was free but scattered."""


@dataclass(frozen=True)
class Observed:
    """What a job held and took.

    Attributes:
        device: "cpu" or "cuda".
        steps: that were recorded; 0: the job has no optimizer, or ended before.
        step_seconds: of each step that was timed; none if something was evicted. On the CPU it is
            processor time of the thread that trains.
        peak_bytes: the most that was allocated at once, with what the session found on the device.
            (All is of recorded steps: what the engine keeps of the past may grow with each.)
        held_bytes: what was allocated when the last of them ended, by kind: parameters, gradients,
            optimizer states, buffers, other.
        fullest: what filled the memory when most of it was in use, to a sixteenth.
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
