"""Whether `dtr-alloc suggest` is right: what it says of jobs, beside what is measured of them.

    python -m bench.suggest [--job NAME]... [--smoke] [--json PATH]

Jobs of frameworks are among them where those are installed (`make frameworks` installs them).
Of each job a row has the smallest budget that is suggested and the smallest that trains at most
SLOWEST times as slowly, found by bisection; and for some of the budgets that suggest lists, as
predicted and as it was, the compute of the first STEPS steps, and at LEARNED of as many once the
step was learned, over the job's own, and the median time of these steps beside the range that is
stated; all as the median of ROUNDS. A step that is not learned in MOST_STEPS has no second part. Of
the times it is counted how many lie in their range. A machine with other work has no one time for a
step; so it is also counted how many slowdowns lie in that range, in terms of the steps that
`suggest` saw: in processor time, over steps without a budget just before.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from rich.markdown import Markdown

import dtr_alloc
from bench import results
from bench.measure import Profile, forget_broken_backward
from bench.smallest_budget import bisect
from bench.suggest_worker import FRAMEWORKS, NAMES, train
from dtr_alloc.advise.suggest import SLOWEST

STEPS = 8
MOST_STEPS = 48
ROUNDS = 3
"""With and without a budget by turns."""
SHARES = (0.7, 0.5, 0.3)
"""Of the activation memory, at which costs are measured."""
LEARNED = 0.5
"""Where it is waited for what is learned."""
RESOLUTION = 0.0025
"""Of the activation memory, for the smallest budget."""
SCALED = ("mlp", "resnet", "transformer", "unet", "densenet", "accumulation", "autocast")
"""Jobs that are tried with a batch of twice the size, too."""
FULL_STEPS = 10_000
"""More than `suggest` waits for."""


class NotInstalled(Exception):
    """A job's framework."""


class _Enough(Exception):
    pass


def _suggested(name: str, scale: float) -> dict[str, Any]:
    """The document, but what fills the memory."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        options = ["--device", "cpu", "--json", str(found), "-m", "bench.suggest_worker"]
        job = [name, str(scale), str(FULL_STEPS)]
        command = [sys.executable, "-m", "dtr_alloc.cli", "suggest", *options, *job]
        ended = subprocess.run(command, capture_output=True, text=True)
        if name in FRAMEWORKS and "ModuleNotFoundError" in ended.stderr:
            raise NotInstalled(ended.stderr.strip().rsplit("\n", 1)[-1])
        if ended.returncode:
            raise RuntimeError(f"{name}: {ended.stderr}")
        document: dict[str, Any] = json.loads(found.read_text())
        return document["suggestion"] | {"times": document["observed"]["step_seconds"]}


def _clocks() -> tuple[float, float]:
    """Of the wall, and of the processor in this thread, which runs the operators."""
    return time.perf_counter(), time.thread_time()


class _Steps:
    """The steps of one run: a counter of all at the end of each, and their times."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.ends = [_clocks()]
        self.counters: list[dict[str, Any]] = []
        self._last: int | None = None

    def ended(self) -> None:
        self.ends.append(_clocks())
        self.counters.append(dtr_alloc.stats())
        count = len(self.counters)
        if count >= STEPS and self._last is None and self._is_learned():
            self._last = count + STEPS
        if count >= (self._most if self._last is None else min(self._last, self._most + STEPS)):
            raise _Enough

    def _is_learned(self) -> bool:
        return self._most > STEPS and bool(self.counters[-1]["learned"])

    def first(self) -> dict[str, float]:
        return self._of(1, STEPS)

    def later(self) -> dict[str, float] | None:
        """None: no step was learned in time."""
        count = len(self.counters)
        return None if self._last is None else self._of(count - STEPS, count)

    def _of(self, begin: int, end: int) -> dict[str, float]:
        """Of these steps, the computed in terms of the job's own, and the median times of one."""
        own, again = (
            self.counters[end - 1][key] - self.counters[begin - 1][key]
            for key in ("total_cost_seconds", "recompute_cost_seconds")
        )
        seconds, cpu_seconds = (
            median(each[clock] - last[clock] for last, each in pairwise(self.ends[begin : end + 1]))
            for clock in (0, 1)
        )
        return {"computed": 1 + again / own, "seconds": seconds, "cpu_seconds": cpu_seconds}


def _train(name: str, scale: float, budget: int | str, most: int = STEPS) -> _Steps | None:
    """Steps under a budget; None: it does not work."""
    gc.collect()
    steps = _Steps(most)
    # What frameworks print is none of the results.
    with dtr_alloc.session(budget, device="cpu"), redirect_stdout(sys.stderr):
        dtr_alloc.reset_peak_stats()
        try:
            train(name, scale, FULL_STEPS, steps.ended)
        except _Enough:
            pass
        except torch.OutOfMemoryError:
            return None
        finally:
            forget_broken_backward()
    return steps


def _costs(name: str, scale: float, outlooks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for outlook in outlooks:
        share = min(SHARES, key=lambda share: abs(share - outlook["share"]))
        if abs(share - outlook["share"]) > 0.01 or outlook["first"] is None:
            continue
        most = MOST_STEPS if share == LEARNED else STEPS
        first: list[dict[str, float] | None] = []
        later: list[dict[str, float] | None] = []
        for _ in range(ROUNDS):
            free = _train(name, scale, "unlimited")
            assert free is not None
            own = free.first()["cpu_seconds"]
            steps = _train(name, scale, outlook["budget_bytes"], most)
            for found, of in (
                (first, steps.first() if steps else None),
                (later, steps.later() if steps else None),
            ):
                found.append(of and of | {"slowdown": of["cpu_seconds"] / own})
        yield {
            "share": share,
            "predicted": {"first": outlook["first"], "later": outlook["later"]},
            "seconds": outlook["seconds"],
            "first": _medians(first),
            "later": _medians(later),
        }


def _medians(rounds: list[dict[str, float] | None]) -> dict[str, float] | None:
    """None: one of the rounds has no such steps."""
    rows = [row for row in rounds if row is not None]
    if len(rows) < len(rounds):
        return None
    return {name: median(row[name] for row in rows) for name in rows[0]}


def measure(name: str, scale: float) -> dict[str, Any]:
    """The row of a job. Raises NotInstalled."""
    suggestion = _suggested(name, scale)
    free = _train(name, scale, "unlimited")
    assert free is not None
    shape = Profile(
        max(each["allocated_bytes"] for each in free.counters),
        free.counters[-1]["peak_allocated_bytes"],
    )
    outlooks = suggestion["outlooks"]
    costs = list(_costs(name, scale, outlooks))

    def train_bearably(budget: int) -> _Steps | None:
        """A short step may take longer than SLOWEST before the engine ends the job."""
        steps = _train(name, scale, budget)
        return steps if steps and steps.first()["computed"] <= SLOWEST else None

    worked = bisect(shape, RESOLUTION, train_bearably)
    return {
        "job": name,
        "scale": scale,
        "peak_bytes": shape.peak_bytes,
        "suggested_peak_bytes": suggestion["peak_bytes"],
        "smallest_bytes": worked[-1][0] if worked else shape.peak_bytes,
        "suggested_smallest_bytes": outlooks[-1]["budget_bytes"] if outlooks else None,
        "resolution_bytes": int(RESOLUTION * shape.activation_bytes),
        "step_seconds": free.first()["seconds"],
        "suggested_step_seconds": suggestion["times"],
        "costs": costs,
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """How many predictions were right."""
    smallest, computed, timed, slowed, close = [], [], [], [], []
    for row in rows:
        if row["suggested_smallest_bytes"] is not None:
            smallest.append(abs(row["suggested_smallest_bytes"] / row["smallest_bytes"] - 1) < 0.05)
        for cost in row["costs"]:
            for when in ("first", "later"):
                was, predicted = cost[when], cost["predicted"][when]
                if was and predicted:
                    computed.append(abs(predicted / was["computed"] - 1) < 0.1)
                if was and cost["seconds"]:
                    low, high = cost["seconds"]
                    timed.append(low <= was["seconds"] <= high)
                    own = median(row["suggested_step_seconds"])
                    slowed.append(low / own <= was["slowdown"] <= high / own)
                    close.append(abs((low + high) / 2 / own / was["slowdown"] - 1) < 0.1)
    return "; ".join(
        f"{what}: {sum(right)} of {len(right)}"
        for what, right in (
            ("smallest budget within 5 %", smallest),
            ("compute within 10 %", computed),
            ("step time within its range", timed),
            ("slowdown within its range", slowed),
            ("within 10 % of the middle of it", close),
        )
    )


def markdown(document: dict[str, Any]) -> str:
    """The table of the site, and the summary."""
    lines = [
        f"| job | smallest, MiB | {' | '.join(map(str, SHARES))} | learned, {LEARNED} |",
        f"|---|---|{'---|' * len(SHARES)}---|",
    ]
    for row in document["results"]:
        said, is_so = row["suggested_smallest_bytes"], row["smallest_bytes"]
        smallest = "none" if said is None else f"{said / results.MIB:.2f}"
        costs = {each["share"]: each for each in row["costs"]}
        cells = [_compute(costs.get(share), "first") for share in SHARES]
        cells.append(_compute(costs.get(LEARNED), "later"))
        name = row["job"] + (f" x {row['scale']:g}" if row["scale"] != 1 else "")
        lines.append(f"| {name} | {smallest} / {is_so / results.MIB:.2f} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", summary(document["results"]).capitalize() + ".", ""])


def _compute(cost: dict[str, Any] | None, when: str) -> str:
    """As predicted and as it was."""
    if cost is None or (when == "later" and cost["first"] and cost["later"] is None):
        return "-"
    predicted, was = cost["predicted"][when], cost[when]
    said = "too slow" if predicted is None else f"{predicted:.2f}"
    return f"{said} / {was['computed']:.2f}" if was else f"{said} / fails"


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(NAMES), help="Default: all.")
@results.options("One job.")
def main(jobs: tuple[str, ...], path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    names = jobs or (("mlp",) if smoke else NAMES)
    cells = [(name, 1.0) for name in names]
    if not smoke:
        cells += [(name, 2.0) for name in names if name in SCALED]
    console = results.console()
    rows, skipped = [], {}
    for name, scale in cells:
        with console.status(f"{name} x {scale:g}"):
            try:
                rows.append(measure(name, scale))
            except NotInstalled as error:
                skipped[name] = str(error)
                console.print(f"{name} is skipped: {error}")
    document = results.environment("cpu", 0) | {"bench": "suggest", "steps": STEPS}
    document |= {"skipped": skipped, "results": rows}
    if path:
        results.write_json(document, path)
    console.print(Markdown(markdown(document)))


if __name__ == "__main__":
    main()
