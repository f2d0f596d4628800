"""How long a pair of malloc and free takes, beside glibc's malloc on the same trace.

Measured: the heap alone, the pool (lock, budget, chunks, heap, slabs, statistics) on simulated
memory with chunks of 2 MiB, and glibc malloc without mmap. A fixed number of blocks is live; each
pair frees one and allocates another. In three mixes it frees a random one, and sizes are
log-uniform; in ``training`` there are 60 sizes, and mostly young blocks are freed. The clock is the
thread's CPU time, over parts of 2000 pairs: the median says what it takes here, the lowest what it
takes where nobody else uses the caches. Not measured: driver calls, page faults, the Python side,
threads.

    python bench/heap.py                    # a table
    python bench/heap.py --before REVISION  # the same beside the heap of a revision, in one run
    python bench/heap.py --placement first-fit
    python bench/heap.py --json out.json    # "-": standard output
    python bench/heap.py --smoke            # seconds; what the tests run
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED = 1
# name: smallest and largest size in bytes, how many sizes there are (0: any)
MIXES = {
    "small": (16, 2048, 0),
    "large": (4 << 10, 4 << 20, 0),
    "mixed": (64, 4 << 20, 0),
    "training": (4 << 10, 4 << 20, 60),
}
# In the order of the DTR_PLACE_ numbers of the C header.
PLACEMENTS = ("best-fit", "first-fit", "two-ended", "size-classes")


def build(folder: Path, tree: Path, smoke: bool) -> Path:
    """The measured program, of a tree that has ``allocator/`` and ``bench/heap_bench.cpp``."""
    core = tree / "allocator"
    sources = [tree / "bench/heap_bench.cpp", *sorted(core.glob("*.cpp"))]
    optimize = "-O0" if smoke else "-O3"
    if smoke:  # one file compiles several times faster; the real build has no such inlining
        whole = folder / "whole.cpp"
        whole.write_text("".join(f'#include "{source}"\n' for source in reversed(sources)))
        sources = [whole]
    program = folder / "heap_bench"
    command = ["g++", "-std=c++17", optimize, "-DNDEBUG", f"-I{core}", f"-I{tree}/native/include"]
    command += [*map(str, sources), "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return program


def tree_of(revision: str, folder: Path) -> Path:
    """What is measured, as it was."""
    archive = folder / "before.tar"
    command = [
        "git",
        "archive",
        f"--output={archive}",
        revision,
        "allocator",
        "native/include",
        "bench/heap_bench.cpp",
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder


def measure(
    program: Path, allocator: str, live: int, pairs: int, mix: str, placement: str
) -> dict[str, object]:
    numbers = (live, pairs, *MIXES[mix], PLACEMENTS.index(placement), SEED)
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
    parser.add_argument("--before", metavar="REVISION", help="also measure the heap of a revision")
    parser.add_argument("--placement", choices=PLACEMENTS, default="best-fit", help="of the pool")
    parser.add_argument("--json", metavar="FILE", help="write the results; '-': standard output")
    parser.add_argument("--smoke", action="store_true", help="a few pairs, no optimization")
    options = parser.parse_args(arguments)

    pairs = 2_000 if options.smoke else 300_000
    results = []
    with tempfile.TemporaryDirectory() as now, tempfile.TemporaryDirectory() as then:
        programs = {"": build(Path(now), ROOT, options.smoke)}
        if options.before:
            tree = tree_of(options.before, Path(then))
            programs = {"_before": build(tree, tree, options.smoke), **programs}
        for mix in MIXES:
            for live in (1_000, 10_000):
                for suffix, program in programs.items():
                    # The heap has no blocks below its grain.
                    for allocator in ("heap", "pool") if mix != "small" else ("pool",):
                        arm = measure(program, allocator, live, pairs, mix, options.placement)
                        results.append(arm | {"allocator": allocator + suffix})
                program = programs[""]
                results.append(measure(program, "glibc", live, pairs, mix, options.placement))
    report = {
        "bench": "heap",
        "format": 2,
        "smoke": options.smoke,
        "seed": SEED,
        "commit": described(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        ),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(["python", "bench/heap.py", *sys.argv[1:]]),
        "placement": options.placement,
        "before": options.before,
        "platform": platform.platform(terse=True),
        "compiler": described(["g++", "--version"]),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "libc": " ".join(platform.libc_ver()),
        "results": results,
    }
    if options.json == "-":
        json.dump(report, sys.stdout, indent=1)
        return 0
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'mix':10}{'live':>7}  {'':12}{'median ns':>10}{'lowest ns':>10}")
    for entry in results:
        print(
            f"{entry['mix']:10}{entry['live_blocks']:7}  {entry['allocator']:12}"
            f"{entry['median_ns']:10.1f}{entry['lowest_ns']:10.1f}"
        )
    return 0


def described(command: list[str]) -> str:
    """The first line of what a command says, or "unknown"."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip() or "unknown"


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
