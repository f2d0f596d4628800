"""Train two real jobs without a budget and under budgets down to the smallest that works.

    python -m bench.demo [--job digits|gpt] [--steps N] [--smoke] [--json PATH] [--out FOLDER]

Every run is a process of its own. Each trains from the same seed; a digest of losses, gradients,
parameters, buffers, optimizer state and generator states says whether the bits are the same. Steps
under a budget take turns with steps of plain PyTorch, and processor time is compared, so that it
hardly matters what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.progress import Progress

from bench import results
from bench.demo import report
from bench.demo.worker import JOBS

ROOT = Path(__file__).parents[2]
FRACTIONS = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
BISECTIONS = 2
TOO_SLOW = 10.0  # times the plain step: below such a budget training works, but takes minutes


class Worker:
    """A run, which takes a step when it is told to. What it writes on stderr, such as that a budget
    is small, is shown if it fails."""

    def __init__(self, job: str, budget: str, args: argparse.Namespace, device: str) -> None:
        options = ["--job", job, "--budget", budget, "--steps", str(args.steps)]
        options += ["--scale", str(args.scale), "--device", device, "--seed", str(args.seed)]
        options += ["--threads", str(args.threads)]
        self.command = [sys.executable, "-m", "bench.demo.worker", *options]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (close() does)
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def step(self) -> dict[str, Any]:
        """What it says of its next step, or, where memory ended, of that."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and says why
            print(file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next object that it writes. Raises SystemExit if it ended instead."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            return said
        status = self.process.wait()
        self.errors.seek(0)
        raise SystemExit(
            f"{' '.join(self.command)} failed with status {status}:\n{self.errors.read()}"
        )

    def close(self) -> None:
        """Ends the process."""
        with suppress(BrokenPipeError):
            self.process.communicate()
        self.errors.close()


class Runner:
    """Makes the runs of one job, and their rows."""

    def __init__(self, job: str, args: argparse.Namespace, device: str, bar: Progress) -> None:
        self.job, self.args, self.device, self.bar = job, args, device, bar
        self.rows: list[dict[str, Any]] = []
        self.plain: Worker | None = None

    def run(self, label: str, fraction: float | None = None) -> dict[str, Any]:
        """Train under what `label` says (plain, unlimited or bytes) and add the row."""
        size = int(label) if label.isdigit() else None
        shown = label if size is None else f"{size / results.MIB:.1f} MiB"
        task = self.bar.add_task(f"{self.job:8} {shown:>12}", total=self.args.steps + 1)
        worker = Worker(self.job, label, self.args, self.device)
        seconds, ratios, said = [], [], {}
        for _ in range(self.args.steps):
            said = worker.step()
            if "fits" in said:
                break
            seconds.append(said["seconds"])
            plain = seconds[-1] if self.plain is None else self.plain.step()["seconds"]
            ratios.append(seconds[-1] / plain)
            self.bar.advance(task)
        found = said if "fits" in said else worker.answer()
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
        self.bar.update(task, completed=self.args.steps + 1)
        self.rows.append(row)
        return row

    def descend(self, idle: int, activations: int) -> Iterator[tuple[str, float]]:
        """Budgets downward to the first that fails or is too slow; after a failure, between the
        last two."""
        works, fails = 1.0, 0.0
        for fraction in (0.5,) if self.args.smoke else FRACTIONS:
            yield str(idle + int(fraction * activations)), fraction
            if not self.rows[-1]["fits"]:
                fails = fraction
                break
            if self.rows[-1]["slowdown"] > TOO_SLOW:
                return
            works = fraction
        for _ in range(0 if self.args.smoke else BISECTIONS):
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
        with closing(self.plain):
            free = self.run("unlimited")
            idle = free["idle_bytes"]
            activations = free["peak_allocated_bytes"] - idle
            for label, fraction in self.descend(idle, activations):
                self.run(label, fraction)
        self.rows[2:] = sorted(self.rows[2:], key=lambda row: -row["budget_bytes"])
        memory = {"idle_bytes": idle, "activation_bytes": activations}
        return {"job": self.job} | memory | {"runs": self.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Two real jobs under smaller and smaller budgets.")
    parser.add_argument("--job", action="append", choices=sorted(JOBS), help="default: both")
    parser.add_argument("--steps", type=int, default=6, help="per run, at least 2")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on batch sizes")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="of an operator on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for JSON")
    parser.add_argument("--json", metavar="PATH", help="write results there too, - for stdout")
    parser.add_argument("--smoke", action="store_true", help="small batches, one budget")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: one to warm up, one to time")
    if args.smoke:
        args.steps, args.scale = 4, 0.1
    torch.set_num_threads(args.threads)
    device = results.pick_device(args.device)
    console = results.console()
    found = []
    console.print(
        "Each job trains plainly, and then under smaller and smaller budgets, in turns with plain "
        "steps: some minutes a job."
    )
    for job in args.job or list(JOBS):
        with Progress(console=console) as bar:
            result = Runner(job, args, device, bar).result()
        console.print(report.table(result))
        console.print(report.summary(result))
        found.append(result)
    document = results.environment(device, args.seed) | {"bench": "demo", "steps": args.steps}
    document |= {"scale": args.scale, "jobs": found}
    results.write_json(document, str(args.out / "demo.json"))
    if args.json:
        results.write_json(document, args.json)
    if not all(row["same_bits"] for result in found for row in result["runs"] if row["fits"]):
        raise SystemExit("some bits differ")


if __name__ == "__main__":
    main()
