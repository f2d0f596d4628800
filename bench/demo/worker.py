"""One training run in a process of its own, so that its peak resident set is its own.

    python -m bench.demo.worker --job digits --budget plain|unlimited|BYTES

`Run.step` and `Run.end` are the commands, so that runs can take turns; see bench/gpu/remote.py.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

import dtr_alloc
from bench.demo.jobs import JOBS
from bench.gpu.remote import serve
from bench.models.job import Job, digest


def peak_resident_bytes() -> int:
    """The process's largest resident set. Linux's VmHWM begins at exec; ru_maxrss, the fallback,
    may begin with what the parent had."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Run:
    """A job that trains, plain or in a session."""

    def __init__(self, job: str, budget: str, scale: float, device: str) -> None:
        self._is_plain, self._device = budget == "plain", device
        self._budget = int(budget) if budget.isdigit() else budget
        self._make = partial(JOBS[job], scale=scale, device=device)
        self._job: Job | None = None
        self._start_resident_bytes = self._idle_bytes = 0

    def step(self) -> dict[str, Any]:
        """Trains a step: its loss, and its seconds of the processor."""
        job = self._built()
        start = time.process_time()
        loss = job.step(len(job.losses)).item()
        seconds = time.process_time() - start
        if not self._is_plain:
            self._idle_bytes = max(self._idle_bytes, dtr_alloc.stats()["allocated_bytes"])
        return {"loss": loss, "seconds": seconds}

    def _built(self) -> Job:
        if self._job is None:
            if not self._is_plain:
                dtr_alloc.enable(budget=self._budget, device=self._device)
            self._job = self._make()
            self._start_resident_bytes = psutil.Process().memory_info().rss
        return self._job

    def end(self) -> dict[str, Any]:
        """What was measured, and a digest of all that a user could compare."""
        found: dict[str, Any] = {"fits": True, "start_resident_bytes": self._start_resident_bytes}
        found["peak_resident_bytes"] = peak_resident_bytes()
        if not self._is_plain:
            stats = dtr_alloc.stats()
            found["idle_bytes"] = self._idle_bytes
            for key in ("peak_allocated_bytes", "evictions", "rematerializations"):
                found[key] = stats[key]
            dtr_alloc.set_budget("unlimited")  # copying the state takes memory that no step takes
        elif self._device == "cuda":
            found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
        return found | {"digest": digest(self._built().state())}


def bounded(command: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a command says, or that memory ended."""
    try:
        return command()
    except torch.OutOfMemoryError as error:
        return {"fits": False, "message": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description="One training run of the demo.")
    parser.add_argument("--job", choices=sorted(JOBS), required=True)
    parser.add_argument("--budget", required=True, help="plain, unlimited or bytes")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    run = Run(args.job, args.budget, args.scale, args.device)
    serve({"step": partial(bounded, run.step), "end": partial(bounded, run.end)})


if __name__ == "__main__":
    main()
