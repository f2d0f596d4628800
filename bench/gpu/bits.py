"""A process that trains whole jobs under deterministic settings and tells their bits.

    python -m bench.gpu.bits --way dtr_alloc --device cuda

`Bits.train` is the command; see bench/gpu/remote.py. Ways: ``plain`` and ``dtr_alloc``.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import warnings
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor

import dtr_alloc
from bench.foreign import nets  # noqa: F401
from bench.foreign.job import ForeignJob, Missing
from bench.gpu.remote import serve
from bench.measure import Profile, Thrashing, forget_broken_backward, limited_repeats
from bench.models import JOBS, Job, JobFactory
from bench.models.job import as_bytes

MOST_REPEATS = 20_000


def be_deterministic(warn_only: bool) -> None:
    """The settings of PyTorch's page on reproducibility. `warn_only`: operators without a
    deterministic form run and warn, instead of raising."""
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.benchmark = False


class Bits:
    """The jobs of this process; with dtr_alloc, what each holds when nothing is evicted."""

    def __init__(self, way: str, device: str) -> None:
        # Read by cuBLAS when it is first used.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if device == "cpu":
            torch.set_num_threads(1)
        self._budgeted, self._device = way == "dtr_alloc", device
        self._profiles: dict[str, Profile] = {}
        self._refused: Counter[str] = Counter()
        if self._budgeted:
            dtr_alloc.enable(budget="unlimited", device=device)

    def train(
        self, job: str, scale: float, steps: int, warn_only: bool, fraction: float | None = None
    ) -> dict[str, Any]:
        """Trains a job from its seed: "bits" is a hash for each tensor of its state. `fraction`: of
        its activation memory, under dtr_alloc, once it has run without a limit. "refused": requests
        for memory for which there was no room, in all runs of the job so far that trained."""
        be_deterministic(warn_only)
        factory = JOBS.get(job, partial(ForeignJob, job, {}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = self._train(job, factory, scale, steps, fraction)
        gc.collect()
        told = {str(one.message)[:200] for one in caught if "determinis" in str(one.message)}
        return answer | {"warnings": sorted(told)}

    def _train(
        self, name: str, factory: JobFactory, scale: float, steps: int, fraction: float | None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = {"outcome": "trains"}
        running: Job | None = None
        try:
            if self._budgeted:
                budget = "unlimited" if fraction is None else self._profiles[name].budget(fraction)
                answer["budget"] = budget
                dtr_alloc.set_budget(budget)
                dtr_alloc.reset_peak_stats()
            before = dtr_alloc.stats() if self._budgeted else {}
            idle = 0
            running = factory(scale=scale, device=self._device)
            with limited_repeats(MOST_REPEATS if self._budgeted else None):
                for i in range(steps):
                    running.step(i)
                    if self._budgeted:
                        idle = max(idle, dtr_alloc.stats()["allocated_bytes"])
            if self._budgeted:
                dtr_alloc.check_invariants()
                after = dtr_alloc.stats()
                answer["peak_bytes"] = after["peak_allocated_bytes"]
                for key in ("evictions", "rematerializations", "beyond_requests"):
                    answer[key] = after[key] - before[key]
                self._refused[name] += (
                    after["out_of_memory_errors"] - before["out_of_memory_errors"]
                )
                answer["refused"] = self._refused[name]
                if fraction is None:
                    self._profiles[name] = Profile(idle, after["peak_allocated_bytes"])
                # Copying the state out takes memory that no step takes.
                dtr_alloc.set_budget("unlimited")
            answer["bits"] = hashes(running.state())
        except Missing as error:
            return {"skipped": str(error)}
        except (torch.OutOfMemoryError, Thrashing) as error:
            if running is not None:
                running.drop_gradients()
            forget_broken_backward()
            out = isinstance(error, torch.OutOfMemoryError)
            answer |= {"outcome": "out of memory" if out else "thrashes"}
            answer["message"] = str(error)[:1000]
        return answer


def hashes(state: dict[str, Tensor]) -> dict[str, str]:
    """For each tensor a hash of its dtype, shape and bits."""
    return {
        name: hashlib.sha256(
            f"{tensor.dtype} {tuple(tensor.shape)}\n".encode() + as_bytes(tensor).numpy().tobytes()
        ).hexdigest()[:16]
        for name, tensor in state.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("plain", "dtr_alloc"), required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    given = parser.parse_args()
    serve({"train": Bits(given.way, given.device).train})


if __name__ == "__main__":
    main()
