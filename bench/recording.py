"""What recording a trace costs a job.

    python -m bench.recording [--json PATH] [--smoke]

Nanoseconds of one small operator (1 KiB results, nothing to hide behind) and of one training step
of a job, in one process in which the ways to run take turns, round by round: as it is (``plain``),
with a light recording (our allocator, no recorder), with the recorder and no budget, and with both.
The columns ``light`` and ``trace`` are the two ratios that recording is about: a light recording
against nothing at all, and a trace against the same session without one. Then, in the core alone, a
pair of free and allocate on a pool with and without a log.

Times are of the processor, the least of many rounds, with operators in one thread; those of the
thread that writes the trace are part of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import process_time_ns
from typing import Any

import torch
from rich.table import Table

import dtr_alloc
from bench import results
from bench.models import JOBS
from dtr_alloc.core import check, ffi, lib

SEED = 0
Ways = dict[str, Callable[[], AbstractContextManager[Any]]]


def ways(trace: Path) -> Ways:
    """How a job runs, by name."""
    return {
        "plain": nullcontext,
        "light": lambda: dtr_alloc.session(device="cpu", trace=trace),
        "recorder": lambda: dtr_alloc.session("unlimited", device="cpu"),
        "both": lambda: dtr_alloc.session("unlimited", device="cpu", trace=trace),
    }


def one_operator() -> Callable[[], Any]:
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    return lambda: x + y


def one_step(job: str) -> Callable[[], Any]:
    torch.manual_seed(SEED)
    running = JOBS[job]()
    steps = iter(range(10**9))
    return lambda: running.step(next(steps))


def least_ns(make: Callable[[], Callable[[], Any]], of: Ways, rounds: int, calls: int) -> Any:
    """Nanoseconds of a call under each way: the least of the rounds' means."""
    least = dict.fromkeys(of, float("inf"))
    for _ in range(rounds):
        for way, session in of.items():
            with session():
                call = make()
                for _ in range(calls // 8 + 1):
                    call()
                begin = process_time_ns()
                for _ in range(calls):
                    call()
                least[way] = min(least[way], (process_time_ns() - begin) / calls)
    return least


def row(name: str, least: dict[str, float]) -> dict[str, Any]:
    return {
        "what": name,
        "ns": {way: round(ns, 1) for way, ns in least.items()},
        "light": round(least["light"] / least["plain"], 4),
        "trace": round(least["both"] / least["recorder"], 4),
    }


def pool_pair_ns(logged: bool, pairs: int) -> float:
    """A free and an allocate of one size, by way of the C functions, on simulated memory: the least
    of the means over 2,000 pairs."""
    options = ffi.new("dtr_pool_options *")
    name = ffi.new("char[]", b"simulated")
    options.driver, options.budget_bytes = name, 2**64 - 1
    pool, log, out = ffi.new("dtr_pool **"), ffi.new("dtr_event_log **"), ffi.new("void **")
    columns = ffi.new("dtr_event_columns *")
    kept = []
    for field, pointer in ffi.typeof("dtr_event_columns").fields:
        kept.append(ffi.new(f"{pointer.type.item.cname}[]", 4096))
        setattr(columns, field, kept[-1])
    check(lib.dtr_pool_create(options, pool))
    check(lib.dtr_event_log_create(log))
    if logged:
        check(lib.dtr_pool_set_log(pool[0], log[0], 0))
    least = float("inf")
    for _ in range(pairs // 2000):
        begin = process_time_ns()
        for _ in range(2000):
            lib.dtr_pool_allocate(pool[0], 4096, 0, out)
            lib.dtr_pool_free(pool[0], out[0])
        least = min(least, (process_time_ns() - begin) / 2000)
        while lib.dtr_event_log_drain(log[0], columns, 4096):
            pass
    check(lib.dtr_pool_set_log(pool[0], ffi.NULL, 0))
    check(lib.dtr_pool_destroy(pool[0]))
    lib.dtr_event_log_destroy(log[0])
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="PATH", help="write the results as JSON; - is stdout")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, no result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds, calls = (1, 200) if arguments.smoke else (15, 20000)
    job_rounds, steps = (1, 1) if arguments.smoke else (8, 3)
    jobs = ("mlp",) if arguments.smoke else ("mlp", "transformer")
    with tempfile.TemporaryDirectory() as folder:
        of = ways(Path(folder) / "job.trace")
        rows = [row("add of 1 KiB", least_ns(one_operator, of, rounds, calls))]
        for job in jobs:
            make = lambda job=job: one_step(job)  # noqa: E731
            rows.append(row(f"a step of {job}", least_ns(make, of, job_rounds, steps)))
    pairs = 4000 if arguments.smoke else 200_000
    taken = [(pool_pair_ns(False, pairs), pool_pair_ns(True, pairs)) for _ in range(rounds)]
    pool = dict(zip(("plain", "logged"), map(min, zip(*taken, strict=True)), strict=True))
    table = Table(title="recording a trace")
    for column in ("what", *of, "light", "trace"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for one in rows:
        times = [f"{one['ns'][way] / 1000:.2f} us" for way in of]
        table.add_row(one["what"], *times, f"{one['light']:.3f}", f"{one['trace']:.3f}")
    console = results.console()
    console.print(table)
    added = (pool["logged"] - pool["plain"]) / 2
    console.print(f"in the core: {added:.0f} ns an event ({pool['plain']:.0f} ns a pair without)")
    if arguments.json:
        document = {
            **results.environment("cpu", SEED),
            "bench": "recording",
            "rounds": rounds,
            "job_rounds": job_rounds,
            "results": rows,
            "pool_pair_ns": {name: round(ns, 1) for name, ns in pool.items()},
            "event_ns": round(added, 1),
        }
        results.write_json(document, arguments.json)


if __name__ == "__main__":
    main()
