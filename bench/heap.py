"""How long a pair of malloc and free takes, beside glibc's malloc on the same trace.

Measured: the heap alone, the pool (lock, budget, chunks, heap, slabs, statistics) on simulated
memory with chunks of 2 MiB, and glibc malloc without mmap. A fixed number of blocks is live; each
pair frees one and allocates another. In three mixes it frees a random one, and sizes are
log-uniform; in ``training`` there are 60 sizes, and mostly young blocks are freed. The clock is the
thread's CPU time, over parts of 2000 pairs: the median says what it takes here, the lowest what it
takes where nobody else uses the caches. Not measured: driver calls, page faults, the Python side,
threads.

    python -m bench.heap [--before REVISION] [--placement NAME] [--json PATH] [--smoke]

With `--before` the heap of a revision is measured beside, in the same run.
"""

from __future__ import annotations

import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import click

from bench import results
from dtr_alloc.simulation.simulate import PLACEMENTS

ROOT = Path(__file__).resolve().parent.parent
SEED = 1
# name: smallest and largest size in bytes, how many sizes there are (0: any)
MIXES = {
    "small": (16, 2048, 0),
    "large": (4 << 10, 4 << 20, 0),
    "mixed": (64, 4 << 20, 0),
    "training": (4 << 10, 4 << 20, 60),
}
MEASURED = ("allocator", "native/include", "bench/heap_bench.cpp")


def build(folder: Path, tree: Path, smoke: bool) -> Path:
    """The measured program, of a tree that has what is MEASURED."""
    core = tree / "allocator"
    sources = [tree / "bench/heap_bench.cpp", *sorted(core.glob("*.cpp"))]
    if smoke:  # one file compiles several times faster; the real build has no such inlining
        whole = folder / "whole.cpp"
        whole.write_text("".join(f'#include "{source}"\n' for source in reversed(sources)))
        sources = [whole]
    program = folder / "heap_bench"
    command = ["g++", "-std=c++20", "-O0" if smoke else "-O3", "-DNDEBUG", f"-I{core}"]
    command += [f"-I{tree}/native/include", *map(str, sources), "-o", str(program)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return program


def tree_of(revision: str, folder: Path) -> Path:
    """What is measured, as it was."""
    archive = folder / "before.tar"
    command = ["git", "archive", f"--output={archive}", revision, *MEASURED]
    subprocess.run(command, check=True, cwd=ROOT)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder


def measure(
    program: Path, allocator: str, live: int, pairs: int, mix: str, placement: str
) -> dict[str, Any]:
    numbers = (live, pairs, *MIXES[mix], PLACEMENTS.index(placement), SEED)
    command = [str(program), allocator, *map(str, numbers)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = zip(("median_ns", "lowest_ns", "highest_ns"), map(float, output.split()), strict=True)
    return {"mix": mix, "live_blocks": live, "pairs": pairs, **dict(figures)}


@click.command(help="How long a pair of malloc and free takes, beside glibc's malloc.")
@click.option("--before", metavar="REVISION", help="Also measure the heap of a revision.")
@click.option("--placement", type=click.Choice(PLACEMENTS), default=PLACEMENTS[0])
@results.options("A few pairs, no optimization.")
def main(before: str | None, placement: str, path: str | None, smoke: bool) -> None:
    pairs = 2_000 if smoke else 300_000
    rows = []
    with tempfile.TemporaryDirectory() as now, tempfile.TemporaryDirectory() as then:
        programs = {"": build(Path(now), ROOT, smoke)}
        if before:
            tree = tree_of(before, Path(then))
            programs = {"_before": build(tree, tree, smoke), **programs}
        for mix, live in product(MIXES, (1_000, 10_000)):
            # The heap has no blocks below its grain.
            ours = ("heap", "pool") if mix != "small" else ("pool",)
            arms = [(suffix, allocator) for suffix in programs for allocator in ours]
            for suffix, allocator in [*arms, ("", "glibc")]:
                found = measure(programs[suffix], allocator, live, pairs, mix, placement)
                rows.append({"allocator": allocator + suffix} | found)
    columns = {"mix": "{mix}", "live": "{live_blocks:,}", "allocator": "{allocator}"}
    columns |= {"median ns": "{median_ns:.1f}", "lowest ns": "{lowest_ns:.1f}"}
    results.console().print(results.table("A pair of malloc and free", columns, rows))
    facts = {"smoke": smoke, "placement": placement, "before": before}
    results.write(path, "heap", SEED, **facts, results=rows)


if __name__ == "__main__":
    main()
