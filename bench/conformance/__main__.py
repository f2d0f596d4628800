"""Of every operator, module and optimizer of PyTorch's databases, whether its results can be
evicted and come back with the same bits; if not, why.

    python -m bench.conformance [--json PATH] [--only NAME ...] [--smoke]

Each is called on a few samples, on the CPU, in float32 where it takes that, with the usual limit of
tiny storages and without one (``DTR_ALLOC_DEBUG=tiny:0``). The cases run in child processes, a
hundred in each: one that crashes or hangs is named, and the others go on. It is no measurement.

docs/reference/conformance.md is made of the results.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from rich.markdown import Markdown
from rich.progress import Progress

from bench import results
from bench.conformance.report import markdown, summary

SEED = 0
CHUNK = 100
"""Cases of one process."""
HANGS_AFTER_S = 300
SMOKE = ("add", "empty", "linalg.lstsq", "sparse.mm-reduce", "nn.ReLU", "SGD")


def in_child(names: list[str], first: int) -> None:
    """Runs the cases of these names, from the first on: a line of JSON each."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from bench.conformance.cases import all_cases, report_of

    cases = [case for case in all_cases() if not names or case.name in names]
    print(json.dumps([[case.kind, case.name] for case in cases]), file=lines, flush=True)
    for case in cases[first : first + CHUNK]:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        report: dict[str, Any]
        try:
            report = report_of(case)
        except Exception as error:
            report = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(report), file=lines, flush=True)
    faulthandler.cancel_dump_traceback_later()


def reports(command: list[str]) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """How many cases there are; kind, name and report of each.

    Args:
        command: runs in_child(); is given the number of the first case.

    Raises RuntimeError if a child fails while it runs no case.
    """
    first = 0
    while True:
        with tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen(
                [*command, str(first)], stdout=subprocess.PIPE, stderr=said, text=True
            )
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                said.seek(0)
                raise RuntimeError(f"the cases cannot be told: {said.read()}")
            cases = json.loads(line)
            last = min(first + CHUNK, len(cases))
            for line in child.stdout:
                yield len(cases), *cases[first], json.loads(line)
                first += 1
            if status := child.wait():
                if first == last:
                    raise RuntimeError(f"a child ended with status {status} after its cases")
                yield len(cases), *cases[first], {"error": f"its process ended: status {status}"}
                first += 1
        if first >= len(cases):
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--json", metavar="PATH", help="write the results as JSON; - is stdout")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="no other cases")
    parser.add_argument("--smoke", action="store_true", help="a handful of cases")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = [*SMOKE] if arguments.smoke else arguments.only
    if arguments.first is not None:
        in_child(names, arguments.first)
        return
    command = [sys.executable, "-m", "bench.conformance"]
    command += ["--only", *names] if names else []
    console = results.console()
    found = []
    with Progress(console=console) as progress:
        task = progress.add_task("cases")
        for total, kind, name, report in reports([*command, "--first"]):
            found.append({"kind": kind, "name": name, **report})
            progress.update(task, total=total, advance=1, description=name)
            if bad := report.get("error") or report["wrong"]:
                progress.console.print(f"{name}: {bad}", markup=False)
    torch.set_num_threads(1)
    document = {**results.environment("cpu", SEED), "bench": "conformance", **summary(found)}
    if arguments.json:
        results.write_json(document, arguments.json)
    console.print(Markdown(markdown(document)))


if __name__ == "__main__":
    main()
