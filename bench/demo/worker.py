"""One training run in a process of its own, so that its peak resident set is its own.

    yes | python -m bench.demo.worker --job digits --budget plain|unlimited|BYTES

Takes a step for each line of its input, so that runs can take turns, and writes JSON objects, one a
line: after each step ``{"step": i, "loss": x, "seconds": s}``, in seconds of the processor, and
after the last one an object with ``"fits"`` and what was measured. For further lines it takes
further steps, of which it only says how long they took.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch

import dtr_alloc
from bench.demo.jobs import JOBS
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


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def timed_step(job: Job, i: int) -> None:
    """Takes the step when told to, and says what it took; nothing after the end of the input."""
    if not sys.stdin.readline():
        raise SystemExit
    start = time.process_time()
    loss = job.step(i).item()
    say({"step": i, "loss": loss, "seconds": time.process_time() - start})


def run(name: str, budget: str, steps: int, scale: float, device: str, seed: int) -> None:
    plain = budget == "plain"
    session: AbstractContextManager[Any] = nullcontext()
    if not plain:
        limit: int | str = int(budget) if budget.isdigit() else budget
        session = dtr_alloc.session(budget=limit, device=device)
    found: dict[str, Any] = {"fits": True}
    with session:
        job = JOBS[name](scale=scale, device=device, seed=seed)
        found["start_resident_bytes"] = psutil.Process().memory_info().rss
        idle = 0
        for i in range(steps):
            timed_step(job, i)
            if not plain:
                idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
        found["peak_resident_bytes"] = peak_resident_bytes()
        if not plain:
            stats = dtr_alloc.stats()
            found["idle_bytes"] = idle
            for key in ("peak_allocated_bytes", "evictions", "rematerializations"):
                found[key] = stats[key]
        elif device == "cuda":
            found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
        say(found | {"digest": digest(job.state())})
        while True:
            timed_step(job, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="One training run of the demo.")
    parser.add_argument("--job", choices=sorted(JOBS), required=True)
    parser.add_argument("--budget", required=True, help="plain, unlimited or bytes")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        run(args.job, args.budget, args.steps, args.scale, args.device, args.seed)
    except torch.OutOfMemoryError as error:
        say({"fits": False, "message": str(error)})


if __name__ == "__main__":
    main()
