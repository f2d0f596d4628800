"""How long a pair of malloc and free takes, beside glibc's malloc on the same trace.

Measured: the pool (lock, budget, chunks, heap, slabs, statistics) on simulated memory, and glibc
malloc without mmap. A fixed number of blocks is live; each pair frees a random one and allocates
another of a log-uniform random size. The clock is the thread's CPU time. Not measured: driver
calls, page faults, the Python side, threads.

    python bench/heap.py                 # a table
    python bench/heap.py --json out.json # "-": standard output
    python bench/heap.py --smoke         # seconds; what the tests run
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED = 1
# name: smallest and largest size in bytes
MIXES = {
    "small": (16, 2048),
    "large": (4 << 10, 4 << 20),
    "mixed": (64, 4 << 20),
}


def build(folder: Path, smoke: bool) -> Path:
    sources = [ROOT / "bench/heap_bench.cpp", *sorted((ROOT / "allocator").glob("*.cpp"))]
    optimize = "-O0" if smoke else "-O3"
    if smoke:  # one file compiles several times faster; the real build has no such inlining
        whole = folder / "whole.cpp"
        whole.write_text("".join(f'#include "{source}"\n' for source in reversed(sources)))
        sources = [whole]
    program = folder / "heap_bench"
    command = ["g++", "-std=c++17", optimize, "-DNDEBUG", f"-I{ROOT / 'allocator'}"]
    command += [*map(str, sources), "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return program


def measure(program: Path, allocator: str, live: int, pairs: int, mix: str) -> dict:
    smallest, largest = MIXES[mix]
    numbers = (live, pairs, smallest, largest, SEED)
    output = subprocess.run(
        [str(program), allocator, *map(str, numbers)], check=True, capture_output=True, text=True
    ).stdout
    median, lowest, highest = map(float, output.split())
    return {
        "allocator": allocator,
        "mix": mix,
        "live_blocks": live,
        "pairs": pairs,
        "median_ns": median,
        "lowest_ns": lowest,
        "highest_ns": highest,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the results; '-': standard output")
    parser.add_argument("--smoke", action="store_true", help="a few pairs, no optimization")
    options = parser.parse_args(arguments)

    pairs = 2_000 if options.smoke else 300_000
    results = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), options.smoke)
        for mix in MIXES:
            for live in (1_000, 10_000):
                results += [measure(program, name, live, pairs, mix) for name in ("pool", "glibc")]
    report = {
        "bench": "heap",
        "format": 1,
        "smoke": options.smoke,
        "seed": SEED,
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "libc": " ".join(platform.libc_ver()),
        "results": results,
    }
    if options.json == "-":
        json.dump(report, sys.stdout, indent=1)
        return 0
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'mix':8}{'live':>8}{'pool ns':>10}{'glibc ns':>10}")
    for ours, theirs in zip(results[::2], results[1::2], strict=True):
        print(
            f"{ours['mix']:8}{ours['live_blocks']:8}"
            f"{ours['median_ns']:10.1f}{theirs['median_ns']:10.1f}"
        )
    return 0


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
