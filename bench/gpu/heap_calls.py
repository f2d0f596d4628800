"""What a pair of malloc and free costs on the trace of a real training step, by allocator.

The allocations and frees of one step, as PyTorch's profiler saw them, are made again by one loop in
C++ through our pool, PyTorch's caching allocator, cudaMalloc and cudaMallocAsync, in one process.
The first run of each, which takes memory from the driver, is not counted; where a run
takes long (cudaMalloc), it is the only one besides. On the CPU: our pool and malloc.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.part import Options, Row, run
from bench.gpu.shapes import SHAPES
from dtr_alloc import compiler
from dtr_alloc.config import UNLIMITED_BYTES
from dtr_alloc.core import check, ffi, lib
from dtr_alloc.torch import bridge

JOBS = ("resnet50", "gpt2_medium")
SCALE = 0.25
"""Of the batches: sizes matter little, and there are several copies of the memory."""
POOL, CUDA_MALLOC, CUDA_MALLOC_ASYNC, MALLOC, TORCH = range(5)
"""The kinds of run_trace.cpp."""


class Step(NamedTuple):
    slot: int
    size_bytes: int
    """0: the slot is freed."""


class CStep(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64)]


class CAllocator(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("allocate", "release", "context", "stream")),
    ]


def record(job: str, options: Options) -> list[Step]:
    """The trace of a job's third step: blocks that it allocates, until their end or the step's."""
    factory = SHAPES[job][1 if options.tiny else 0]
    running = factory(scale=1.0 if options.tiny else SCALE, device=options.device)
    for i in range(2):
        running.step(i)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        running.step(2)
    found: list[tuple[int, int, int]] = []

    def walk(events: Sequence[Any]) -> None:
        for event in events:
            if event.tag == torch._C._profiler._EventType.Allocation:
                of = event.extra_fields
                if of.device.type == options.device:
                    found.append((event.start_time_ns, of.ptr, of.alloc_size))
            walk(event.children)

    assert profiled.profiler is not None
    results = profiled.profiler.kineto_results
    walk(results.experimental_event_tree())
    found.sort(key=lambda entry: entry[0])
    return as_steps([(address, size) for _, address, size in found])


def as_steps(entries: Sequence[tuple[int, int]]) -> list[Step]:
    """Addresses become slots; a free (a negative size) of what was there before is left out."""
    steps: list[Step] = []
    slots: dict[int, int] = {}
    count = 0
    for address, size in entries:
        if size > 0:
            slots[address] = count
            steps.append(Step(count, size))
            count += 1
        elif address in slots:
            steps.append(Step(slots.pop(address), 0))
    return steps


class Loop:
    """The compiled loop."""

    def __init__(self, folder: Path, device: str) -> None:
        source, output = Path(__file__).with_name("run_trace.cpp"), folder / "run_trace.so"
        cxx = compiler.find()
        if cxx is None:
            raise RuntimeError("there is no C++ compiler here")
        if device == "cuda":
            command = bridge.command(cxx, "cuda", [source], output)
            command.insert(1, "-DWITH_TORCH")
        else:
            flags = ["-std=c++17", "-O2", "-fPIC", "-shared"]
            command = [cxx, *flags, str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{source.name} does not compile:\n{done.stderr[-2000:]}")
        self._run = ctypes.CDLL(str(output)).run_trace
        self._run.restype = ctypes.c_int64

    def nanoseconds(self, allocator: CAllocator, steps: Sequence[Step]) -> int:
        """Of one run. Raises RuntimeError if an allocation failed."""
        count = 1 + max(step.slot for step in steps)
        c_steps = (CStep * len(steps))(*(CStep(*step) for step in steps))
        slots = (ctypes.c_void_p * count)()
        took = int(
            self._run(
                ctypes.byref(allocator),
                c_steps,
                ctypes.c_uint64(len(steps)),
                slots,
                ctypes.c_uint64(count),
            )
        )
        if took < 0:
            raise RuntimeError("an allocation of the trace failed")
        return took


def own_pool(device: str) -> Any:
    """A pool of ours beside whatever this process allocates from."""
    options, out = ffi.new("dtr_pool_options *"), ffi.new("dtr_pool **")
    driver = ffi.new("char[]", b"cuda" if device == "cuda" else b"host")
    options.driver, options.budget_bytes = driver, UNLIMITED_BYTES
    if "keep_bytes" in dict(ffi.typeof("dtr_pool_options").fields):
        options.keep_bytes = UNLIMITED_BYTES  # as PyTorch's allocator keeps what it took
    check(lib.dtr_pool_create(options, out))
    return out[0]


def pointer(function: Any) -> int:
    """The address of a function of the core."""
    return int(ffi.cast("intptr_t", function))


def allocators(options: Options, pool: Any) -> dict[str, CAllocator]:
    """Who takes turns, by name."""
    ours = (
        pointer(ffi.addressof(lib, "dtr_pool_allocate")),
        pointer(ffi.addressof(lib, "dtr_pool_free")),
        pointer(pool),
    )
    if options.device != "cuda":
        libc = ctypes.CDLL(None)
        return {
            "dtr_alloc": CAllocator(POOL, *ours, None),
            "malloc": CAllocator(MALLOC, *_addresses(libc, "malloc", "free"), None, None),
        }
    stream = torch.cuda.current_stream().cuda_stream
    runtime = ctypes.CDLL(None)  # what PyTorch itself is bound to, if it is to be seen
    if not hasattr(runtime, "cudaMallocAsync"):
        runtime = ctypes.CDLL(bridge._cuda_runtime())
    sync = _addresses(runtime, "cudaMalloc", "cudaFree")
    unsync = _addresses(runtime, "cudaMallocAsync", "cudaFreeAsync")
    return {
        "dtr_alloc": CAllocator(POOL, *ours, stream),
        "pytorch": CAllocator(TORCH, None, None, None, stream),
        "cudaMallocAsync": CAllocator(CUDA_MALLOC_ASYNC, *unsync, None, stream),
        "cudaMalloc": CAllocator(CUDA_MALLOC, *sync, None, stream),
    }


def _addresses(library: ctypes.CDLL, *names: str) -> list[int | None]:
    return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]


def rows(options: Options) -> Iterator[Row]:
    if options.device == "cpu":
        torch.set_num_threads(1)
    pool = own_pool(options.device)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), options.device)
        by_name = allocators(options, pool)
        for job in JOBS:
            steps = record(job, options)
            if options.device == "cuda":
                torch.cuda.empty_cache()
            pairs = sum(step.size_bytes == 0 for step in steps)
            for name, allocator in by_name.items():
                row = {"job": job, "allocator": name, "calls": len(steps), "pairs": pairs}
                try:
                    yield row | _measured(loop, allocator, steps)
                except RuntimeError as error:
                    yield row | {"error": str(error)}
                lib.dtr_pool_trim(pool, ffi.NULL)
                if options.device == "cuda":
                    torch.cuda.empty_cache()
    check(lib.dtr_pool_destroy(pool))


def _measured(loop: Loop, allocator: CAllocator, steps: Sequence[Step]) -> Row:
    first = loop.nanoseconds(allocator, steps)
    repeats = 1 if first > 1e9 else 20
    times = [loop.nanoseconds(allocator, steps) for _ in range(repeats)]
    per_call = [2 * time / len(steps) for time in times]
    return {
        "ns_per_pair": median(per_call),
        "lowest_ns_per_pair": min(per_call),
        "first_ns_per_pair": 2 * first / len(steps),
        "runs": repeats,
    }


if __name__ == "__main__":
    run(rows)
