"""What steps cost the host on CUDA, measured without a GPU: counts, processor time, and a model.

    python -m bench.null_cuda [--job gpt2_medium ...] [--rule marginal ...] [--json FILE]

The python that runs it has a CUDA build of PyTorch. Kernels compute nothing (null_cuda.cpp), so
full-size jobs run, and:

- counts (replays, evictions, searches, chunks, calls) are those of the job, as far as the costs of
  operators, which are modelled, lead to the same evictions;
- processor times, of the threads that launch, are this machine's, so they are given as ratios to
  plain PyTorch's, of steps that take turns;
- `modelled` is a calculation, not a measurement of a GPU: a step by the clock of null_cuda.cpp,
  with the prices in bench/results/gpu_mapping.json, and kernels scaled so that plain steps of GPT-2
  medium take what they took in bench/results/gpu_step_time.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from bench.gpu.remote import Remote
from bench.measure import Profile
from bench.null_cuda import library
from bench.null_cuda.jobs import JOBS
from bench.results import write

RESULTS = Path(__file__).parents[1] / "results"
FRACTIONS = (0.7, 0.5, 0.3)
LAUNCH_NS = 3000
"""Assumed, not measured: what the host pays for a launch beyond what runs here."""
HOST_SCALE = 1.0
"""Assumed: the GPU machine's processor is as fast as this one."""
SETTLING = {"marginal": 6, "adaptive": 60}
"""Steps under a budget before those that count, by rule: it is fixed, or learned meanwhile."""
SHOWN = ("rematerializations", "evictions", "searches", "mapped_chunks", "remaps", "host_waits")


def prices() -> str:
    """What calls cost, for null_cuda.cpp, from what an H200 took for one chunk at a time."""
    rows = json.loads((RESULTS / "gpu_mapping.json").read_text())["parts"]["mapping"]["rows"]
    listed = [
        f"{call}:{row['chunk_mib']}={round(us * 1000)}"
        for row in rows
        if row["chunks"] == 1
        for call, us in row["microseconds"].items()
    ]
    return ",".join([*listed, f"launch:0={LAUNCH_NS}", f"multiply:0={LAUNCH_NS}"])


def h200_step_ns() -> float:
    """A plain step of GPT-2 medium on the device."""
    rows = json.loads((RESULTS / "gpu_step_time.json").read_text())["parts"]["step_time"]["rows"]
    (plain,) = (
        row["step_seconds"] for row in rows if row["job"] == "gpt2_medium" and row["way"] == "plain"
    )
    return 1e9 * float(plain)


class Trainers:
    """Processes over the library."""

    def __init__(self, preloaded: Path) -> None:
        self._started: list[Remote] = []
        self._preloaded = str(preloaded)
        self.device_scale = 1.0

    def start(
        self,
        job: str,
        way: str,
        rule: str = "marginal",
        budget: int | str = "unlimited",
        clock: bool = False,
        debug: str = "off",
    ) -> Remote:
        """A process that builds the job and takes the steps that do not count."""
        variables = {
            "LD_PRELOAD": self._preloaded,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCH_CUDNN_V8_API_DISABLED": "1",  # the interface of cudnn.cpp
            "PYTHONSAFEPATH": "1",  # the modules of this process, whatever lies in its folder
            "NULL_CUDA_DEVICE_SCALE": str(self.device_scale),
            "DTR_ALLOC_HEURISTIC": rule,
            "DTR_ALLOC_DEBUG": debug,
            "DTR_ALLOC_TRUST": "null_cuda",  # a trial would compare what nobody computed
        }
        if clock:
            variables |= {"NULL_CUDA_PRICES": prices(), "NULL_CUDA_HOST_SCALE": str(HOST_SCALE)}
        arguments = ["--job", job, "--way", way, "--budget", str(budget)]
        with patch.dict(os.environ, variables):
            started = Remote("bench.null_cuda.trainer", *arguments)
        self._started.append(started)
        started.need("build")
        started.need("host", count=4 if budget == "unlimited" else SETTLING[rule])
        return started

    def calibrate(self) -> None:
        """Scales kernels to the device's time of a plain step of GPT-2 medium."""
        plain = self.start("gpt2_medium", "plain")
        self.device_scale = h200_step_ns() * 2 / plain.need("host", count=2)["calls"]["device_ns"]
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        while self._started:
            self._started.pop().close()


def row_of(answer: dict[str, Any], steps: int) -> dict[str, Any]:
    """What a step added, by name. (At rest operators without results count, too.)"""
    added, calls = answer["added"], answer["calls"]
    row = {name: round(added[name] / steps, 1) for name in SHOWN}
    operators = max(1, (added["recorded_ops"] + added["unrecorded_ops"]) / steps)
    row["operators"] = round(operators)
    row["calls_an_operator"] = {
        name: round(count / steps / operators, 2)
        for name, count in sorted(calls.items(), key=lambda item: -item[1])
        if not name.endswith("_ns") and count / steps / operators >= 0.005
    }
    row["device_ms"] = round(calls["device_ns"] / steps / 1e6, 1)
    return row


def turns(ways: dict[str, Remote], rounds: int, block: int) -> dict[str, dict[str, Any]]:
    """Blocks of steps by turns: the median processor time, and the last block's answer."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for way, trainer in ways.items():
            last[way] = trainer.need("host", count=block)
            times[way] += last[way]["host_ns"]
    return {way: {"host_ms": median(times[way]) / 1e6, **last[way]} for way in ways}


def measure(
    job: str, rule: str, trainers: Trainers, steps: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """The rows of a job: without a limit, and at each fraction of its activation memory. Each
    budget has a process of its own, which is given it when it starts."""
    plain = trainers.start(job, "plain")
    free = trainers.start(job, "dtr_alloc", rule)
    seen = free.need("steps", count=2)
    profile = Profile(seen["idle_bytes"], seen["peak_bytes"])
    for fraction in (None, *FRACTIONS):
        row: dict[str, Any] = {"job": job, "rule": rule, "budget_fraction": fraction}
        ours = free
        if fraction is not None:
            row["budget_bytes"] = profile.budget(fraction)
            ours = trainers.start(job, "dtr_alloc", rule, row["budget_bytes"])
        taken = turns({"plain": plain, "ours": ours}, rounds, steps)
        ours.close()
        host_ms, plain_host_ms = taken["ours"]["host_ms"], taken["plain"]["host_ms"]
        row |= row_of(taken["ours"], steps)
        yield row | {
            "host_ratio": round(host_ms / plain_host_ms, 2),
            "host_ms": round(host_ms, 1),
            "plain_host_ms": round(plain_host_ms, 1),
            "added_ns_an_operator": round(1e6 * (host_ms - plain_host_ms) / row["operators"]),
            "plain_device_ms": round(taken["plain"]["calls"]["device_ns"] / steps / 1e6, 1),
        }


def modelled(row: dict[str, Any], trainers: Trainers, steps: int, rounds: int) -> dict[str, Any]:
    """The step of a row by the clock of null_cuda.cpp, against the device's time of a plain one."""
    budget = row.get("budget_bytes", "unlimited")
    trainer = trainers.start(row["job"], "dtr_alloc", row["rule"], budget, clock=True)
    blocks = [trainer.need("host", count=steps)["calls"] for _ in range(rounds)]
    trainer.close()
    # The processor is shared with others, which only makes steps longer.
    timed = min(blocks, key=lambda calls: calls["end_ns"])
    step_ms = timed["end_ns"] / steps / 1e6
    return {
        "ratio": round(step_ms / row["plain_device_ms"], 2),
        "step_ms": round(step_ms, 1),
        "device_starves_ms": round(timed["starved_ns"] / steps / 1e6, 1),
        "host_waits_ms": round(timed["full_ns"] / steps / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", action="append", choices=tuple(JOBS))
    parser.add_argument("--rule", action="append", choices=tuple(SETTLING))
    parser.add_argument("--steps", type=int, default=6, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each way, by turns")
    parser.add_argument("--json", default="-")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Trainers(library.build(Path(folder)))) as trainers,
    ):
        trainers.calibrate()
        rows = []
        for job in given.job or JOBS:
            for rule in given.rule or SETTLING:
                for row in measure(job, rule, trainers, given.steps, given.rounds):
                    row["modelled"] = modelled(row, trainers, given.steps, given.rounds)
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    rows.append(row)
                trainers.close()
    write(
        given.json,
        "null_cuda",
        device="none: kernels compute nothing",
        launch_ns_assumed=LAUNCH_NS,
        host_scale_assumed=HOST_SCALE,
        device_scale=round(trainers.device_scale, 3),
        rows=rows,
    )


if __name__ == "__main__":
    main()
