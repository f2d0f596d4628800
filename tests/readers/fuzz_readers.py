"""Mutated files for every reader of files: each is read, or refused by name. Never worse.

    export PYTHONPATH=.:tests/allocator
    python tests/readers/fuzz_readers.py --seconds 3600     (make fuzz SECONDS=3600)
    python tests/readers/fuzz_readers.py --case trace:17    (one case again, in this process)

A case is a target and a number, which is the seed of all that is random in it. Cases run in forked
processes with a limit on address space; the parent ends one that is silent for too long. What is
found is written to build/fuzz/, file and story.

What counts as a fault: an exception that is not the reader's own, or does not name the file; an
exit status of the command that is neither 0 nor 2 (1: nothing was found); memory beyond the
limit, which is a hundred times what these files may cost; a signal; silence.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing import Pipe, get_context
from pathlib import Path
from typing import Any, NamedTuple

import hostile

from bench.studies import best, schedules
from bench.studies.__main__ import MOST_BYTES
from dtr_alloc import bounded, cli, config, costs, oplog
from dtr_alloc.cli.common import InputError, json_object
from dtr_alloc.fragment import formats, report
from dtr_alloc.fragment.models import MODELS, Prepared
from dtr_alloc.simulation import simulate
from dtr_alloc.traces.trace import Trace, TraceError

ROOT = Path(__file__).resolve().parents[2]
ADDRESS_SPACE = 3 << 30
"""Beyond what a process has when it begins."""

RECORDS = "out of host memory for the allocator's own records"
"""Of a heap of so many addresses as blocks of 2**59 bytes need: more than there is here."""

SILENCE_S = 300
"""A case takes milliseconds; on a machine with other work, a second."""


class Fault(Exception):
    """A case that ended in another way than it may."""


def command(*arguments: object, main: Callable[[list[str]], object] = cli.main) -> None:
    """The command line in this process. Raises Fault unless it exits with 0 or 2, or with 1 and one
    line that says why."""
    said, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            main([str(argument) for argument in arguments])
        status: object = 0
    except SystemExit as end:
        status = end.code or 0
    text = errors.getvalue()
    is_too_much = "not enough memory" in text and RECORDS not in text
    if status not in (0, 1, 2) or is_too_much:
        raise Fault(f"dtr-alloc {arguments[0]} exits with {status}: {text[-500:]}")
    if status == 1 and "no schedule was found" not in text:
        raise Fault(f"dtr-alloc {arguments[0]} exits with 1: {text[-500:]}")


@contextlib.contextmanager
def tolerated(*kinds: type[Exception]) -> Iterator[None]:
    """What a run may raise: these, and that there is no memory for its records."""
    try:
        yield
    except MemoryError as error:
        if RECORDS not in str(error):
            raise
    except kinds:
        pass


@contextlib.contextmanager
def named(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """What may be raised of a file: these, with the file's name in a message that can be read."""
    try:
        yield
    except kinds as error:
        text = str(error)
        if path.name not in text or len(text) > 8000 or bounded.OUT_OF_MEMORY in text:
            raise Fault(
                f"{type(error).__name__} that is not as it should be: {text:.500}"
            ) from error


# ---- what is done with a file ----


def use_trace(rng: random.Random, path: Path) -> None:
    with named(path, TraceError):
        trace = formats.read(path, allow_truncated=rng.random() < 0.3)
        with tolerated(TraceError):  # what cannot be followed or converted says so
            follow(rng, trace, path)
    if rng.random() < 0.3:
        options = ["--model", rng.choice(list(MODELS))] if rng.random() < 0.9 else []
        command(
            *("fragment", "report", path, *options, "--json", os.devnull),
            *("--budget", rng.choice(("unlimited", "0.5", "1.0..1.2", "64KiB"))),
        )
    if rng.random() < 0.005:  # matplotlib takes seconds
        command("fragment", "report", path, "--model", "exact", "--out", path.with_name("pictures"))
    if rng.random() < 0.1:
        to = rng.choice(formats.WRITES)
        command("fragment", "export", path, "--to", to, "-o", path.with_name("exported"))


def follow(rng: random.Random, trace: Trace, path: Path) -> None:
    for part in report.reports("x", trace):
        prepared = Prepared(part.trace)
        model = rng.choice(list(MODELS))
        budget = rng.choice((None, 0, 1, 512, 1 << 16, 1 << 40, 2**62, 2**64 - 1))
        part.rows.append(report.of_model(prepared, model, budget, smallest=False, blocks=True))
        report.table(part)
        json.dumps(report.document([part]))
        break  # 256 devices would be as many reports
    copy = path.with_name("copy")
    formats.write(trace, copy, rng.choice(formats.WRITES))
    formats.read(copy)


SEMANTICS = ("simrd", "bytes"), *(("runtime", space) for space in simulate.SPACES)


def use_log(rng: random.Random, path: Path) -> None:
    with named(path, oplog.LogError):
        program = oplog.compile_log(path)
        base = simulate.baseline(program)
        for _ in range(2):
            semantics, space = rng.choice(SEMANTICS)
            with tolerated(ValueError):  # a sum that is too large, a budget of nothing
                simulate.run_log(
                    *(program, rng.choice(("lru", "marginal", "dtr-eqclass", "random"))),
                    rng.choice((None, 1, base.peak_bytes, base.peak_bytes // 2, 2**62)),
                    dealloc=rng.choice(("eager", "ignore")),
                    semantics=semantics,
                    space=space,
                    max_recompute=10 * base.compute,
                )
    if rng.random() < 0.2:
        command(
            *("simulate", path, "--budget", rng.choice(("0.5", "1.0", "1KiB")), "--jobs", 1),
            *("--thrash", 5, "--semantics", rng.choice(("simrd", "runtime")), "--json", os.devnull),
        )
    if rng.random() < 0.1:
        out = path.with_name("found")
        command(
            *("find", path, "--iterations", 5, "--budget", "0.7", "--out", out), main=best.commands
        )


@cache
def the_program() -> oplog.Program:
    return oplog.compile_log(hostile.LOG)


def use_schedule(rng: random.Random, path: Path) -> None:
    with named(path, schedules.ScheduleError):
        for each in schedules.read(path):
            with contextlib.suppress(ValueError):
                schedules.run(the_program(), each)
    if rng.random() < 0.3:
        command("run", hostile.LOG, "--schedule", path, "--json", os.devnull, main=best.commands)


def use_config(rng: random.Random, path: Path) -> None:
    with named(path, config.ConfigError):
        config.given_settings({"DTR_ALLOC_CONFIG": str(path)})


def use_costs(rng: random.Random, path: Path) -> None:
    with named(path, costs.CostFileError):
        costs.CostFile.read(path, "cpu")


def use_result(rng: random.Random, path: Path) -> None:
    with named(path, InputError):
        json_object(path, MOST_BYTES)


def schedule_bytes(rng: random.Random) -> bytes:
    head = {
        "SCHEDULE": 1,
        "LOG": "a.log",
        "SHA256": schedules.identity(the_program()),
        "SEMANTICS": "simrd",
        "DEALLOC": rng.choice(("eager", "ignore")),
        "BUDGET": 1 << 20,
        "COST": 5,
        "BY": "hand",
        "LISTS": 2,
    }
    return hostile.text_bytes(rng, [head, [rng.randrange(9), 2], [9, 3, 4]])


class Target(NamedTuple):
    make: Callable[[random.Random], bytes]
    use: Callable[[random.Random, Path], None]


TARGETS = {
    "trace": Target(hostile.trace_bytes, use_trace),
    "snapshot": Target(hostile.snapshot_bytes, use_trace),
    "rmm": Target(hostile.rmm_bytes, use_trace),
    "log": Target(lambda rng: hostile.text_bytes(rng, hostile.log_lines(rng)), use_log),
    "schedule": Target(schedule_bytes, use_schedule),
    "config": Target(hostile.config_bytes, use_config),
    "costs": Target(hostile.costs_bytes, use_costs),
    "result": Target(hostile.costs_bytes, use_result),
}


def run_case(name: str, number: int, folder: Path) -> None:
    """Raises what a fault is. Leaves the file in the folder until the next case."""
    target = TARGETS[name]
    rng = random.Random(f"{name}:{number}")
    data, ending = hostile.packed(rng, target.make(rng))
    path = folder / f"case{ending}"
    path.write_bytes(data)
    try:
        target.use(rng, path)
    finally:
        path.unlink(missing_ok=True)


# ---- many cases, in processes that may die ----


def _work(pipe: Any, folder: str, name: str, number: int) -> None:
    os.setpgid(0, 0)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fault = None
    try:
        run_case(name, number, Path(folder))
    except BaseException:
        fault = traceback.format_exc()
    pipe.send(fault)


def fault_of(folder: Path, name: str, number: int) -> str | None:
    """What is wrong with a case, in a process of its own, which it may end."""
    pipe, theirs = Pipe(duplex=False)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        process = get_context("fork").Process(target=_work, args=(theirs, own, name, number))
        process.start()
        theirs.close()
        fault = f"silent for {SILENCE_S} seconds"
        try:
            if pipe.poll(SILENCE_S):
                fault = pipe.recv()
            else:
                process.kill()
            process.join()
        except EOFError:
            process.join()
            fault = f"the process ended with {process.exitcode}"
    return fault


def fuzz(
    folder: Path,
    seconds: float = float("inf"),
    cases: float = float("inf"),
    *,
    jobs: int = 1,
    seed: int = 0,
    names: list[str] | None = None,
) -> tuple[Counter[str], dict[str, str]]:
    """Cases of all targets for so long, or so many, with their files in a folder: how many of each
    ran, and what was found, by case."""
    until, last = time.monotonic() + seconds, seed + cases
    ran: Counter[str] = Counter()
    found: dict[str, str] = {}

    def follow(first: int) -> None:
        for number in itertools.count(first, jobs):
            for name in names or TARGETS:
                if number >= last or time.monotonic() > until:
                    return
                ran[name] += 1
                if fault := fault_of(folder, name, number):
                    found[f"{name}:{number}"] = fault

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(follow, range(seed, seed + jobs)))
    return ran, found


def keep(found: dict[str, str]) -> list[Path]:
    """Writes what was found to build/fuzz/: the file of each case, and what it did."""
    folder = ROOT / "build" / "fuzz"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = []
    for case, story in found.items():
        name, _, number = case.partition(":")
        path = folder / f"{name}-{number}"
        path.write_bytes(TARGETS[name].make(random.Random(case)))
        path.with_suffix(".txt").write_text(f"--case {case}\n{story}\n")
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--case", help="one case, in this process: NAME:NUMBER")
    options = parser.parse_args()
    if options.case:
        name, _, number = options.case.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            run_case(name, int(number), Path(folder))
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as folder:
        given = {"jobs": options.jobs, "seed": options.seed, "names": options.target}
        ran, found = fuzz(Path(folder), options.seconds, **given)
    print(", ".join(f"{name} {count}" for name, count in ran.items()))
    for path, story in zip(keep(found), found.values(), strict=True):
        print(f"{path}: {story.strip().splitlines()[-1]:.200}")
    print(f"{sum(ran.values())} cases, {len(found)} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
