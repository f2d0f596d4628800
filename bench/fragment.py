"""How long a trace of a million events takes through each model of an allocator.

    python -m bench.fragment [--json PATH] [--smoke]

The trace is made up: steps of a training job with layers whose sizes repeat, activations that are
freed in reverse, a workspace for each operator, and every so often a batch of another shape.
Measured: writing the trace to a file, reading it, pairing its allocations; then for each model the
run alone (the counter of the core), and all of it: also the second pass, which looks at every
hole at about 2,000 rows, and the result in Python; and what ``dtr-alloc fragment report`` says of
the trace as our pool placed it, without a model. One run of each.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench.heap import cpu_name
from bench.results import console, environment, write_json
from dtr_alloc.fragment import formats, report
from dtr_alloc.fragment.models import MODELS, Prepared
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace

GOAL_SECONDS = 10.0
SEED = 0
LAYERS = 400
KIB = 1024


class Job:
    """A made-up training job that allocates; addresses are those of an allocator without reuse."""

    def __init__(self, seed: int) -> None:
        self.trace = Trace({"source": "bench", "time_unit": "ns"})
        self.draw = random.Random(seed)
        self.address = 1 << 20
        self.weights = [self.draw.choice((4, 64, 1024, 4096)) * KIB for _ in range(LAYERS)]
        self.channels = [self.draw.choice((1, 3, 8, 24, 64)) * KIB for _ in range(LAYERS)]
        for size in self.weights:
            self.allocate(size)

    def allocate(self, size: int) -> int:
        address, now = self.address, 1000 * len(self.trace)
        self.address += -(-size // 512) * 512
        self.trace.add(Kind.ALLOCATE, time_ns=now, address=address, size_bytes=size)
        return address

    def free(self, address: int) -> None:
        self.trace.add(Kind.FREE, time_ns=1000 * len(self.trace), address=address)

    def operator(self, size: int) -> int:
        workspace = self.allocate(self.draw.choice((512, size // 4 + 1, size)))
        result = self.allocate(size)
        self.free(workspace)
        return result

    def step(self) -> None:
        batch = self.draw.choice((16, 16, 16, 16, 13, 19, 32))
        kept = [self.operator(batch * channels) for channels in self.channels]
        gradient = self.allocate(batch * KIB)
        for layer in reversed(range(LAYERS)):
            of_weights = self.operator(self.weights[layer])
            before = self.operator(batch * self.channels[layer])
            self.free(gradient)
            self.free(kept[layer])
            self.free(of_weights)
            gradient = before
        self.free(gradient)


def make_trace(events: int, seed: int = SEED) -> Trace:
    """Whole steps, cut off at so many events."""
    job = Job(seed)
    while len(job.trace) < events:
        job.step()
    return job.trace.select(range(events))


def as_placed(trace: Trace, addresses: Sequence[int]) -> Trace:
    """The trace where each allocation has the address of that number."""
    made = trace.select(range(len(trace)))
    at: dict[int, int] = {}  # by the address that it had
    coming = iter(addresses)
    for event, (kind, address) in enumerate(zip(trace.kind, trace.address, strict=True)):
        if kind == Kind.ALLOCATE:
            at[address] = next(coming)
        made.address[event] = at[address]
    return made


def _timed(work: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def measure(events: int) -> dict[str, Any]:
    """Everything about a trace of so many events."""
    trace = make_trace(events)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made-up.trace"
        _, written = _timed(lambda: trace_file.write(trace, path))
        size = path.stat().st_size
        trace, read = _timed(lambda: formats.read(path))
    prepared, paired = _timed(lambda: Prepared(trace))
    rows = []
    for model in MODELS:
        result, seconds = _timed(lambda model=model: prepared.run(model, placements=True))
        rows.append(
            {
                "model": model,
                "run_seconds": result.ns_per_operation * result.events / 1e9,
                "whole_seconds": seconds,
                "ns_per_operation": result.ns_per_operation,
                "peak_live_bytes": result.peak_live_bytes,
                "peak_reserved_bytes": result.peak_reserved_bytes,
                "mean_lost_bytes": result.mean_lost_bytes,
            }
        )
    placements = prepared.run("ours", placements=True).placements
    assert placements is not None
    recorded = as_placed(trace, placements)
    _, reported = _timed(lambda: report.document(report.reports("made-up", recorded)))
    return {
        "events": events,
        "allocations": prepared.allocations,
        "file_bytes": size,
        "write_seconds": written,
        "read_seconds": read,
        "pair_seconds": paired,
        "report_seconds": reported,
        "goal_seconds": GOAL_SECONDS,
        "results": rows,
    }


def _show(found: dict[str, Any]) -> None:
    table = Table(
        title=f"{found['events']:,} events: read in {found['read_seconds']:.2f} s, paired in "
        f"{found['pair_seconds']:.2f} s, reported in {found['report_seconds']:.2f} s"
    )
    for head in ("model", "run, s", "with samples, s", "ns per operation", "reserved / live"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for row in found["results"]:
        table.add_row(
            *(row["model"], f"{row['run_seconds']:.2f}", f"{row['whole_seconds']:.2f}"),
            f"{row['ns_per_operation']:.0f}",
            f"{row['peak_reserved_bytes'] / row['peak_live_bytes']:.3f}",
        )
    console().print(table)


@click.command()
@click.option("--smoke", is_flag=True, help="A short trace, to see that it runs.")
@click.option("--json", "json_path", metavar="PATH", help="Write the figures; - is stdout.")
def main(smoke: bool, json_path: str | None) -> None:
    """Times every model over a made-up trace, and the report on it."""
    found = measure(20_000 if smoke else 1_000_000)
    _show(found)
    if json_path:
        document = {"bench": "fragment", "cpu": cpu_name(), **environment("cpu", SEED), **found}
        write_json(document, json_path)


if __name__ == "__main__":
    main()
