"""How long the simulator takes, beside the published one, and how that grows with the log.

Measured: reading a log, and running it at half its peak with simrd's semantics. With
``--simrd FOLDER`` (the folder ``simrd`` of uwsampl/dtr-prototype; it needs the package attrs) the
published simulator does the same in the same run, and the two must end with the same counters.
Then logs of growing length: networks of N equal layers, forward and backward, in memory for
2 sqrt(N) of their tensors; and steps of a network of 1,000 layers, one after the other.

    python -m bench.simulator                           # the logs in tests/data
    python -m bench.simulator --log a.log.xz --simrd ../dtr-prototype/simrd --json -
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import math
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench.heap import cpu_name
from bench.results import console, environment, write_json
from dtr_alloc import oplog
from dtr_alloc.oplog import FRESH, Program
from dtr_alloc.simulation import simulate

LOGS = Path(__file__).parents[1] / "tests" / "data" / "simrd" / "synthetic_logs"
HEURISTICS = {"dtr-eqclass": "DTREqClass", "dtr-full": "DTR"}
"""Ours, and the published simulator's name for it."""
GOALS = {"dtr-eqclass": 30, "dtr-full": 100}
"""How many times faster a run is to be than the published simulator's."""
LAYERS_OF_A_STEP = 1000
EAGER = "RuntimeV2EagerOptimized"
OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


class Published:
    """The published simulator, imported from a folder."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        try:
            self._parse = importlib.import_module("simrd.parse.parse")
            self._runtime = importlib.import_module("simrd.runtime")
            self._heuristic = importlib.import_module("simrd.heuristic")
        except ImportError as error:
            raise click.BadParameter(f"{folder}: {error}", param_hint="--simrd") from None
        finally:
            sys.path.pop(0)

    def read(self, log: Path) -> Any:
        with OPENERS.get(log.suffix, open)(log, "rt") as lines:
            return self._parse.parse_file(lines)

    def run(self, graph: Any, heuristic: str, budget_bytes: int) -> dict[str, Any]:
        kind = self._runtime.RUNTIMES[EAGER]
        runtime = kind(budget_bytes, self._heuristic.HEURISTICS[heuristic]())
        program = graph.get_closure()
        begin = time.perf_counter()
        with suppress(MemoryError, AssertionError):  # ours ends at the same point
            program(runtime)
        seconds = time.perf_counter() - begin
        summary = runtime.telemetry.summary
        return {
            "seconds": seconds,
            "clock": runtime.clock,
            "evaluations": summary["heuristic_eval_count"],
            "peak_bytes": summary["max_memory"],
        }


def timed(action: Any, *arguments: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - begin, result


def measure_log(log: Path, repeats: int, published: Published | None) -> Iterator[dict[str, Any]]:
    """One row a heuristic."""
    readings = [timed(oplog.compile_log, log) for _ in range(repeats)]
    program = readings[0][1]
    budget = simulate.baseline(program).peak_bytes // 2
    graph_seconds, graph = timed(published.read, log) if published else (None, None)
    for heuristic, their_name in HEURISTICS.items():
        runs = [simulate.run_log(program, heuristic, budget) for _ in range(repeats)]
        row: dict[str, Any] = {
            "log": log.name,
            "heuristic": heuristic,
            "operators": program.operator_count,
            "status": runs[0].status,
            "decisions": runs[0].model_ops + runs[0].remat_ops + runs[0].forced + runs[0].other,
            "read_seconds": statistics.median(seconds for seconds, _ in readings),
            "run_seconds": statistics.median(run.seconds for run in runs),
            "evaluations": runs[0].evaluations,
        }
        if published:
            theirs = published.run(graph, their_name, budget)
            ours = {key: getattr(runs[0], key) for key in ("clock", "evaluations", "peak_bytes")}
            seconds = theirs.pop("seconds")
            if theirs != ours:
                raise click.ClickException(f"{log}: {heuristic}: {ours}, published {theirs}")
            row |= {
                "published_read_seconds": graph_seconds,
                "published_run_seconds": seconds,
                "times_faster": seconds / row["run_seconds"],
                "times_faster_with_reading": (graph_seconds + seconds)
                / (row["read_seconds"] + row["run_seconds"]),
            }
        yield row


class Network:
    """A program that is being written: networks of equal layers, each op of cost 1 and size 1."""

    def __init__(self) -> None:
        self.program = Program("generated")
        self._names = 0

    def _call(self, *inputs: int) -> int:
        name = self._names
        self._names += 1
        code = (oplog.CALL, 1, len(inputs), *inputs, 1, name, 1, FRESH)
        self.program.code.extend(code)
        self.program.operators.append(0)
        self.program.workspace_at.append(0)
        return name

    def _release(self, name: int) -> None:
        self.program.code.extend((oplog.RELEASE, name))

    def step(self, layers: int) -> None:
        """Forward and backward; nothing is left but the last gradient, which is released."""
        forward = [self._call()]
        for _ in range(layers - 1):
            forward.append(self._call(forward[-1]))
        self._release(forward.pop())
        gradient = self._call()
        while forward:
            self._release(forward.pop())
            before = gradient
            gradient = self._call(*forward[-1:], before)
            self._release(before)
        self._release(gradient)


def measure_growth(kind: str, operators: int) -> dict[str, Any]:
    """A generated log of about so many operators, under dtr-eqclass."""
    network = Network()
    layers = operators // 2 if kind == "one step" else LAYERS_OF_A_STEP
    for _ in range(max(1, operators // (2 * layers))):
        network.step(layers)
    budget = math.ceil(2 * math.sqrt(layers))
    run = simulate.run_log(network.program, "dtr-eqclass", budget)
    executed = run.model_ops + run.remat_ops
    return {
        "kind": kind,
        "operators": network.program.operator_count,
        "budget": budget,
        "status": run.status,
        "executed": executed,
        "run_seconds": run.seconds,
        "us_per_executed": 1e6 * run.seconds / executed,
        "evaluations": run.evaluations,
    }


def show(document: dict[str, Any]) -> None:
    screen = console()
    table = Table("log", "heuristic", "operators", "read s", "run ms", "times faster", "read too")
    for row in document["logs"]:
        faster = [f"{row[key]:.0f}" if key in row else "-" for key in FASTER]
        table.add_row(
            row["log"],
            row["heuristic"],
            f"{row['operators']:,}",
            f"{row['read_seconds']:.3f}",
            f"{1e3 * row['run_seconds']:.2f}",
            *faster,
        )
    screen.print(table)
    table = Table("generated", "operators", "executed", "run s", "us per executed operator")
    for row in document["growth"]:
        table.add_row(
            row["kind"],
            f"{row['operators']:,}",
            f"{row['executed']:,}",
            f"{row['run_seconds']:.2f}",
            f"{row['us_per_executed']:.2f}",
        )
    screen.print(table)


FASTER = ("times_faster", "times_faster_with_reading")


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option("--log", "logs", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--simrd", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--operators", default="10000,100000,1000000", help="Lengths of generated logs.")
@click.option("--repeats", default=5, help="Readings of our own; the median counts.")
@click.option("--json", "json_path", metavar="PATH", help="Write results there, - for stdout.")
@click.option("--smoke", is_flag=True, help="One short log, seconds.")
def main(
    logs: tuple[Path, ...],
    simrd: Path | None,
    operators: str,
    repeats: int,
    json_path: str | None,
    smoke: bool,
) -> None:
    published = Published(simrd) if simrd else None
    lengths = [2000] if smoke else [int(length) for length in operators.split(",")]
    chosen = logs or sorted(LOGS.glob("*.log.xz"))[: 1 if smoke else None]
    document = {
        **environment("cpu", 0),
        "bench": "simulator",
        "processor": cpu_name(),
        "published": "uwsampl/dtr-prototype, in the same run" if published else None,
        "goals": GOALS,
        "logs": [row for log in chosen for row in measure_log(log, repeats, published)],
        "growth": [
            measure_growth(kind, length)
            for kind in ("one step", "many steps")
            for length in lengths
        ],
    }
    show(document)
    if json_path:
        write_json(document, json_path)


if __name__ == "__main__":
    main()
