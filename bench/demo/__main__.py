"""Train two real jobs without a budget and under budgets down to the smallest that works.

    python -m bench.demo [--job digits|gpt] [--steps N] [--smoke] [--json PATH] [--out FOLDER]

Every run is a process of its own. Each trains from the same seed; a digest of losses, gradients,
parameters, buffers, optimizer state and generator states says whether the bits are the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress, TaskID

from bench import results
from bench.demo import report
from bench.demo.worker import JOBS, SAMPLED_STEPS

ROOT = Path(__file__).parents[2]
FRACTIONS = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
BISECTIONS = 2
TOO_SLOW = 10.0  # times the plain step: below such a budget training works, but takes minutes


class Runner:
    """Starts runs of one job and completes their rows."""

    def __init__(self, job: str, args: argparse.Namespace, device: str, bar: Progress) -> None:
        self.job, self.args, self.device, self.bar = job, args, device, bar
        self.rows: list[dict[str, Any]] = []

    def start(self, budget: str, task: TaskID) -> dict[str, Any]:
        """One worker's last line, its steps shown as they come."""
        args = self.args
        options = ["--job", self.job, "--budget", budget, "--steps", str(args.steps)]
        options += ["--scale", str(args.scale), "--device", self.device, "--seed", str(args.seed)]
        options += ["--threads", str(args.threads)]
        command = [sys.executable, "-m", "bench.demo.worker", *options]
        last: dict[str, Any] = {}
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = json.loads(line)
                self.bar.advance(task)
        if process.returncode or "fits" not in last:
            raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
        return last

    def run(self, label: str, fraction: float | None = None) -> dict[str, Any]:
        """Train under what `label` says (plain, unlimited or bytes) and add the row."""
        size = int(label) if label.isdigit() else None
        shown = label if size is None else f"{size / results.MIB:.1f} MiB"
        task = self.bar.add_task(f"{self.job:8} {shown:>12}", total=self.args.steps + 1)
        found = self.start(label, task)
        row: dict[str, Any] = {"label": label, "budget_bytes": size, "fraction": fraction}
        for key in ("peak_allocated_bytes", "peak_resident_bytes", "step_seconds"):
            row[key] = None
        row |= {"evictions": 0, "rematerializations": 0, "timeline": []} | found
        plain = self.rows[0] if self.rows else row
        row["same_bits"] = found.get("digest") == plain["digest"]
        row["slowdown"] = row["step_seconds"] / plain["step_seconds"] if row["fits"] else None
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
    parser.add_argument("--steps", type=int, default=6, help="per run, at least 4")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on batch sizes")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="of an operator on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for pictures, JSON")
    parser.add_argument("--json", metavar="PATH", help="write results there too, - for stdout")
    parser.add_argument("--smoke", action="store_true", help="small batches, one budget")
    args = parser.parse_args()
    if args.steps < SAMPLED_STEPS + 2:
        parser.error("--steps must be at least 4: one to warm up, one to time, two to sample")
    if args.smoke:
        args.steps, args.scale = 4, 0.1
    torch.set_num_threads(args.threads)
    device = results.pick_device(args.device)
    console = results.console()
    found = []
    for job in args.job or list(JOBS):
        with Progress(console=console) as bar:
            result = Runner(job, args, device, bar).result()
        console.print(report.table(result))
        report.picture(result, args.out / f"demo_{job}.png")
        console.print(f"Picture: {args.out / f'demo_{job}.png'}")
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
