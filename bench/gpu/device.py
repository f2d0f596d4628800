"""What the parts ask of a device; on the CPU, for the dry run, what comes nearest."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import torch


def facts(device: str) -> dict[str, Any]:
    """Device, driver and versions. It initializes CUDA: not before dtr_alloc is enabled."""
    if device != "cuda":
        return {"driver": None, "cuda": torch.version.cuda, "cudnn": None}
    of = torch.cuda.get_device_properties(0)
    return {
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "capability": f"{of.major}.{of.minor}",
        "device_bytes": of.total_memory,
        "multiprocessors": of.multi_processor_count,
    }


def _driver_version() -> str:
    """As nvidia-smi says it, or the kernel module."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return "unknown: neither nvidia-smi nor /proc/driver/nvidia/version answers"


def synchronize(device: str) -> None:
    """Waits for all work of the device."""
    if device == "cuda":
        torch.cuda.synchronize()


class Marks:
    """Points of time in the work that is queued on the current stream (CUDA events)."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._points: list[Any] = []

    def mark(self) -> None:
        """After what is queued now."""
        if self._device != "cuda":
            self._points.append(perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._points.append(event)

    def seconds(self) -> list[float]:
        """Between each mark and the next; waits until the last is reached."""
        pairs = list(zip(self._points, self._points[1:], strict=False))
        if self._device != "cuda":
            return [after - before for before, after in pairs]
        self._points[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]


def driver_used_bytes(device: str) -> int:
    """What the driver says is in use on the device, by anybody (the CPU: by this process)."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    return int(psutil.Process().memory_info().rss)


class Peak:
    """The most that driver_used_bytes() was found to be."""

    def __init__(self) -> None:
        self.bytes = 0
        self.samples = 0


@contextmanager
def watched(device: str, every_seconds: float = 0.002) -> Iterator[Peak]:
    """Samples driver_used_bytes() in a thread."""
    peak, done = Peak(), threading.Event()

    def sample() -> None:
        while True:
            peak.bytes = max(peak.bytes, driver_used_bytes(device))
            peak.samples += 1
            if done.wait(every_seconds):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak.bytes = max(peak.bytes, driver_used_bytes(device))


def best_seconds(device: str, work: Any, repeats: int) -> float:
    """The least time of one call of `work` among `repeats`, on the device, after one unmeasured."""
    work()
    marks = Marks(device)
    marks.mark()
    for _ in range(repeats):
        work()
        marks.mark()
    return min(marks.seconds())


if __name__ == "__main__":
    # In a process of its own, because whoever asks may not want to initialize CUDA.
    import json
    import sys

    from bench.results import environment

    print(json.dumps(environment(sys.argv[1], seed=0) | facts(sys.argv[1])))
