"""What is advised to a job, in words and tables; and the advice for a step in the job itself."""

from __future__ import annotations

import dataclasses
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from dtr_alloc.config import format_size
from dtr_alloc.lab.executors import cores
from dtr_alloc.lab.suggest import WORTH, Limit, Suggestion
from dtr_alloc.lab.suggest import suggest as _play
from dtr_alloc.lab.where import bytes_by_place, bytes_of_blocks
from dtr_alloc.oplog import compile_log
from dtr_alloc.report import console_html

if TYPE_CHECKING:
    from dtr_alloc.torch.observe import Observed

_FILLERS = 8
"""Rows of what fills the memory."""


@dataclasses.dataclass(frozen=True)
class Advice:
    """What was seen of a job, and what is suggested. As text it is what a user reads."""

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
        text = io.StringIO()
        self.print_to(Console(file=text, markup=False, width=100, force_jupyter=False))
        return text.getvalue()

    def _repr_html_(self) -> str:
        return console_html(self._shown(), width=100)

    def _shown(self) -> list[Table | str]:
        found = self.suggestion
        fillers = [_fillers(self.observed)] if self.observed.fullest else []
        return [_held(found), *fillers, _outlooks(found), *_words(self.observed, found)]


def ways_to_fit(budget: object) -> dict[str, object]:
    """Settings for steps that are to be seen, however slow they are, under a budget: with half of
    the host's memory for what cannot be computed again."""
    if budget == "unlimited":
        return {}
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"swap": host_bytes // 2, "thrash": "off"}


def advise(observed: Observed, log: Path) -> Advice:
    """The advice for a job of which some steps were logged. It takes seconds to a minute."""
    found = _play(
        compile_log(log),
        observed.peak_bytes,
        observed.held_bytes,
        observed.device,
        observed.chunk_bytes,
        threads=cores(),
    )
    return Advice(observed, found)


def suggest(
    step: Callable[[], object],
    *,
    steps: int = 5,
    device: str = "auto",
    budget: object = "unlimited",
) -> Advice:
    """Makes training steps, and says which budget the job could do with.

    Args:
        step: makes one whole step, such as forward, backward and the optimizer's; it is called
            ``steps`` times. The model may have been made before.
        steps: 3 and more, as a step is known once it has been seen three times.
        device: as of dtr_alloc.enable(). On CUDA nothing may have used the device yet.
        budget: under which they are made, where there is no room for them without. What cannot be
            computed again may go to host memory then.

    Returns what ``dtr-alloc suggest`` prints: ``print(dtr_alloc.suggest(step))``. Raises ValueError
    for fewer steps, what enable() raises, and what the steps do.
    """
    from dtr_alloc.torch.api import session
    from dtr_alloc.torch.observe import observe

    if steps < 3:
        raise ValueError(f"steps is {steps}; allowed: 3 and more")
    with tempfile.TemporaryDirectory(prefix="dtr-alloc-") as folder:
        log = Path(folder) / "steps.log"
        with session(budget, device=device, log=str(log), **ways_to_fit(budget)):
            for _ in range(steps):
                step()
            observed = observe()
        return advise(observed, log)


def _held(found: Suggestion) -> Table:
    table = Table(title="Memory at its peak", show_header=False)
    table.add_column("for")
    table.add_column("size", justify="right")
    table.add_column("share", justify="right")
    kinds = {**found.held_bytes, "activations and workspaces": found.activation_bytes}
    for kind, size in [*kinds.items(), ("all", found.peak_bytes)]:
        if size:
            table.add_row(kind, format_size(size), f"{100 * size / found.peak_bytes:.0f} %")
    return table


def _fillers(observed: Observed) -> Table:
    table = Table(title="What fills it, by what made it", show_header=False)
    for name in ("module", "operator", "size"):
        table.add_column(name, justify="right" if name == "size" else "left")
    made = (entry for entry in observed.fullest if entry.operator)
    for (place, is_kept), size in bytes_by_place(made)[:_FILLERS]:
        operator = f"{place.operator} (cannot be evicted)" if is_kept else place.operator
        table.add_row(place.module, operator, format_size(size))
    return table


def _outlooks(found: Suggestion) -> Table:
    table = Table(title="Compute of a step, in terms of one without a budget")
    for column in ("budget", "of the peak", "of the activations", "first steps", "once learned"):
        table.add_column(column, justify="right")
    for each in found.outlooks:
        later = _times(each.later) + (" (plan)" if each.is_planned else "")
        table.add_row(
            format_size(each.budget_bytes),
            f"{100 * each.budget_bytes / found.peak_bytes:.0f} %",
            f"{100 * each.share:.0f} %",
            _times(each.first),
            later,
            style="bold" if each == found.advised else None,
        )
    return table


def _times(slowness: float | None) -> str:
    return "too slow" if slowness is None else f"{slowness:.2f}"


def _alternatives(observed: Observed, found: Suggestion) -> list[str]:
    """What would take less without a budget, or beside one."""
    words = []
    blocks, size = bytes_of_blocks(observed.fullest)
    if size > 0.3 * found.activation_bytes:
        words.append(
            f"By hand: {format_size(size)} are made in the modules {blocks}; of that "
            "torch.utils.checkpoint around each keeps what one of them makes and the inputs of "
            "all, and runs each twice in a step."
        )
    if observed.is_float32:
        words.append(
            "With other results: all is float32, and torch.autocast to bfloat16 halves what matrix "
            f"products make and save: {format_size(found.activation_bytes // 2)} at most."
        )
    return words


def _called(limit: Limit) -> str:
    module = f" of {limit.module}" if limit.module else ""
    return f"{limit.operator}{module}" + (f" ({limit.line})" if limit.line else "")


def _words(observed: Observed, found: Suggestion) -> list[str]:
    words = []
    if found.operators == 0:
        words.append(
            f"No step was repeated in {observed.steps} of the optimizer's; what was seen last "
            "stands for it, and nothing can be learned of steps that all differ."
        )
    idle = sum(found.held_bytes.values())
    if found.advised is None or found.activation_bytes < 0.2 * found.peak_bytes:
        words.append(
            f"{100 * idle / found.peak_bytes:.0f} % of the peak is held between steps, which is "
            "never computed again: a budget gains little here. Sharding, or swapping to host "
            "memory (DTR_ALLOC_SWAP), may."
        )
    if found.held_bytes.get("optimizer states", 0) > 0.3 * found.peak_bytes:
        words.append(
            "Much of it is the optimizer's states: an optimizer with smaller ones, or sharding "
            "(FSDP, ZeRO), saves what no budget can."
        )
    if found.advised is None:
        return words
    least = found.outlooks[-1]
    words.append(
        f"The smallest budget found is {format_size(least.budget_bytes)}"
        + (f": {_called(found.limit)} needs that much at once." if found.limit else ".")
    )
    if found.limit and found.limit.operator.startswith("aten._foreach_"):
        words.append(
            "That is the optimizer's step over all parameters at once: with fused=True, or "
            "foreach=False, it needs less."
        )
    advised = found.advised
    assert advised.later is not None
    reason = (
        f"the smallest at which a step computes at most {WORTH:g} times as much"
        if advised.later <= WORTH
        else "the cheapest that saves memory"
    )
    words.append(
        f"Advised: DTR_ALLOC_BUDGET={advised.budget_bytes // 2**20}MiB, {reason} "
        f"({_times(advised.later)})."
    )
    if advised.share < 1:
        words.append(
            "If activations grow with the batch and nothing else does, a batch "
            f"{1 / advised.share:.1f} times as large fits into the peak of today, "
            f"{format_size(found.peak_bytes)}."
        )
    return words + _alternatives(observed, found)
