"""What mapping device memory costs, call by call, by the chunk's size and the number of chunks.

A library of its own (map_times.cpp) times the calls that the core's driver makes: cuMemCreate,
cuMemMap and cuMemRelease for each chunk, cuMemSetAccess and cuMemUnmap once for all that lie side
by side. In the dry run they go to the stand-in for libcuda of the tests, whose times mean nothing.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.gpu.part import Options, Row, run
from bench.results import MIB
from dtr_alloc import compiler

ALLOCATOR = Path(__file__).parents[2] / "allocator"
INCLUDE = ALLOCATOR.parent / "native/include"
STAND_IN = ALLOCATOR.parent / "tests/fake_cuda/fake_cuda.cpp"
SHAPES = ((2, 1), (8, 1), (32, 1), (128, 1), (512, 1), (2, 16), (2, 256))
"""MiB of a chunk, and how many there are."""
ROUNDS = 32
CALLS = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")


def compiled(folder: Path, *sources: Path) -> Path:
    """A library of these sources, compiled as one file."""
    whole = folder / f"{sources[-1].stem}_whole.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    output = whole.with_suffix(".so")
    cxx = compiler.find()
    if cxx is None:
        raise RuntimeError("there is no C++ compiler here")
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{ALLOCATOR}", f"-I{INCLUDE}"]
    command = [cxx, *flags, str(whole), "-o", str(output), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return output


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        source = Path(__file__).with_name("map_times.cpp")
        library = ctypes.CDLL(str(compiled(here, *sorted(ALLOCATOR.glob("*.cpp")), source)))
        library.map_times.restype = ctypes.c_char_p
        cuda = None if options.device == "cuda" else compiled(here, STAND_IN)
        for size_mib, chunks in (SHAPES[0], SHAPES[-2]) if options.tiny else SHAPES:
            yield measure(library, cuda, size_mib, chunks, 4 if options.tiny else ROUNDS)


def measure(
    library: ctypes.CDLL, cuda: Path | None, size_mib: int, chunks: int, rounds: int
) -> Row:
    """Medians over so many times that the chunks were mapped and unmapped, of all together."""
    times = (ctypes.c_int64 * len(CALLS))()
    numbers = (ctypes.c_uint64(number) for number in (size_mib * MIB, chunks, rounds))
    error = library.map_times(None if cuda is None else str(cuda).encode(), 0, *numbers, times)
    if error is not None:
        return {"chunk_mib": size_mib, "chunks": chunks, "error": error.decode()}
    medians = {name: time / 1e3 for name, time in zip(CALLS, times, strict=True)}
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
