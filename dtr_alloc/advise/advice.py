"""The advice for a job, in words and tables."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dtr_alloc.advise.suggest import GAIN, WORTH, Suggestion, suggest
from dtr_alloc.advise.where import Call, where
from dtr_alloc.config import format_size
from dtr_alloc.oplog import compile_log
from dtr_alloc.records import Observed
from dtr_alloc.report import console_html, console_text
from dtr_alloc.simulation.executors import cores

_FILLERS = 8
"""Rows of the table of the memory's contents."""
_MAKERS = 3
"""Kept results that are named for one reason."""
_LEAST = 0.01
"""Smaller shares of the peak are left out."""
_NUMBERS = ("size", "share")
"""Columns."""


@dataclasses.dataclass(frozen=True)
class Advice:
    """The observations of a job, and the suggestion. Its text is for users."""

    observed: Observed
    suggestion: Suggestion

    def document(self) -> dict[str, Any]:
        """The same for programs: numbers, texts, lists and dictionaries."""
        document = dataclasses.asdict(self)
        document["observed"]["fullest"] = [each._asdict() for each in self.observed.fullest]
        return document

    def print_to(self, console: Console) -> None:
        for each in self._shown():
            console.print(each)

    def __str__(self) -> str:
        return console_text(self._shown(), width=100)

    def _repr_html_(self) -> str:
        return console_html(self._shown(), width=100)

    def _shown(self) -> list[Table | str]:
        found = self.suggestion
        outlooks = [_outlooks(found)] if found.outlooks else []
        words = _words(self.observed, found)
        stays = _stays(self.observed)
        return [_held(found), _fillers(self.observed), *stays, *outlooks, *words]


def ways_to_fit(budget: object) -> dict[str, Any]:
    """Settings for observed steps under a budget, which may be slow: half of the host's memory is
    for tensors that cannot be recomputed."""
    if budget == "unlimited":
        return {}
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"swap": host_bytes // 2, "thrash": "off"}


def advise(observed: Observed, log: Path) -> Advice:
    """The advice for a job with some logged steps. It takes seconds to a minute."""
    found = suggest(
        compile_log(log),
        observed.peak_bytes,
        observed.held_bytes,
        observed.device,
        observed.chunk_bytes,
        threads=cores(),
        steps=observed.steps,
        step_seconds=observed.step_seconds,
    )
    return Advice(observed, found)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def _table(title: str, columns: Iterable[str], right: Container[str], **options: Any) -> Table:
    table = Table(title=title, **options)
    for column in columns:
        is_number = column in right
        table.add_column(
            column,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    return table


def _held(found: Suggestion) -> Table:
    table = _table("Memory at its peak", ("for", "size", "share"), _NUMBERS, show_header=False)
    kinds = {**found.held_bytes, "activations and workspaces": found.activation_bytes}
    if found.at_peak:
        kinds = dict(found.at_peak.kinds)
    for kind, size in [*kinds.items(), ("all", found.peak_bytes)]:
        if size > _LEAST / 2 * found.peak_bytes:
            table.add_row(kind, format_size(size), _percent(size, found.peak_bytes))
    return table


def _by_call(observed: Observed) -> Counter[tuple[Call, str]]:
    """Bytes by the call that made them, if known, and by the reason why they are kept, or ""."""
    sizes: Counter[tuple[Call, str]] = Counter()
    for entry in observed.fullest:
        if entry.operator:
            site = where(entry)
            sizes[Call(site.operator, site.module, entry.line), entry.why] += entry.size_bytes
    return sizes


def _fillers(observed: Observed) -> Table:
    columns = ("module", "operator", "line", "size")
    table = _table("Its contents, by operator", columns, _NUMBERS)
    sizes: Counter[Call] = Counter()
    for (made, _), size in _by_call(observed).items():
        sizes[made] += size
    for made, size in sizes.most_common(_FILLERS):
        if size > _LEAST * observed.peak_bytes:
            table.add_row(made.module, made.operator, made.line, format_size(size))
    return table


def _stays(observed: Observed) -> Iterator[str]:
    """Kept contents, by reason."""
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for (made, why), size in _by_call(observed).most_common():
        if why and size > _LEAST * observed.peak_bytes:
            found[why].append((size, _called(made)))
    for why, makers in found.items():
        listed = ", ".join(f"{format_size(size)} by {called}" for size, called in makers[:_MAKERS])
        yield f"Never evicted, because {why}: {listed}."


def _outlooks(found: Suggestion) -> Table:
    # So that eighty columns hold the table whole.
    columns = ["budget", "of the\npeak", "of the\nactivations", "first\nsteps", "once\nlearned"]
    is_timed = any(each.seconds for each in found.outlooks)
    title = "Compute of a step, in terms of one without a budget"
    if is_timed:
        columns.append("step")
        title += "; and its time"
    table = _table(title, columns, columns)
    table.columns[-1].no_wrap = True
    for each in found.outlooks:
        later = _times(each.later) + (" (plan)" if each.is_planned else "")
        table.add_row(
            format_size(each.budget_bytes),
            _percent(each.budget_bytes, found.peak_bytes),
            f"{100 * each.share:.0f} %",
            _times(each.first),
            later,
            *([_seconds(*each.seconds)] if each.seconds else []),
            style="bold" if each == found.advised else None,
        )
    return table


def _times(slowness: float | None) -> str:
    return "too slow" if slowness is None else f"{slowness:.2f}"


def _seconds(low: float, high: float) -> str:
    """A range in a unit that suits both; one time, if both are shown alike."""
    unit, factor = ("s", 1) if high >= 1 else ("ms", 1000)
    digits = 2 if factor * high < 10 else 1 if factor * high < 100 else 0
    shown = dict.fromkeys(f"{factor * seconds:.{digits}f}" for seconds in (low, high))
    return f"{' to '.join(shown)} {unit}"


def _mebibytes(size_bytes: int) -> str:
    """Rounded up."""
    return f"{math.ceil(10 * size_bytes / 2**20) / 10:.1f}"


def _called(call: Call) -> str:
    module = f" of {call.module}" if call.module else ""
    return f"{call.operator}{module}" + (f" ({call.line})" if call.line else "")


def _words(observed: Observed, found: Suggestion) -> list[str]:
    if observed.steps == 0 and found.operators == 0:
        return [
            "No step of an optimizer was seen in this process, and nothing that was repeated three "
            "times: what a budget would cost is not known."
        ]
    if found.growth_bytes:
        return [*_seen(observed, found), "Nothing is advised to a job that grows."]
    return [*_seen(observed, found), *_advised(found), *_alternatives(observed, found)]


def _seen(observed: Observed, found: Suggestion) -> Iterator[str]:
    if observed.steps == 0:
        yield (
            f"No step of an optimizer was seen; the {found.operators:,} operators that are "
            "repeated at the end count as one."
        )
    elif found.operators == 0:
        yield (
            f"Steps seen: {observed.steps}; it takes three to see that one is repeated. "
            if observed.steps < 3
            else f"Of {observed.steps} steps none repeats another, and none can be learned. "
        ) + "What was seen last stands for all."
    if found.growth_bytes:
        listed = ", ".join(
            f"{format_size(each.size_bytes)} by {_called(each.made_by)}"
            for each in found.left[:_MAKERS]
        )
        yield (
            f"Each step leaves {format_size(found.growth_bytes)} more allocated than the one "
            f"before, so no budget is enough for long: {listed}. Something keeps a result of each "
            "step, such as a list of losses. loss.item() keeps nothing; loss.detach() keeps the "
            "memory."
        )
    if times := observed.step_seconds:
        yield f"Without a budget a step took {_seconds(min(times), max(times))}."
    seen = f"the first {observed.steps + len(times)} steps" if observed.steps else "what ran so far"
    yield (
        f"Only {seen} were seen. What comes later may need more: an evaluation, a checkpoint, a "
        "larger batch of a later epoch."
    )


def _advised(found: Suggestion) -> Iterator[str]:
    needs = f": {_called(found.limit)} needs that much at once." if found.limit else "."
    advised = found.advised
    if advised is None:
        idle = sum(found.held_bytes.values())
        yield f"No budget is advised: none that works saves {100 * GAIN:.0f} % of the peak" + needs
        if idle > 0.5 * found.peak_bytes:
            yield (
                f"{_percent(idle, found.peak_bytes)} of the peak is held between steps and never "
                "computed again: parameters and what belongs to them fill it, and a budget is not "
                "for this job."
            )
        return
    smallest = _mebibytes(found.outlooks[-1].budget_bytes)
    yield f"The smallest budget found is {smallest} MiB{needs}"
    reason = (
        f"the smallest at which a step computes at most {WORTH:g} times as much"
        if advised.later <= WORTH
        else "the cheapest that saves memory"
    )
    by = "with a plan that was found and played" if advised.is_planned else "without a plan"
    yield (
        f"Advised: DTR_ALLOC_BUDGET={_mebibytes(advised.budget_bytes)}MiB, {reason} "
        f"({_times(advised.later)}, {by})."
    )
    yield (
        "If activations grow with the batch and nothing else does, a batch "
        f"{1 / advised.share:.1f} times as large fits into the peak of today, "
        f"{format_size(found.peak_bytes)}."
    )


def _alternatives(observed: Observed, found: Suggestion) -> Iterator[str]:
    """Other ways to save memory, instead of a budget or with one."""
    peak_bytes, seen = found.peak_bytes, found.at_peak
    states = found.held_bytes.get("optimizer states", 0)
    model = states + sum(found.held_bytes.get(kind, 0) for kind in ("parameters", "gradients"))
    if model > (0.1 if found.advised is None else 0.5) * peak_bytes:
        yield (
            f"Parameters, gradients and optimizer states fill {format_size(model)}. Sharding "
            f"(FSDP2) over two processes takes {format_size(model // 2)} off each."
            + (f" DTR_ALLOC_SWAP keeps {format_size(states)} of states in host memory between "
               "steps, and copies them twice a step." if states else "")
        )  # fmt: skip
    if seen and seen.optimizer_bytes > _LEAST * peak_bytes:
        saved = peak_bytes - seen.fused_peak_bytes
        yield (
            f"The optimizer's step makes {format_size(seen.optimizer_bytes)} for itself. Adam, "
            "AdamW, SGD and Adagrad with fused=True make nothing"
            + (f": the peak is {format_size(saved)} lower then." if saved else ".")
        )
    if seen and (blocks := seen.blocks):
        saved = blocks.size_bytes - blocks.kept_bytes
        if saved > 0.1 * peak_bytes:
            yield (
                f"By hand: torch.utils.checkpoint around each of the modules {blocks.modules} "
                f"keeps {format_size(blocks.kept_bytes)} of the {format_size(blocks.size_bytes)} "
                f"that they make, and computes up to {100 * blocks.compute:.0f} % of a step "
                "again."
            )
    if observed.is_float32 and (half := found.activation_bytes // 2) > _LEAST * peak_bytes:
        yield (
            "With other results: parameters are float32, and torch.autocast to bfloat16 halves "
            f"what matrix products make and save: {format_size(half)} at most."
        )
