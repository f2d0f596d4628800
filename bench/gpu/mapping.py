"""What mapping a chunk of device memory costs, call by call and by the chunk's size.

The core times the calls that its driver makes for a chunk (allocator/cuda_map_times.cpp):
cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap, cuMemRelease. In the dry run they go to the
stand-in for libcuda of the tests, whose times mean nothing.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.gpu.part import Options, Row, run
from bench.results import MIB
from dtr_alloc import compiler
from dtr_alloc.core import DriverError, check, ffi, lib

CHUNKS_MIB = (2, 8, 32, 128, 512)
ROUNDS = 64
CALLS = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")


def use_stand_in(folder: Path) -> None:
    """Has the core find the stand-in, compiled into the folder, for libcuda."""
    source = Path(__file__).parents[2] / "tests/fake_cuda/fake_cuda.cpp"
    output = folder / "fake_cuda.so"
    cxx = compiler.find()
    if cxx is None:
        raise RuntimeError("there is no C++ compiler here")
    flags = ["-std=c++17", "-O0", "-fPIC", "-shared"]
    subprocess.run([cxx, *flags, str(source), "-o", str(output), "-lpthread"], check=True)
    check(lib.dtr_cuda_set_library(ffi.new("char[]", str(output).encode())))


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        if options.device != "cuda":
            use_stand_in(Path(folder))
        for size_mib in CHUNKS_MIB[:2] if options.tiny else CHUNKS_MIB:
            try:
                yield measure(size_mib, 4 if options.tiny else ROUNDS)
            except DriverError as error:
                yield {"chunk_mib": size_mib, "error": str(error)}


def measure(size_mib: int, rounds: int) -> Row:
    """Medians over so many times that one chunk was mapped and unmapped."""
    times = [ffi.new("int64_t *") for _ in CALLS]
    check(lib.dtr_cuda_map_times(0, size_mib * MIB, rounds, *times))
    medians = {name: time[0] / 1e3 for name, time in zip(CALLS, times, strict=True)}
    return {
        "chunk_mib": size_mib,
        "rounds": rounds,
        "microseconds": medians,
        "map_us": sum(medians[name] for name in CALLS[:3]),
        "unmap_us": sum(medians[name] for name in CALLS[3:]),
    }


if __name__ == "__main__":
    run(rows)
