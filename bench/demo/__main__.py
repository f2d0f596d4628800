"""Train two real jobs without a budget and under budgets down to the smallest that works.

    python -m bench.demo [--job digits|gpt] [--steps N] [--smoke] [--json PATH]

Every run is a process of its own. Each trains from the same seed; a digest of losses, gradients,
parameters, buffers, optimizer state and generator states says whether the bits are the same. Steps
under a budget take turns with steps of plain PyTorch, and processor time is compared, so that it
hardly matters what else the machine does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from statistics import median
from typing import IO, Any

import click
from rich.progress import Progress

from bench import results
from bench.demo import report
from bench.demo.worker import JOBS
from bench.gpu.remote import Remote

FRACTIONS = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
BISECTIONS = 2
TOO_SLOW = 10.0  # times the plain step: below such a budget training works, but takes minutes
SMOKE_STEPS, SMOKE_SCALE = 4, 0.1


class Runner:
    """Makes the runs of one job, and their rows.

    Args:
        errors: the file of what the runs write on standard error, such as that a budget is small.
    """

    def __init__(
        self, job: str, steps: int, smoke: bool, device: str, bar: Progress, errors: IO[str]
    ) -> None:
        self.job, self.steps, self.smoke, self.bar = job, steps, smoke, bar
        self.device, self.errors = device, errors
        self.rows: list[dict[str, Any]] = []
        self.plain: Remote | None = None

    def run(self, label: str, fraction: float | None = None) -> dict[str, Any]:
        """Train under what `label` says (plain, unlimited or bytes) and add the row."""
        size = int(label) if label.isdigit() else None
        shown = label if size is None else f"{size / results.MIB:.1f} MiB"
        task = self.bar.add_task(f"{self.job:8} {shown:>12}", total=self.steps + 1)
        options = ["--job", self.job, "--budget", label, "--device", self.device]
        options += ["--scale", str(SMOKE_SCALE)] if self.smoke else []
        worker = Remote("bench.demo.worker", *options, stderr=self.errors)
        seconds, ratios, said = [], [], {}
        for _ in range(self.steps):
            said = worker.need("step")
            if "fits" in said:
                break
            seconds.append(said["seconds"])
            plain = seconds[-1] if self.plain is None else self.plain.need("step")["seconds"]
            ratios.append(seconds[-1] / plain)
            self.bar.advance(task)
        found = said if "fits" in said else worker.need("end")
        row: dict[str, Any] = {"label": label, "budget_bytes": size, "fraction": fraction}
        for key in ("peak_allocated_bytes", "peak_resident_bytes", "step_seconds", "slowdown"):
            row[key] = None
        row |= {"evictions": 0, "rematerializations": 0} | found
        row["same_bits"] = found.get("digest") == (self.rows or [row])[0]["digest"]
        if row["fits"]:
            row["step_seconds"] = median(seconds[1:])
            row["slowdown"] = median(ratios[1:])
        if self.plain is None:
            self.plain = worker
        else:
            worker.close()
        self.bar.update(task, completed=self.steps + 1)
        self.rows.append(row)
        return row

    def descend(self, idle: int, activations: int) -> Iterator[tuple[str, float]]:
        """Budgets downward to the first that fails or is too slow; after a failure, between the
        last two."""
        works, fails = 1.0, 0.0
        for fraction in (0.5,) if self.smoke else FRACTIONS:
            yield str(idle + int(fraction * activations)), fraction
            if not self.rows[-1]["fits"]:
                fails = fraction
                break
            if self.rows[-1]["slowdown"] > TOO_SLOW:
                return
            works = fraction
        for _ in range(0 if self.smoke else BISECTIONS):
            fraction = (works + fails) / 2
            yield str(idle + int(fraction * activations)), fraction
            if self.rows[-1]["fits"]:
                works = fraction
            else:
                fails = fraction

    def result(self) -> dict[str, Any]:
        """All runs of the job, the largest budget first."""
        self.run("plain")
        assert self.plain is not None
        with self.plain:
            free = self.run("unlimited")
            idle = free["idle_bytes"]
            activations = free["peak_allocated_bytes"] - idle
            for label, fraction in self.descend(idle, activations):
                self.run(label, fraction)
        self.rows[2:] = sorted(self.rows[2:], key=lambda row: -row["budget_bytes"])
        memory = {"idle_bytes": idle, "activation_bytes": activations}
        return {"job": self.job} | memory | {"runs": self.rows}


@click.command(help="Two real jobs under smaller and smaller budgets.")
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: both.")
@click.option("--steps", default=6, type=click.IntRange(2), help="Of a run; the first warms up.")
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@results.options("Small batches, one budget.")
def main(jobs: tuple[str, ...], steps: int, device: str, path: str | None, smoke: bool) -> None:
    steps = SMOKE_STEPS if smoke else steps
    device = results.pick_device(device)
    console = results.console()
    found = []
    console.print(
        "Each job trains plainly, and then under smaller and smaller budgets, in turns with plain "
        "steps: some minutes a job."
    )
    for job in jobs or JOBS:
        with Progress(console=console) as bar, tempfile.TemporaryFile("w+") as errors:
            try:
                result = Runner(job, steps, smoke, device, bar, errors).result()
            except RuntimeError as error:
                errors.seek(0)
                raise SystemExit(f"{error}\n{errors.read()}") from None
        console.print(report.table(result))
        console.print(report.summary(result))
        found.append(result)
    if path:
        document = results.environment(device, 0) | {"bench": "demo", "steps": steps}
        document |= {"scale": SMOKE_SCALE if smoke else 1.0, "jobs": found}
        results.write_json(document, path)
    if not all(row["same_bits"] for result in found for row in result["runs"] if row["fits"]):
        raise SystemExit("some bits differ")


if __name__ == "__main__":
    main()
