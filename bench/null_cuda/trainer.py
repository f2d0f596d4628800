"""A process that trains over the CUDA whose kernels compute nothing, as it is told.

LD_PRELOAD=null_cuda.so python -m bench.null_cuda.trainer --job gpt2_medium --way dtr_alloc
"""

from __future__ import annotations

import argparse
import ctypes
import json
from typing import Any

import torch
from torch.nn import init

from bench.gpu import trainer
from bench.gpu.remote import serve
from bench.null_cuda.jobs import JOBS


def _leave(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


class Trainer(trainer.Trainer):
    """The job of this process, and what its steps ask of CUDA."""

    def __init__(self, job: str, way: str, budget: int | str) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        self._read = library.null_cuda_counts
        self._read.restype = ctypes.c_char_p
        # Contents do not exist, so parameters need none.
        for name in ("kaiming_uniform_", "uniform_", "normal_"):
            setattr(init, name, _leave)
        torch.set_num_threads(1)
        torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN is not there
        trainer.SHAPES[job] = (JOBS[job], JOBS[job])
        super().__init__(job, way, "cuda", tiny=False, budget=budget)

    def host(self, count: int) -> dict[str, Any]:
        """Trains `count` steps: processor ns of each, of the threads that launch kernels, and what
        they added to every number of dtr_alloc and of the library."""
        torch.cuda.synchronize()
        before, calls, taken = self._counters(), self._calls(), []
        for _ in range(count):
            start = self._calls()["host_ns"]
            self._step()
            taken.append(self._calls()["host_ns"] - start)
        torch.cuda.synchronize()
        after, later = self._counters(), self._calls()
        return {
            "host_ns": taken,
            "added": {
                name: after[name] - before[name]
                for name, value in after.items()
                if isinstance(value, int | float)
            },
            "calls": {name: value - calls.get(name, 0) for name, value in later.items()},
        }

    def _calls(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self._read())
        return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=tuple(JOBS), required=True)
    parser.add_argument("--way", choices=trainer.WAYS, required=True)
    parser.add_argument("--budget", default="unlimited")
    given = parser.parse_args()
    told = Trainer(given.job, given.way, given.budget)
    serve({name: getattr(told, name) for name in ("build", "steps", "host")})


if __name__ == "__main__":
    main()
