"""The simulator: runs op logs under budgets, and makes studies of many such runs.

``run_log`` runs a compiled log (``oplog.compile_log``) once, in C++, with one of two semantics:

* ``simrd``: the published simulator of the DTR paper, decision for decision (native/lab/simrd.h). A
  checkout has it, a wheel does not (lab.py);
* ``runtime``: the engine that trains, on tensors without contents (native/simulate/runtime.h).
  Views cost nothing, a mutation needs no copy, constants die. Memory is either counted (``bytes``),
  or the real heap on simulated addresses, with fragmentation: mapped by chunks (``heap``), or with
  only as many addresses as the budget has bytes (``fixed``).

``dtr-alloc simulate`` makes a *study*: it runs every log with every heuristic, deallocation policy,
seed and budget. The runs are independent, so workers share them (executors.py).

A budget is a number of bytes, or a ratio of the log's *baseline*: the peak of a run without a limit
(in simrd's semantics with the banishing policy, as the published ratios).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any

from dtr_alloc import config, heuristics
from dtr_alloc.core import check, ffi, field_names, lib, record
from dtr_alloc.heuristics import DEALLOCS, Heuristic
from dtr_alloc.oplog import MOST_SUM, Program
from dtr_alloc.scorer import Scorer
from dtr_alloc.simulation import lab, presets
from dtr_alloc.simulation.executors import HERE, Failure, RunsFailed, Workers
from dtr_alloc.simulation.presets import PRESETS

SEMANTICS = ("simrd", "runtime")
SPACES = ("bytes", "heap", "fixed")
PLACEMENTS = ("best-fit", "first-fit", "two-ended", "size-classes")
"""The choice of a hole for a tensor, by the numbers of the C header (DTR_PLACE_...): ``best-fit``,
the smallest that is large enough; ``first-fit``, the lowest; ``two-ended``, the best fit, cut at
its high end for a tensor that costs less to recompute, by the byte, than the median of the job's
operators, and at its low end for others and for constants (Coop, NeurIPS 2023); ``size-classes``,
the best fit of sizes rounded up by at most an eighth, so that holes are reused as they are."""
SAMPLINGS = ("none", "sqrt")
STATUSES = ("ok", "oom", "thrash", "assert")
"""By their numbers in C (DTR_SIMULATION_...). ``assert``: simrd's own assertion fails."""

_COUNTERS = field_names("dtr_simulation_result")


# ---- one run ----


@dataclass(frozen=True)
class Run:
    """The result of one run: the fields of dtr_simulation_result (dtr/simulate.h), at its end."""

    status: str
    clock: int
    model_cost: int
    remat_cost: int
    model_ops: int
    remat_ops: int
    collateral: int
    forced: int
    other: int
    banished: int
    peak_bytes: int
    end_bytes: int
    evaluations: int
    accesses: int
    chain_depth: int
    search_ns: int
    preemptions: int
    constant_bytes: int
    running_bytes: int
    waiting_bytes: int
    forced_requests: int
    forced_times: int
    lost_bytes: int
    most_lost_bytes: int
    left_bytes: int
    scattered: int
    scattered_times: int
    remaps: int
    mapped_chunks: int
    searches: int
    window_evictions: int
    moves: int
    moved_bytes: int
    move_cost: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    swap_cost: int
    seconds: float
    """Real time of the run alone."""
    decisions_sha256: str
    """The first 16 digits of the SHA-256 of the decisions."""
    decisions: str | None = field(default=None, repr=False)
    """One a line, as dtr_simulate_runtime says; if asked for."""

    @property
    def total_cost(self) -> int:
        return self.model_cost + self.remat_cost


def run_log(
    program: Program,
    heuristic: Heuristic | str = heuristics.ONLINE,
    budget_bytes: int | None = None,
    *,
    dealloc: str = "eager",
    seed: int = 0,
    semantics: str = "simrd",
    space: str = "bytes",
    chunk_bytes: int = 0,
    measure: bool = False,
    move_bytes_per_s: float = 0,
    swap_bytes: int = 0,
    swap_bytes_per_s: float = 0,
    max_recompute: int | None = None,
    outputs: bool = True,
    history_ops: int = config.HISTORY_OPS,
    room: str = "heuristic",
    placement: str = PLACEMENTS[0],
    newest_staleness: bool | None = None,
    sampling: str = SAMPLINGS[0],
    least_size_share: float = 0,
    decisions: bool = False,
) -> Run:
    """Runs a log once.

    Args:
        program: the log, compiled.
        heuristic: the choice of evictions; text is read by ``presets.parse``.
        budget_bytes: None: no limit.
        dealloc: the treatment of dead storages; one of DEALLOCS.
        seed: of ``random`` and of samples.
        semantics: one of SEMANTICS.
        space: one of SPACES; all but ``bytes`` in runtime semantics only.
        chunk_bytes: the unit of mapping of ``heap`` and ``fixed``, a multiple of 4096; 0: a page.
        measure: whether to count the cost of fragmentation; in runtime semantics only.
        move_bytes_per_s: the bandwidth of moves within the heap, with costs as nanoseconds; 0:
            nothing is moved. In runtime semantics only.
        swap_bytes: the most host memory for swapped contents; 0: nothing is swapped. In runtime
            semantics only.
        swap_bytes_per_s: the bandwidth of copies to host memory and back, with costs as
            nanoseconds.
        max_recompute: a run that recomputes more than this, or more than oplog.MOST_SUM, ends as
            ``thrash``.
        outputs: whether tensors that have a name at the end are made resident, as in simrd; a real
            job does not ask for that. False in runtime semantics only.
        history_ops: the largest number of operator records, in runtime semantics.
        room: one of heuristics.ROOMS, or ``heuristic``: the heuristic's own; in runtime semantics.
        placement: one of PLACEMENTS, for ``heap`` and ``fixed``. Costs of recomputation are those
            of the log.
        newest_staleness: whether the staleness of a score is that of the newest access in the
            storage and its evicted neighborhood, in simrd's semantics. None: as the published
            simulator's scores of these parts, which have it in its banishing runtime.
        sampling: one of SAMPLINGS, in simrd's semantics only. ``sqrt``: the victim is chosen among
            a random sample of the square root of n candidates.
        least_size_share: storages smaller than this share (0 to 1) of the candidates' mean size are
            no candidates; in simrd's semantics only. DTR's prototype has 0.01.
        decisions: whether to return them, not only their hash.

    Raises ValueError for arguments that do not go together, and for a contradictory program.
    """
    _choice("dealloc", dealloc, DEALLOCS)
    _choice("semantics", semantics, SEMANTICS)
    _choice("space", space, SPACES)
    _choice("placement", placement, PLACEMENTS)
    _choice("sampling", sampling, SAMPLINGS)
    is_simrd = semantics == "simrd"
    if is_simrd and (space != "bytes" or not outputs):
        raise ValueError("simrd counts bytes and wants its outputs; the rest is for 'runtime'")
    for applies, name, value, only, where in (
        (not is_simrd, "newest_staleness", newest_staleness, None, "runtime semantics"),
        (not is_simrd, "sampling", sampling, SAMPLINGS[0], "runtime semantics"),
        (not is_simrd, "least_size_share", least_size_share, 0, "runtime semantics"),
        (is_simrd, "swap_bytes", swap_bytes, 0, "semantics 'simrd'"),
        (is_simrd, "room", room, "heuristic", "semantics 'simrd'"),
        (space == "bytes", "placement", placement, PLACEMENTS[0], "space 'bytes'"),
    ):
        if applies and value != only:
            raise ValueError(f"{name} is {value!r}; allowed with {where}: {only}")
    parts = presets.parse(heuristic)
    common = {
        "heuristic": ffi.new("dtr_heuristic *", replace(parts, seed=seed).numbers())[0],
        "dealloc": DEALLOCS.index(dealloc),
        "budget_bytes": config.UNLIMITED_BYTES if budget_bytes is None else budget_bytes,
        # A sum of times stays within 64 bits, whatever is asked for.
        "max_recompute": min(MOST_SUM if max_recompute is None else max_recompute, MOST_SUM),
    }
    arguments = _in_c(program)
    if is_simrd:
        if parts.select == "callback":
            raise ValueError(f"{parts.name!r} is a Python callable, which simrd knows nothing of")
        of_lab, functions = lab.library()
        options = of_lab.new("dtr_lab_options *", {"common": common})
        options.sampling = SAMPLINGS.index(sampling)
        options.least_size_share = least_size_share
        if parts.cost == "neighborhood":
            by_default = dealloc == "banish" and parts.staleness > 0  # no regions are cached then
            options.newest_staleness = by_default if newest_staleness is None else newest_staleness
        given = (options, *arguments[:2])
        return run(functions.dtr_lab_simrd, *given, checked=lab.check, decisions=decisions)
    runtime = ffi.new("dtr_runtime_options *", {"common": common})
    runtime.space = SPACES.index(space)
    runtime.chunk_bytes = chunk_bytes
    runtime.measure = measure
    runtime.move_bytes_per_s = move_bytes_per_s
    runtime.swap_bytes = swap_bytes
    runtime.swap_out_bytes_per_s = runtime.swap_in_bytes_per_s = swap_bytes_per_s
    runtime.outputs = outputs
    runtime.history_ops = history_ops
    runtime.room = parts.room_number(room)
    runtime.placement = PLACEMENTS.index(placement)
    scorer = None if parts.score is None else Scorer(parts)
    if scorer is not None:
        runtime.score = scorer.pointer
    given = (runtime, *arguments)
    return run(lib.dtr_simulate_runtime, *given, checked=check, decisions=decisions)


def run(function: Any, *arguments: Any, checked: Callable[[int], None], decisions: bool) -> Run:
    """The run that a function of the core or of the laboratory makes."""
    result, text = ffi.new("dtr_simulation_result *"), ffi.new("const char **")
    begin = time.perf_counter()
    status = function(*arguments, result, text)
    seconds = time.perf_counter() - begin
    checked(status)
    made = ffi.string(text[0])
    counters: dict[str, Any] = record(result, _COUNTERS)
    counters["status"] = STATUSES[counters["status"]]
    return Run(
        **counters,
        seconds=seconds,
        decisions_sha256=hashlib.sha256(made).hexdigest()[:16],
        decisions=made.decode() if decisions else None,
    )


def _choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


# ---- what-if plays ----


@dataclass(frozen=True)
class WhatIfPlay:
    """The cost of a step of a log's job, before and after the step is learned.

    Shares are relative to the cost of the step's operators; None: the step fails.
    """

    recorded: int
    """Operators of the log that make memory or overwrite it."""
    operators: int
    """Those of the step; 0: the log repeats none, and its end stands for it."""
    step_cost: int
    usual_repeated: float | None
    """Recomputation and swaps under the heuristic with which the job begins."""
    usual_cost: float | None
    """The same with moves and mappings."""
    learned_repeated: float | None
    """By a plan or the best policy found; as usual if none is better."""
    learned_cost: float | None
    is_planned: bool
    first_work: int
    """Of the search for a first plan: visits to storages, weighted with scores and operators."""


def play_step(
    program: Program,
    budget_bytes: int,
    heuristic: Heuristic | str = heuristics.ONLINE,
    *,
    learn: bool = True,
    search: bool = False,
    chunk_bytes: int = 0,
    maps_on: str | None = None,
    move_bytes_per_s: float = 0,
    swap_bytes: int = 0,
    swap_bytes_per_s: float = 0,
    history_ops: int = config.HISTORY_OPS,
) -> WhatIfPlay:
    """Plays the step that a log repeats at its end as in a job that learns (native/learn), on the
    heap over simulated addresses.

    Args:
        budget_bytes: of all memory.
        heuristic: at the job's beginning.
        learn: whether to search for a better policy, which takes seconds.
        search: whether to improve a plan by local search, as a job does while it follows it.
        chunk_bytes: the unit of mapping, a multiple of 4096; 0: a page.
        maps_on: "cpu" or "cuda", the device of mappings; None: they take no time.
        move_bytes_per_s, swap_bytes, swap_bytes_per_s, history_ops: as for ``run_log``.

    Raises ValueError for arguments that make no sense.
    """
    heuristic = presets.parse(heuristic)
    options = ffi.new("dtr_what_if_options *")
    runtime = options.runtime
    runtime.common.heuristic = ffi.new("dtr_heuristic *", heuristic.numbers())[0]
    runtime.common.dealloc = DEALLOCS.index(heuristic.dealloc)
    runtime.common.budget_bytes = budget_bytes
    runtime.space = SPACES.index("heap")
    runtime.chunk_bytes = chunk_bytes
    runtime.move_bytes_per_s = move_bytes_per_s
    runtime.swap_bytes = swap_bytes
    runtime.swap_out_bytes_per_s = runtime.swap_in_bytes_per_s = swap_bytes_per_s
    runtime.history_ops = history_ops
    runtime.room = heuristic.room_number("heuristic")
    options.maps_on = -1 if maps_on is None else ("cpu", "cuda").index(maps_on)
    options.learn = 1 + search if learn else 0
    out = ffi.new("dtr_what_if_result *")
    check(lib.dtr_what_if(options, *_in_c(program), out))
    found = {each.name: getattr(out, each.name) for each in fields(WhatIfPlay)}
    for share in ("usual_repeated", "usual_cost", "learned_repeated", "learned_cost"):
        if found[share] < 0:
            found[share] = None
    return WhatIfPlay(**found | {"is_planned": bool(out.is_planned)})


def _in_c(program: Program) -> tuple[Any, ...]:
    """The arguments of the core's functions on the engine."""
    code = ffi.from_buffer("int64_t[]", program.code)
    workspace, at = ffi.NULL, ffi.NULL
    if program.workspace:
        workspace = ffi.from_buffer("int64_t[]", program.workspace)
        at = ffi.from_buffer("int64_t[]", program.workspace_at)
    return code, len(program.code), workspace, at, program.operator_count


# ---- the arguments of a study ----


def split_heuristics(text: str) -> list[str]:
    """Cuts a list at its commas, except those between the parts of one heuristic: a new heuristic
    begins when a part comes twice."""
    found: list[str] = []
    keys: set[str] = set()
    for piece in (piece.strip() for piece in text.split(",")):
        key, equals, _ = piece.partition("=")
        if equals and keys and key not in keys:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
            keys.clear()
        if equals:
            keys.add(key)
    return found


def parse_heuristics(
    texts: Sequence[str], semantics: str, deallocs: Sequence[str] = ("eager",)
) -> list[Heuristic]:
    """The heuristics of a study, each once; ``all``: the presets that the semantics support. Raises
    ValueError that names the fault."""
    found: dict[str, Heuristic] = {}
    for text in itertools.chain.from_iterable(split_heuristics(text) for text in texts):
        names = [text]
        if text == "all":
            # simrd has no components of storages that may be banished.
            without = "component" if semantics == "simrd" and "banish" in deallocs else None
            names = [name for name, preset in PRESETS.items() if preset.cost != without]
        for heuristic in map(presets.parse, names):
            found.setdefault(heuristic.name, heuristic)
    return list(found.values())


@dataclass(frozen=True)
class Limit:
    """A budget of a study: a ratio of the log's peak, or bytes."""

    ratio: float | None = None
    size_bytes: int | None = None

    def resolve(self, peak_bytes: int) -> int:
        """The budget in bytes; of a ratio as the published simulator computes it, in floats."""
        if self.size_bytes is not None:
            return self.size_bytes
        assert self.ratio is not None
        return int(peak_bytes * self.ratio)

    def __str__(self) -> str:
        if self.size_bytes is not None:
            return config.format_size(self.size_bytes)
        return str(self.ratio)


LIMIT_FORMS = (
    "ratios of the peak without a limit (0.5, at most 2.0), ranges of them (0.3..1.0, "
    f"0.3..1.0:0.05), {config.SIZE_FORMS}, and lists of these (0.3,0.5,8GiB)"
)
_DECIMAL = r"[0-9]*\.?[0-9]+|[0-9]+\."
_RANGE = re.compile(rf"(?P<first>{_DECIMAL})\.\.(?P<last>{_DECIMAL})(?::(?P<step>{_DECIMAL}))?")
_MOST_OF_A_RANGE = 1000
_LARGEST_RATIO = 2


def parse_limits(text: str) -> list[Limit]:
    """The budgets of a list. Raises ValueError that names the fault."""
    return [limit for part in text.split(",") for limit in _limits_of(part.strip())]


def _limits_of(text: str) -> list[Limit]:
    def wrong(why: str) -> ValueError:
        return ValueError(f"{why} in budget {text!r}; allowed: {LIMIT_FORMS}")

    def ratio(number: Decimal) -> Limit:
        if not 0 < number <= _LARGEST_RATIO:
            raise wrong(f"ratio {number} is not above 0 and at most {_LARGEST_RATIO}")
        return Limit(ratio=float(number))

    if ".." in text:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise wrong("no range of ratios")
        # Decimal, so that 0.3..1.0 has the same 0.7 as a list that names it.
        first, last = Decimal(match["first"]), Decimal(match["last"])
        step = Decimal(match["step"] or "0.1")
        if step <= 0 or first > last or (last - first) / step >= _MOST_OF_A_RANGE:
            raise wrong(f"a range needs first <= last, a step above 0, {_MOST_OF_A_RANGE} at most")
        return [ratio(first + i * step) for i in range(int((last - first) / step) + 1)]
    if re.fullmatch(_DECIMAL, text) and "." in text:
        return [ratio(Decimal(text))]
    if re.fullmatch(r"[0-9]+", text) and 1 <= int(text) <= _LARGEST_RATIO:
        raise wrong(f"{text} may be a ratio or bytes (write {text}.0 or {text}B)")
    try:
        size_bytes = config.parse_size(text)
    except ValueError:
        raise wrong("no size or ratio") from None
    if size_bytes == 0:
        raise wrong("0 bytes")
    return [Limit(size_bytes=size_bytes)]


_SEED_FORMS = "whole numbers from 0 up, ranges (0..9), lists"
_MOST_SEEDS = 1000


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list of numbers and ranges. Raises ValueError."""
    seeds: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        match = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", part, re.ASCII)
        if match is None:
            raise ValueError(f"seed {part!r}; allowed: {_SEED_FORMS}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < 2**64 or last - first >= _MOST_SEEDS:
            raise ValueError(f"seed {part!r}; allowed: {_SEED_FORMS}, at most {_MOST_SEEDS}")
        seeds.extend(range(first, last + 1))
    return seeds


def thrash_limit(base_compute: int, times: float | None) -> int | None:
    """The most recomputation with which a run's compute is at most `times` the base."""
    return None if times is None else math.floor(base_compute * (times - 1))


# ---- studies ----


@dataclass(frozen=True)
class Plan:
    """The runs of a study: the product of its lists, per log."""

    limits: Sequence[Limit]
    heuristics: Sequence[Heuristic]
    deallocs: Sequence[str] = ("eager",)
    seeds: Sequence[int] = (0,)
    semantics: str = "simrd"
    space: str = "bytes"
    chunk_bytes: int = 0
    room: str = "heuristic"
    placement: str = PLACEMENTS[0]
    sampling: str = SAMPLINGS[0]
    least_size_share: float = 0
    move_bytes_per_s: float = 0
    thrash: float | None = None

    def check(self) -> None:
        """Raises ValueError for combinations that no log could run with, by running an empty
        one."""
        for heuristic, dealloc in itertools.product(self.heuristics, self.deallocs):
            try:
                _run_of(self, Program("nothing"), heuristic, dealloc, 0, None, None)
            except ValueError as error:
                message = f"heuristic {heuristic.name!r} with dealloc {dealloc!r}: {error}"
                raise ValueError(message) from None

    def setups(self, logs: int) -> Iterator[Setup]:
        """In the order in which results are reported."""
        for log, dealloc, heuristic in itertools.product(
            range(logs), self.deallocs, self.heuristics
        ):
            random = heuristic.select == "random" or self.sampling != SAMPLINGS[0]
            for seed, limit in itertools.product(self.seeds if random else [None], self.limits):
                yield Setup(log, dealloc, heuristic, seed, limit)


@dataclass(frozen=True)
class Setup:
    """One run of a study. The seed is None where nothing is random."""

    log: int
    dealloc: str
    heuristic: Heuristic
    seed: int | None
    limit: Limit

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.heuristic}, {self.dealloc}{seed}, budget {self.limit}"


_OPTIONS = (
    *("semantics", "space", "room", "chunk_bytes"),
    *("placement", "sampling", "least_size_share"),
)
"""Of a plan, as of its runs and in its rows."""


@dataclass(frozen=True)
class Baseline:
    """A log's run without a limit."""

    peak_bytes: int
    compute: int


def _run_of(
    plan: Plan,
    program: Program,
    heuristic: Heuristic,
    dealloc: str,
    seed: int | None,
    budget_bytes: int | None,
    max_recompute: int | None,
) -> Run:
    options: dict[str, Any] = {name: getattr(plan, name) for name in _OPTIONS}
    return run_log(
        program,
        heuristic,
        budget_bytes,
        dealloc=dealloc,
        seed=seed or 0,
        measure=plan.semantics == "runtime",
        move_bytes_per_s=plan.move_bytes_per_s,
        max_recompute=max_recompute,
        **options,
    )


def baseline(program: Program, semantics: str = "simrd", space: str = "bytes") -> Baseline:
    """The run to which ratios and slowdowns refer. It evicts nothing, so any heuristic will do."""
    dealloc = "banish" if semantics == "simrd" else "eager"
    run = run_log(program, "lru", dealloc=dealloc, semantics=semantics, space=space)
    return Baseline(run.peak_bytes, run.model_cost)


def row(plan: Plan, setup: Setup, label: str, base: Baseline, run: Run) -> dict[str, Any]:
    """One run for the results file."""
    same = (
        *("status", "window_evictions", "banished", "collateral", "peak_bytes", "end_bytes"),
        *("chain_depth", "clock", "model_ops", "evaluations", "accesses", "decisions_sha256"),
        *("seconds", "forced_requests", "forced_times", "lost_bytes", "most_lost_bytes"),
        *("left_bytes", "remaps", "moved_bytes"),
    )
    return {
        "log": label,
        "heuristic": setup.heuristic.name,
        "dealloc": setup.dealloc,
        "seed": setup.seed,
        "ratio": setup.limit.ratio,
        "budget_bytes": setup.limit.resolve(base.peak_bytes),
        "base_compute": base.compute,
        "base_peak_bytes": base.peak_bytes,
        "total_compute": run.total_cost,
        "model_compute": run.model_cost,
        "remat_compute": run.remat_cost,
        "move_compute": run.move_cost,
        "rematerializations": run.remat_ops,
        "forced_evictions": run.forced,
        "other_evictions": run.other,
        "scattered_evictions": run.scattered,
        "search_seconds": run.search_ns / 1e9,
        **{name: getattr(run, name) for name in same},
        **{name: getattr(plan, name) for name in _OPTIONS},
    }


class Study:
    """Makes the runs of a plan over logs.

    Iterating gives the rows in the plan's order, each as soon as it and those before it are there.
    A failed run has no row, nor have those of a log whose run without a limit fails; after the last
    row RunsFailed names them. Raises ExecutorError before any row.
    """

    def __init__(self, plan: Plan, programs: Sequence[Program], workers: Workers = HERE) -> None:
        self.plan = plan
        self.programs = programs
        self.workers = workers
        self.setups = list(plan.setups(len(programs)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        failures: dict[str, Exception] = {}
        labels = [program.path for program in self.programs]
        with self.workers.opened((self.plan, self.programs), len(self.setups)) as pool:
            bases = list(pool.outcomes(_baseline_task, [(log,) for log in range(len(labels))]))
            for label, base in zip(labels, bases, strict=True):
                if isinstance(base, Failure):
                    failures[f"{label}, without a limit"] = base.error
            setups = [each for each in self.setups if not isinstance(bases[each.log], Failure)]
            runs = pool.outcomes(_run_task, [(setup, bases[setup.log]) for setup in setups])
            for setup, run in zip(setups, runs, strict=True):
                label = labels[setup.log]
                if isinstance(run, Failure):
                    failures[f"{label}, {setup}"] = run.error
                else:
                    yield row(self.plan, setup, label, bases[setup.log], run)
        if failures:
            raise RunsFailed(failures)


_Shared = tuple[Plan, Sequence[Program]]


def _baseline_task(shared: _Shared, log: int) -> Baseline:
    plan, programs = shared
    return baseline(programs[log], plan.semantics, plan.space)


def _run_task(shared: _Shared, setup: Setup, base: Baseline) -> Run:
    plan, programs = shared
    return _run_of(
        plan,
        programs[setup.log],
        setup.heuristic,
        setup.dealloc,
        setup.seed,
        setup.limit.resolve(base.peak_bytes),
        thrash_limit(base.compute, plan.thrash),
    )
