"""Jobs of PyTorch's frameworks, each as its users write it, under budgets.

    python -m bench.frameworks [--job NAME]... [--smoke] [--json PATH]

It runs where they are installed (`make frameworks`). Each way to train a job is a process of its
own, or two, on one thread: as it is, and by `dtr-alloc run` with no limit and with SHARES of the
activation memory, which is what a step adds to what stays between two steps. The ways take turns, a
step each, after FIRST_STEPS: a plan may have been learned then.

- Ratios are of the time of the processor, to plain PyTorch's step of the same round; medians.
- Losses, parameters, states of the optimizer and of the generator are compared bit by bit.
- The smallest budget is found by bisection; a few steps train in it. No schedule goes below its
  bound (see bench.smallest_budget).
- What is kept is dtr_alloc.kept() as a backward pass begins, less what is kept between two steps.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import click
import torch

from bench import results
from bench.frameworks.jobs import DISTRIBUTED, JOBS
from bench.frameworks.report import COLUMNS, cells
from bench.frameworks.worker import SEED
from bench.interleaved import KEEP_MEMORY, Budget, Child, Ended, Interleaved, different
from bench.measure import Profile
from bench.smallest_budget import bisect
from bench.studies.floor import least_bytes
from dtr_alloc.oplog import compile_log

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SHARES = (0.7, 0.5)
FIRST_STEPS = 20
FEW_STEPS = 3
"""Enough to find a budget too small, or what a job holds."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
GRACE_SECONDS = 200.0
"""For importing a framework and compiling."""
LEAST_KEPT_BYTES = 4096


class Processes(Child):
    """Those of a job, one or two, in an environment of a folder's; with settings of dtr_alloc, by
    its command line."""

    def __init__(
        self, folder: Path, job: str, steps: int, first: int, settings: dict[str, Any]
    ) -> None:
        pipe, other = Pipe()
        super().__init__(pipe)
        worker = ["-m", "bench.frameworks.worker", job, str(steps), str(first)]
        options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        run = ["-m", "dtr_alloc.cli", "run", "--device", "cpu", *options] if options else []
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        ranks = _ranks() if job in DISTRIBUTED else [{}]
        self._processes = [
            subprocess.Popen(
                [sys.executable, *run, *worker, str(other.fileno())],
                cwd=ROOT,
                env={**os.environ, **KEEP_MEMORY, **ONE_THREAD, **cache, **rank},
                pass_fds=[other.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in ranks
        ]
        other.close()

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _ranks() -> list[dict[str, str]]:
    """The variables that torchrun sets for two processes of one machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    both = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [both | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]


def few_steps(folder: Path, job: str, **settings: Any) -> dict[str, Any]:
    """What a job says that trains FEW_STEPS. Raises Ended."""
    with closing(Processes(folder, job, FEW_STEPS, FEW_STEPS, settings)) as child:
        first = child.answer()
        return first | child.finish()


def smallest(
    folder: Path, job: str, plain: dict[str, Any], shape: Profile, resolution: float
) -> dict[str, Any]:
    """The smallest budget in which a job trains a few steps, and what differs there."""
    ended: list[str] = []

    def train(budget: int) -> list[str] | None:
        try:
            return different(plain["state"], few_steps(folder, job, budget=budget)["state"])
        except Ended as end:
            ended.extend([str(end)] if str(end) != "out of memory" else [])
            return None

    worked = bisect(shape, resolution, train)
    found: dict[str, Any] = {"ended": ended} if ended else {}
    if not worked:
        return found | {"outcome": "none trains"}
    budget, differs = worked[-1]
    part = round(shape.fraction(budget), 4)
    return found | {"outcome": "trains", "bytes": budget, "part": part, "differs": differs}


def measure(job: str, rounds: int, resolution: float) -> dict[str, Any]:
    """A row of the table. Two processes run at a time before the turns begin."""
    with (
        tempfile.TemporaryDirectory() as name,
        ExitStack() as stack,
        ThreadPoolExecutor(1 if job in DISTRIBUTED else 2) as pool,
    ):
        folder, steps = Path(name), FIRST_STEPS + rounds
        log = folder / "log-{rank}"

        def start(budget: Budget | None) -> Child:
            # With a file of costs a job waits for what is learned.
            costs = folder / f"costs-{budget}-{{rank}}.json"
            settings = {} if budget is None else {"budget": budget, "costs": costs}
            return Processes(folder, job, steps, FIRST_STEPS, settings)

        first = pool.submit(few_steps, folder, job, log=log)
        turns = Interleaved(stack, job, start, None, first_steps=FIRST_STEPS, grace=GRACE_SECONDS)
        plain = first.result()
        shape = Profile(plain["idle"], plain["peak"])
        budgets: dict[str, Budget] = {"no limit": "unlimited"}
        budgets |= {f"{share:.0%}": shape.budget(share) for share in SHARES}
        least = pool.submit(smallest, folder, job, plain, shape, resolution)
        list(pool.map(lambda way: turns.add(way, budgets[way]), budgets))
        row = {"job": job, "idle_bytes": shape.idle_bytes, "peak_bytes": shape.peak_bytes}
        row |= {"bound_bytes": least_bytes(compile_log(str(log).format(rank=0)))}
        row |= {"smallest": least.result()}
        turns.run(rounds)
    ways = turns.ways
    kept = ways["no limit"].pop("kept", [])
    for way in ways.values():
        way.pop("kept", None)
    return row | {"ways": ways, "kept": [each for each in kept if each[0] >= LEAST_KEPT_BYTES]}


def versions() -> dict[str, str]:
    """Of the frameworks."""
    lines = REQUIREMENTS.read_text().split()
    return {name: version(name) for name in (line.partition("==")[0] for line in lines)}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Default: all.")
@click.option("--rounds", default=7, show_default=True)
@results.options("A job of PyTorch alone, one round.")
def main(jobs: tuple[str, ...], rounds: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    names = jobs or (("compile, aot_eager",) if smoke else tuple(JOBS))
    resolution = 0.5 if smoke else 0.04
    console = results.console()
    rows = []
    for name in names:
        with console.status(name):
            rows.append(measure(name, 1 if smoke else rounds, resolution))
    document = results.environment("cpu", SEED) | {"bench": "frameworks", "rounds": rounds}
    document |= {"resolution": resolution, "versions": {} if smoke else versions(), "results": rows}
    if path:
        results.write_json(document, path)
    title = "Steps against plain PyTorch's, in shares of the activation memory"
    console.print(results.lines(title, COLUMNS, cells(document)))


if __name__ == "__main__":
    main()
