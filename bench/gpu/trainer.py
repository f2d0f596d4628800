"""A process that trains one of the shaped jobs, with or without dtr_alloc, as it is told.

    python -m bench.gpu.trainer --job resnet50 --way dtr_alloc --device cuda

Ways: ``plain`` is PyTorch's own allocator; ``allocator`` is ours under PyTorch without the recorder
(what disable() leaves on CUDA; on the CPU it is plain); ``dtr_alloc`` is all of it. `Trainer`'s
public methods are the commands; see bench/gpu/remote.py.
"""

from __future__ import annotations

import argparse
import gc
from time import perf_counter
from typing import Any

import torch

import dtr_alloc
from bench.gpu import device as devices
from bench.gpu.remote import serve
from bench.gpu.shapes import SHAPES, ShapedJob
from bench.measure import Thrashing, forget_broken_backward, limited_repeats

WAYS = ("plain", "allocator", "dtr_alloc")
WAITING = {
    *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    *("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"),
    *("cudaMemcpy", "cudaFree", "cudaHostAlloc"),
}
"""Calls of the runtime and the driver that make the host wait for the device."""


class Trainer:
    """The job of this process, and what it is told to do with it."""

    def __init__(
        self, job: str, way: str, device: str, tiny: bool, budget: int | str = "unlimited"
    ) -> None:
        self._name, self._way, self._device = job, way, device
        self._factory = SHAPES[job][1 if tiny else 0]
        self._job: ShapedJob | None = None
        self._done = 0
        if way != "plain":
            # Before the first use of the device: PyTorch cannot change its allocator afterwards.
            dtr_alloc.enable(budget=budget, device=device)
        if way == "allocator":
            dtr_alloc.disable()
        torch.manual_seed(0)
        if device == "cpu":
            torch.set_num_threads(1)
        else:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True

    def build(self, scale: float = 1.0) -> dict[str, Any]:
        """Makes the job. `scale` multiplies its batch."""
        try:
            self._job = self._factory(scale=scale, device=self._device)
        except torch.OutOfMemoryError:
            return {"outcome": "out of memory"}
        return {"outcome": "trains"}

    def limit(self, size_bytes: int) -> dict[str, Any]:
        """PyTorch's own limit on what its allocator takes from the device."""
        if self._device == "cuda":
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(size_bytes / total)
        return {}

    def budget(self, size_bytes: int | str) -> dict[str, Any]:
        """dtr_alloc's."""
        try:
            dtr_alloc.set_budget(size_bytes)
        except torch.OutOfMemoryError:
            return {"outcome": "out of memory"}
        return {"outcome": "trains"}

    def steps(self, count: int, most_repeats: int | None = None) -> dict[str, Any]:
        """Trains `count` steps: seconds of each on the device and on the host (until the step had
        been queued), memory, and what dtr_alloc did. `most_repeats`: of operators, before it
        counts as thrashing."""
        before = self._counters()
        if before:
            dtr_alloc.reset_peak_stats()
        marks, host, idle = devices.Marks(self._device), [], 0
        try:
            with limited_repeats(most_repeats):
                marks.mark()
                for _ in range(count):
                    start = perf_counter()
                    self._step()
                    host.append(perf_counter() - start)
                    marks.mark()
                    idle = max(idle, self._counters().get("allocated_bytes", 0))
            seconds = marks.seconds()
        except torch.OutOfMemoryError as error:
            return self._broken_off("out of memory", str(error))
        except Thrashing as error:
            return self._broken_off("thrashes", str(error))
        after = self._counters()
        answer: dict[str, Any] = {"outcome": "trains", "seconds": seconds, "host_seconds": host}
        if before:
            names = [
                *("evictions", "rematerializations", "recompute_seconds", "search_seconds"),
                *("recorded_ops", "unrecorded_ops", "mapped_chunks", "remaps", "planned"),
            ]
            answer |= {
                "idle_bytes": idle,
                "peak_bytes": after["peak_allocated_bytes"],
                "peak_reserved_bytes": after["peak_reserved_bytes"],
                "added": {name: after[name] - before[name] for name in names},
            }
        return answer

    def watch(self, count: int) -> dict[str, Any]:
        """Trains while a thread asks the driver how much is in use."""
        devices.synchronize(self._device)
        with devices.watched(self._device) as peak:
            answer = self.steps(count)
            devices.synchronize(self._device)
        return answer | {"driver_peak_bytes": peak.bytes, "samples": peak.samples}

    def beside(self) -> dict[str, Any]:
        """What the driver says is in use and PyTorch's allocator does not hold: the CUDA context,
        the code of kernels, and whatever others hold."""
        devices.synchronize(self._device)
        used = devices.driver_used_bytes(self._device)
        held = torch.cuda.memory_reserved() if self._device == "cuda" else 0
        return {"beside_bytes": used - held, "reserved_bytes": held}

    def waits(self, count: int) -> dict[str, Any]:
        """How often steps made the host wait: calls that PyTorch's profiler saw, by name, and the
        core's own count of its calls (`host_waits`), which the profiler does not see; and what
        may be their reasons."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        devices.synchronize(self._device)
        before = self._counters()
        with profile(activities=activities) as profiled:
            for _ in range(count):
                self._step()
            after = self._counters()
        calls = {
            event.key: event.count for event in profiled.key_averages() if event.key in WAITING
        }
        own = {
            name: after[name] - before[name] if name in after else None
            for name in ("host_waits", "remaps", "evictions")
        }
        return {"calls": calls, **own}

    def _step(self) -> None:
        assert self._job is not None, "build() comes first"
        self._job.step(self._done)
        self._job.losses.clear()
        self._done += 1

    def _counters(self) -> dict[str, Any]:
        return dtr_alloc.stats() if self._way == "dtr_alloc" else {}

    def _broken_off(self, outcome: str, message: str) -> dict[str, Any]:
        if self._job is not None:
            self._job.drop_gradients()
        forget_broken_backward()
        gc.collect()
        return {"outcome": outcome, "message": message[:2000]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=tuple(SHAPES), required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    trainer = Trainer(given.job, given.way, given.device, given.tiny)
    names = ("build", "limit", "budget", "steps", "watch", "beside", "waits")
    serve({name: getattr(trainer, name) for name in names})


if __name__ == "__main__":
    main()
