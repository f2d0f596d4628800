"""Allocator models: other allocators on the requests of a trace.

``Prepared.run`` sends the allocations of a trace (trace.py), of one device, through a model of an
allocator (native/fragment/), in the order of the events and each on its stream; times between them
do not count. A model manages addresses without memory, so a device may have any size.

Models, by name:

* ``dtr``: our pool with its memory mapped by chunks, as on a GPU; ``dtr-fixed``: the same in an
  arena of as many addresses as the budget has bytes, where remapping does not help;
* ``dtr-first-fit``, ``dtr-size-classes``: ``dtr`` with another placement (the option ``placement``,
  one of simulate.PLACEMENTS, works for each of them). Traces do not tell expensive tensors:
  two-ended places all at the low end, as best fit does;
* ``pytorch``: PyTorch's caching allocator; ``pytorch-expandable``: with expandable segments. The
  top of native/fragment/caching.cpp states the limits of the model;
* ``pow2``: bins of powers of two that are never split or merged;
* ``first-fit``: one arena, the lowest hole that fits;
* ``paging``: whole pages of 2 MiB for each request, at any address;
* ``exact``: the bytes asked for, at any address: a lower bound for every allocator.

Words: *live* bytes are asked for and not freed; *used* bytes are those of their blocks, as rounded;
*reserved* bytes are the model's part of the device. A *hole* is reserved memory that no block uses.
*Lost* are reserved bytes that are not live: rounding and holes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from dtr_alloc.core import check, ffi, lib
from dtr_alloc.fragment import walk
from dtr_alloc.fragment.residency import Segment
from dtr_alloc.simulation.simulate import PLACEMENTS
from dtr_alloc.traces.trace import Kind, Trace

MIB = 1 << 20
NO_LIMIT = 2**64 - 1
SAMPLES = 2000
"""About how many rows of a run are sampled."""

_OURS: dict[str, Any] = {"chunk_bytes": 2 * MIB}
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "dtr": (lib.DTR_FRAGMENT_OURS, _OURS),
    "dtr-fixed": (lib.DTR_FRAGMENT_OURS, {**_OURS, "fixed": 1}),
    "dtr-first-fit": (lib.DTR_FRAGMENT_OURS, {**_OURS, "placement": lib.DTR_PLACE_FIRST_FIT}),
    "dtr-size-classes": (lib.DTR_FRAGMENT_OURS, {**_OURS, "placement": lib.DTR_PLACE_SIZE_CLASSES}),
    "pytorch": (lib.DTR_FRAGMENT_PYTORCH, {}),
    "pytorch-expandable": (lib.DTR_FRAGMENT_PYTORCH, {"expandable": 1}),
    "pow2": (lib.DTR_FRAGMENT_POWER_OF_TWO, {}),
    "first-fit": (lib.DTR_FRAGMENT_FIRST_FIT, {}),
    "paging": (lib.DTR_FRAGMENT_PAGING, {"page_bytes": 2 * MIB}),
    "exact": (lib.DTR_FRAGMENT_EXACT, {}),
}
"""The models by name: their numbers in dtr/allocator_models.h, and the options that they set."""


def current_name(model: str) -> str:
    """The present name of a model; old ones of 0.2 are ``ours``, ``first_fit``,
    ``power_of_two``."""
    name = model.replace("_", "-")
    if f"{name}-".startswith("ours-"):
        return f"dtr{name[4:]}"
    return "pow2" if name == "power-of-two" else name


OPTIONS: dict[int, frozenset[str]] = {
    lib.DTR_FRAGMENT_OURS: frozenset({"chunk_bytes", "small_bytes", "placement"}),
    lib.DTR_FRAGMENT_PYTORCH: frozenset(
        {
            *("expandable", "budget_is_fraction", "max_split_bytes", "max_unsplit_rounding_bytes"),
            *("roundup_power2_divisions", "collect_threshold", "segment_addresses"),
            "ties_by_address",
        }
    ),
    lib.DTR_FRAGMENT_PAGING: frozenset({"page_bytes"}),
}
"""Further options by the model's number: fields of dtr_fragment_options."""


@dataclass(frozen=True)
class ModelRun:
    """The outcome of a run. All counters are of the events before its end."""

    model: str
    budget_bytes: int | None
    """Of the device; None: no limit."""
    completed: bool
    """False: out of memory."""
    failed_event: int | None
    """The row of the request that failed."""
    failed_bytes: int
    """Its size; 0 if it completed."""
    events: int
    """Allocations and frees that went through."""
    peak_live_bytes: int
    peak_used_bytes: int
    peak_reserved_bytes: int
    mean_lost_bytes: float
    """Reserved and not live, averaged over the state after the start (Trace.start_rows) and after
    each later event."""
    max_lost_bytes: int
    end_live_bytes: int
    end_reserved_bytes: int
    ns_per_operation: float
    """The real time of the run, over allocations and frees. This run only counts bytes after each
    event; a second pass makes series and blocks."""
    series: walk.Series = field(repr=False)
    """After about SAMPLES rows, evenly, from the last row of the start (Trace.start_rows) on, and
    those of the peaks of live, reserved and lost bytes. Paging needs no contiguity: all of its free
    bytes are one hole."""
    holes: list[int] = field(repr=False)
    """The sizes of the holes at the failure, or when lost bytes were at their peak."""
    segments: list[Segment] = field(repr=False)
    """In order. Empty for models with one arena."""
    placements: array[int] | None = field(repr=False)
    """The address of each allocation, in the order of Trace.lifetimes() of the device; NO_LIMIT if
    it was not reached, 0 if it is empty. None if not asked for, or if the model has no
    addresses."""
    smallest_budget_bytes: int | None = None
    """The result of smallest_budget(), if it was asked for."""


class Prepared:
    """The allocations of one device of a trace, paired, for many runs."""

    def __init__(self, trace: Trace, device: int | None = None) -> None:
        """``device`` None: the only one that allocates.

        Raises ValueError if there are several and none is named, and for a contradictory trace: the
        message names the event.
        """
        self.trace = trace
        self.device = _only_device(trace) if device is None else device
        out = ffi.new("dtr_fragment_events **")
        start, end, size_bytes, stream, device_of = trace.lifetimes()
        if any(other != self.device for other in device_of):
            is_ours = [other == self.device for other in device_of]
            start, end, size_bytes, stream = (
                array(column.typecode, compress(column, is_ours))
                for column in (start, end, size_bytes, stream)
            )
        rows = (ffi.from_buffer("int64_t[]", column) for column in (start, end))
        words = (ffi.from_buffer("uint64_t[]", column) for column in (size_bytes, stream))
        check(lib.dtr_fragment_load(*rows, *words, len(start), out))
        self._events = ffi.gc(out[0], lib.dtr_fragment_unload)
        self._start_rows = trace.start_rows(self.device)
        counts = [ffi.new("uint64_t *") for _ in range(3)]
        lib.dtr_fragment_counts(self._events, *counts)
        self.operations, self.allocations, self.peak_live_bytes = (int(c[0]) for c in counts)

    def run(
        self,
        model: str,
        budget_bytes: int | None = None,
        *,
        placements: bool = False,
        samples: int = SAMPLES,
        **options: Any,
    ) -> ModelRun:
        """Runs a model of an allocator.

        Args:
            model: a key of MODELS.
            budget_bytes: of the device; None: no limit.
            placements: whether to keep the address of each allocation.
            samples: about how many rows the series has.
            options: of the model, see OPTIONS and dtr_fragment_options.

        Running out of memory is an outcome. Raises ValueError for an unknown model or option.
        """
        model = current_name(model)
        result = self.in_core(model, budget_bytes, options, samples, placements)
        blocks = structs(result, "worst" if result.completed else "last")
        same = (
            *("failed_bytes", "peak_live_bytes", "peak_used_bytes", "peak_reserved_bytes"),
            *("mean_lost_bytes", "max_lost_bytes", "end_live_bytes", "end_reserved_bytes"),
        )
        return ModelRun(
            model=model,
            budget_bytes=budget_bytes,
            completed=bool(result.completed),
            failed_event=None if result.completed else int(result.failed_row),
            events=result.served_events,
            **{name: getattr(result, name) for name in same},
            ns_per_operation=result.run_ns / max(1, result.served_events),
            series=_series(result, self.trace),
            holes=[block.size_bytes for block in blocks if not block.used],
            segments=[
                Segment(int(s.row), int(s.address), int(s.size_bytes), bool(s.taken))
                for s in structs(result, "segments")
            ],
            placements=walk.column("Q", result.places, result.places_count)
            if placements and result.places_count == self.allocations
            else None,
        )

    def in_core(
        self,
        model: str,
        budget_bytes: int | None,
        options: dict[str, Any],
        samples: int,
        placements: bool,
    ) -> Any:
        """A run's dtr_fragment_result, which keeps the run alive."""
        struct, keep = _struct(model, budget_bytes, options)
        struct.samples = samples
        struct.start_rows = self._start_rows
        struct.places = placements
        result, out = ffi.new("dtr_fragment_result *"), ffi.new("dtr_fragment_run **")
        check(lib.dtr_fragment_run_model(self._events, struct, result, out))
        del keep
        return ffi.gc(result, lambda _: lib.dtr_fragment_destroy(out[0]))

    def fits(self, model: str, budget_bytes: int, **options: Any) -> bool:
        """Whether the model gets through within the budget."""
        return self.run(model, budget_bytes, samples=0, **options).completed


def smallest_budget(
    trace: Trace | Prepared,
    model: str = "pytorch",
    *,
    device: int | None = None,
    step_bytes: int = 0,
    **options: Any,
) -> int | None:
    """A budget with which the trace completes, and with one step less does not. None if it does not
    complete without a limit.

    Found by bisection between the peak of live bytes and the model's reserved bytes without a limit
    (the next power of two above it that works, if that does not). Some models are not monotone:
    with caches that are given back under pressure, a smaller budget may work as well.
    ``step_bytes`` is the precision: 0 is a thousandth of the peak, 512 bytes at least.

    Raises as Prepared.run().
    """
    prepared = trace if isinstance(trace, Prepared) else Prepared(trace, device)
    step = step_bytes or max(512, prepared.peak_live_bytes // 1000)
    low = prepared.peak_live_bytes
    if low == 0 or prepared.fits(model, low, **options):
        return low
    free = prepared.run(model, None, samples=0, **options)
    high = max(free.peak_reserved_bytes, low + step)
    while not prepared.fits(model, high, **options):
        if high == NO_LIMIT:
            return None
        low, high = high, min(2 * high, NO_LIMIT)
    while high - low > step:
        middle = (low + high) // 2
        if prepared.fits(model, middle, **options):
            high = middle
        else:
            low = middle
    return high


# ---- between Python and the core ----


def _only_device(trace: Trace) -> int:
    devices = {
        device
        for kind, device in zip(trace.kind, trace.device, strict=True)
        if kind == Kind.ALLOCATE
    }
    if len(devices) > 1:
        raise ValueError(
            f"the trace has allocations of devices {sorted(devices)}; allowed: one of them, by name"
        )
    return devices.pop() if devices else 0


def _struct(model: str, budget_bytes: int | None, options: dict[str, Any]) -> tuple[Any, Any]:
    """The options, and an owner of their memory."""
    if model not in MODELS:
        raise ValueError(f"model is {model!r}; allowed: {', '.join(MODELS)}")
    number, presets = MODELS[model]
    allowed = OPTIONS.get(number, frozenset())
    struct = ffi.new("dtr_fragment_options *")
    struct.model = number
    if budget_bytes is not None and not 0 <= budget_bytes <= NO_LIMIT:
        raise ValueError(f"budget_bytes is {budget_bytes}; allowed: from 0 to {NO_LIMIT}, or None")
    struct.budget_bytes = NO_LIMIT if budget_bytes is None else budget_bytes
    for name, value in presets.items():
        setattr(struct, name, value)
    keep = None
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(
                f"the model {model} has no option {name!r}; allowed: "
                f"{', '.join(sorted(allowed)) or 'none'}"
            )
        if name == "segment_addresses":
            keep = ffi.new("uint64_t[]", list(value))
            struct.segment_addresses = keep
            struct.segment_address_count = len(value)
            continue
        if name == "placement":
            if value not in PLACEMENTS:
                raise ValueError(f"placement is {value!r}; allowed: {', '.join(PLACEMENTS)}")
            struct.placement = PLACEMENTS.index(value)
            continue
        try:
            setattr(struct, name, value)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{name} is {value!r}: {error}") from None
    return struct, keep


def structs(result: Any, name: str) -> list[Any]:
    """An array of a run."""
    count = getattr(result, f"{name}_count")
    return list(ffi.unpack(getattr(result, name), count)) if count else []


def _series(result: Any, trace: Trace) -> walk.Series:
    samples = structs(result, "samples")
    rows = [sample.row for sample in samples]
    names = ("live_bytes", "reserved_bytes", "free_bytes", "largest_free_bytes")
    return walk.Series(
        event=array("q", rows),
        time_ns=array("q", [trace.time_ns[row] for row in rows]),
        **{name: array("Q", [getattr(s, name) for s in samples]) for name in names},
        sum_free_squares=array("d", [s.sum_free_squares for s in samples]),
    )
