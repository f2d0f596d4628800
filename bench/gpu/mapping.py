"""What mapping a chunk of device memory costs, call by call and by the chunk's size.

The calls that our driver code makes for a chunk (allocator/cuda_driver.cpp), through the driver's
C interface: cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap, cuMemRelease. In the dry run
they go to the stand-in for libcuda of the tests, whose times mean nothing.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from bench.gpu.part import Options, Row, run
from bench.results import MIB
from dtr_alloc import bridge

CHUNKS_MIB = (2, 8, 32, 128, 512)
MOST_MIB = 2048
"""Of memory that is mapped for one size."""
CALLS = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", Location),
        ("win32_handle_meta_data", c_void_p),
        ("alloc_flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", c_int)]


ON_DEVICE = Location(1, 0)
"""CU_MEM_LOCATION_TYPE_DEVICE."""
KIND = AllocationProp(type=1, location=ON_DEVICE)
"""CU_MEM_ALLOCATION_TYPE_PINNED."""
ACCESS = AccessDesc(ON_DEVICE, 3)
"""CU_MEM_ACCESS_FLAGS_PROT_READWRITE."""


class Driver:
    """libcuda with the primary context of device 0 current. Raises RuntimeError naming the call
    that failed."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self.call("cuInit", ctypes.c_uint(0))
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(0))
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} failed with {result}")

    def timed(self, name: str, *arguments: Any) -> int:
        """Nanoseconds of the call, that of ctypes included (about one microsecond)."""
        function: Callable[..., int] = getattr(self._library, name)
        start = perf_counter_ns()
        result = function(*arguments)
        took = perf_counter_ns() - start
        if result != 0:
            raise RuntimeError(f"{name} failed with {result}")
        return took


def library(options: Options, folder: Path) -> str:
    """The driver's library, or the stand-in's, compiled."""
    if options.device == "cuda":
        return "libcuda.so.1"
    source = Path(__file__).parents[2] / "tests/fake_cuda/fake_cuda.cpp"
    output = folder / "fake_cuda.so"
    compiler = bridge.compiler()
    if compiler is None:
        raise RuntimeError("there is no C++ compiler here")
    flags = ["-std=c++17", "-O0", "-fPIC", "-shared"]
    subprocess.run([compiler, *flags, str(source), "-o", str(output), "-lpthread"], check=True)
    return str(output)


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(library(options, Path(folder)))
        granularity = c_size_t()
        driver.call("cuMemGetAllocationGranularity", byref(granularity), byref(KIND), c_int(1))
        for size_mib in CHUNKS_MIB[:2] if options.tiny else CHUNKS_MIB:
            try:
                yield measure(driver, size_mib * MIB, options) | {"granularity": granularity.value}
            except RuntimeError as error:
                yield {"chunk_mib": size_mib, "error": str(error)}


def measure(driver: Driver, size_bytes: int, options: Options) -> Row:
    """Maps chunks side by side, as the heap grows, and unmaps them one by one."""
    most = 16 * MIB if options.tiny else MOST_MIB * MIB
    count = max(2, min(64, most // size_bytes))
    base = c_uint64()
    whole = c_size_t(count * size_bytes)
    size = c_size_t(size_bytes)
    driver.call("cuMemAddressReserve", byref(base), whole, c_size_t(0), c_uint64(0), c_uint64(0))
    times: dict[str, list[int]] = {name: [] for name in CALLS}
    handles = []

    def timed(name: str, *arguments: Any) -> None:
        times[name].append(driver.timed(name, *arguments))

    for index in range(count):
        address, handle = c_uint64(base.value + index * size_bytes), c_uint64()
        timed("cuMemCreate", byref(handle), size, byref(KIND), c_uint64(0))
        timed("cuMemMap", address, size, c_size_t(0), handle, c_uint64(0))
        timed("cuMemSetAccess", address, size, byref(ACCESS), c_size_t(1))
        handles.append((address, handle))
    for address, handle in handles:
        timed("cuMemUnmap", address, size)
        timed("cuMemRelease", handle)
    driver.call("cuMemAddressFree", base, whole)
    medians = {name: median(found) / 1e3 for name, found in times.items()}
    return {
        "chunk_mib": size_bytes // MIB,
        "chunks": count,
        "microseconds": medians,
        "map_us": sum(medians[name] for name in CALLS[:3]),
        "unmap_us": sum(medians[name] for name in CALLS[3:]),
    }


if __name__ == "__main__":
    run(rows)
