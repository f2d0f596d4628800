"""How long a pair of malloc and free takes, beside glibc's malloc on the same trace.

Measured: the heap alone, the pool (lock, budget, chunks, heap, slabs, statistics) on simulated
memory with chunks of 2 MiB, and glibc malloc without mmap. A fixed number of blocks is live; each
pair frees one and allocates another. In three mixes it frees a random one, and sizes are
log-uniform; in ``training`` there are 60 sizes, and mostly young blocks are freed. The clock is the
thread's CPU time, over parts of 2000 pairs: the median says what it takes here, the lowest what it
takes where nobody else uses the caches. Not measured: driver calls, page faults, the Python side,
threads.

    python -m bench.heap [--json PATH] [--smoke]
"""

from __future__ import annotations

import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import click

from bench import results

ROOT = Path(__file__).resolve().parent.parent
SEED = 1
# name: smallest and largest size in bytes, how many sizes there are (0: any)
MIXES = {
    "small": (16, 2048, 0),
    "large": (4 << 10, 4 << 20, 0),
    "mixed": (64, 4 << 20, 0),
    "training": (4 << 10, 4 << 20, 60),
}


def build(folder: Path, smoke: bool) -> Path:
    """The measured program."""
    core = ROOT / "allocator"
    sources = [ROOT / "bench/heap_bench.cpp", *sorted(core.glob("*.cpp"))]
    if smoke:  # one file compiles several times faster; the real build has no such inlining
        whole = folder / "whole.cpp"
        whole.write_text("".join(f'#include "{source}"\n' for source in reversed(sources)))
        sources = [whole]
    program = folder / "heap_bench"
    command = ["g++", "-std=c++20", "-O0" if smoke else "-O3", "-DNDEBUG", f"-I{core}"]
    command += [f"-I{ROOT}/native/include", *map(str, sources), "-o", str(program)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return program


def measure(program: Path, allocator: str, live: int, pairs: int, mix: str) -> dict[str, Any]:
    command = [str(program), allocator, *map(str, (live, pairs, *MIXES[mix], SEED))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = zip(("median_ns", "lowest_ns", "highest_ns"), map(float, output.split()), strict=True)
    row = {"allocator": allocator, "mix": mix, "live_blocks": live, "pairs": pairs}
    return row | dict(figures)


@click.command(help="How long a pair of malloc and free takes, beside glibc's malloc.")
@results.options("A few pairs, no optimization.")
def main(path: str | None, smoke: bool) -> None:
    pairs = 2_000 if smoke else 300_000
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), smoke)
        for mix, live in product(MIXES, (1_000, 10_000)):
            # The heap has no blocks below its grain.
            allocators = ("pool", "glibc") if mix == "small" else ("heap", "pool", "glibc")
            rows += [measure(program, each, live, pairs, mix) for each in allocators]
    columns = {"mix": "{mix}", "live": "{live_blocks:,}", "allocator": "{allocator}"}
    columns |= {"median ns": "{median_ns:.1f}", "lowest ns": "{lowest_ns:.1f}"}
    results.console().print(results.table("A pair of malloc and free", columns, rows))
    results.write(path, "heap", SEED, smoke=smoke, results=rows)


if __name__ == "__main__":
    main()
