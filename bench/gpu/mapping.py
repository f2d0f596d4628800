"""What mapping device memory costs, call by call, by the chunk's size and the number of chunks.

The core times the calls that its driver makes (allocator/cuda_map_times.cpp): cuMemCreate,
cuMemMap and cuMemRelease for each chunk, cuMemSetAccess and cuMemUnmap once for all that lie side
by side. In the dry run they go to the stand-in for libcuda of the tests, whose times mean nothing.
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

SHAPES = ((2, 1), (8, 1), (32, 1), (128, 1), (512, 1), (2, 16), (2, 256))
"""MiB of a chunk, and how many there are."""
ROUNDS = 32
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
        for size_mib, chunks in (SHAPES[0], SHAPES[-2]) if options.tiny else SHAPES:
            try:
                yield measure(size_mib, chunks, 4 if options.tiny else ROUNDS)
            except DriverError as error:
                yield {"chunk_mib": size_mib, "chunks": chunks, "error": str(error)}


def measure(size_mib: int, chunks: int, rounds: int) -> Row:
    """Medians over so many times that the chunks were mapped and unmapped, of all together."""
    times = [ffi.new("int64_t *") for _ in CALLS]
    check(lib.dtr_cuda_map_times(0, size_mib * MIB, chunks, rounds, *times))
    medians = {name: time[0] / 1e3 for name, time in zip(CALLS, times, strict=True)}
    return {
        "chunk_mib": size_mib,
        "chunks": chunks,
        "rounds": rounds,
        "microseconds": medians,
        "map_us": sum(medians[name] for name in CALLS[:3]),
        "unmap_us": sum(medians[name] for name in CALLS[3:]),
    }


if __name__ == "__main__":
    run(rows)
