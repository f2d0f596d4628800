"""What dtr_alloc costs while its budget never binds.

    python -m bench.overhead [--json PATH] [--smoke]

Two answers, each from one process in which the ways to run take turns, round by round:

- per operator: the time that dtr_alloc adds to operators on small tensors, where there is nothing
  to hide behind. Beside it, what a dispatch mode that does nothing adds: PyTorch charges that for
  any mode. Tensors have 1 KiB, just large enough that results are recorded with their closures.
- per training step: the time that steps of whole jobs take under dtr_alloc, as a ratio to the
  time without. Steps include the allocator, whose reuse of memory can make them faster.

Times are the least of many rounds, in one thread. A few percent of the difference stay noise.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from bench import results
from bench.models import JOBS, Job

SIDE = 16
Call = Callable[[], Any]


class Nothing(TorchDispatchMode):
    """The least that a dispatch mode can do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs) if kwargs else func(*args)


class Counting(TorchDispatchMode):
    """Counts the operators that a mode sees."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def unlimited() -> AbstractContextManager[None]:
    """dtr_alloc, with a budget that never binds."""
    return dtr_alloc.session(budget="unlimited", device="cpu")


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "noop mode": Nothing,
    "dtr_alloc": unlimited,
}


def square() -> Tensor:
    return torch.randn(SIDE, SIDE)


def weight() -> nn.Parameter:
    return nn.Parameter(square())


def add() -> Call:
    x, y = square(), square()
    return lambda: x + y


def relu() -> Call:
    x = square()
    return lambda: torch.relu(x)


def mul_scalar() -> Call:
    x = square()
    return lambda: x * 0.5


def addmm() -> Call:
    bias, x, w = nn.Parameter(torch.zeros(SIDE)), square(), weight()
    return lambda: torch.addmm(bias, x, w)


def cat() -> Call:
    x, y = square(), square()
    return lambda: torch.cat([x, y])


def softmax() -> Call:
    x = square()
    return lambda: torch.softmax(x, dim=-1)


def total_by_row() -> Call:
    x = square()
    return lambda: x.sum(dim=0, keepdim=True)


def layer_norm() -> Call:
    x, w, b = square(), nn.Parameter(torch.ones(SIDE)), nn.Parameter(torch.zeros(SIDE))
    return lambda: nn.functional.layer_norm(x, (SIDE,), w, b)


def update_parameter() -> Call:
    w, step = weight(), square()
    return lambda: w.add_(step)


def update_result() -> Call:
    x, y = square(), square()
    return lambda: torch.mul(x, y).add_(y)


def dropout() -> Call:
    x = square()
    return lambda: nn.functional.dropout(x, 0.5)


def backward() -> Call:
    """A linear layer with relu, forward and backward; the gradient is not accumulated."""
    x, w, b = square(), weight(), nn.Parameter(torch.zeros(SIDE))
    ones = torch.ones(SIDE, SIDE)

    def run() -> None:
        torch.autograd.grad(torch.relu(nn.functional.linear(x, w, b)), (w, b), ones)

    return run


@dataclass(frozen=True)
class Case:
    """One operator or a few: `make` builds the inputs under the mode that is measured."""

    name: str
    make: Callable[[], Call]
    grad: bool = False


CASES = (
    Case("add", add),
    Case("relu", relu),
    Case("mul by a scalar", mul_scalar),
    Case("addmm", addmm),
    Case("cat of two", cat),
    Case("softmax", softmax),
    Case("sum by row", total_by_row),
    Case("layer_norm", layer_norm),
    Case("add_ to a parameter", update_parameter),
    Case("mul, add_", update_result),
    Case("dropout", dropout),
    Case("addmm, autograd", addmm, grad=True),
    Case("layer_norm, autograd", layer_norm, grad=True),
    Case("linear, relu, backward", backward, grad=True),
)

JOBS_AT_SCALE = {"mlp": 16.0, "transformer": 8.0, "resnet": 8.0, "lstm": 32.0}
"""Jobs and scales at which most operators take 50 microseconds to milliseconds."""


def operators(case: Case) -> int:
    """How many operators one call of the case is, as a mode sees them."""
    with torch.set_grad_enabled(case.grad):
        call = case.make()
        with Counting() as mode:
            call()
    return mode.count


def time_calls(case: Case, mode: str, calls: int) -> float:
    """Nanoseconds of one call under a mode, from one round."""
    with MODES[mode](), torch.set_grad_enabled(case.grad):
        call = case.make()
        for _ in range(calls // 8 + 1):
            call()
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        return (perf_counter_ns() - start) / calls


def measure_case(case: Case, rounds: int, calls: int) -> dict[str, Any]:
    """One row: what the modes add to one operator of the case."""
    least = dict.fromkeys(MODES, float("inf"))
    for _ in range(rounds):
        for mode in MODES:
            least[mode] = min(least[mode], time_calls(case, mode, calls))
    count = operators(case)
    return {
        "case": case.name,
        "operators": count,
        "plain_ns_per_op": least["plain"] / count,
        "noop_mode_ns_per_op": (least["noop mode"] - least["plain"]) / count,
        "added_ns_per_op": (least["dtr_alloc"] - least["plain"]) / count,
    }


def timed_steps(job: Job, first: int, steps: int) -> Iterator[float]:
    for i in range(first, first + steps):
        start = perf_counter_ns()
        job.step(i)
        yield (perf_counter_ns() - start) / 1e9


def measure_job(name: str, scale: float, rounds: int, seed: int) -> dict[str, Any]:
    """One row: a job's step without and with dtr_alloc; a job of its own for each."""
    ways = {way: MODES[way] for way in ("plain", "dtr_alloc")}
    jobs: dict[str, Job] = {}
    times: dict[str, list[float]] = {way: [] for way in ways}
    steps = 3
    for done in range(0, rounds * steps, steps):
        for way, mode in ways.items():
            with mode():
                if way not in jobs:
                    jobs[way] = JOBS[name](scale=scale, seed=seed)
                # The first step after a switch meets cold caches and new records.
                times[way] += list(timed_steps(jobs[way], done, steps))[1:]
    with Counting() as counting:
        jobs["plain"].step(rounds * steps)
    plain, ours = min(times["plain"]), min(times["dtr_alloc"])
    return {
        "job": name,
        "scale": scale,
        "operators": counting.count,
        "step_seconds_plain": plain,
        "step_seconds": ours,
        "ratio": ours / plain,
        "added_ns_per_op": (ours - plain) * 1e9 / counting.count,
    }


def show(cases: list[dict[str, Any]], jobs: list[dict[str, Any]], console: Console) -> None:
    """Both answers as tables."""
    table = Table(title="Per operator on 1 KiB tensors, ns")
    table.add_column("case")
    for column in ("operators", "plain", "added by a mode that does nothing", "added by dtr_alloc"):
        table.add_column(column, justify="right")
    for row in cases:
        keys = ("plain_ns_per_op", "noop_mode_ns_per_op", "added_ns_per_op")
        table.add_row(row["case"], str(row["operators"]), *(f"{row[key]:,.0f}" for key in keys))
    console.print(table)
    table = Table(title="Per training step")
    table.add_column("job")
    for column in ("scale", "operators", "plain ms", "dtr_alloc ms", "ratio", "added ns per op"):
        table.add_column(column, justify="right")
    for row in jobs:
        table.add_row(
            row["job"],
            f"{row['scale']:g}",
            str(row["operators"]),
            f"{row['step_seconds_plain'] * 1e3:.2f}",
            f"{row['step_seconds'] * 1e3:.2f}",
            f"{row['ratio']:.3f}x",
            f"{row['added_ns_per_op']:,.0f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What dtr_alloc costs while its budget is idle.")
    parser.add_argument("--rounds", type=int, default=40, help="of the cases; a job takes a third")
    parser.add_argument("--calls", type=int, default=400, help="of a case in one round")
    parser.add_argument("--no-jobs", action="store_true", help="operators only")
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write results there, - for stdout")
    parser.add_argument("--smoke", action="store_true", help="few rounds, one job, seconds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rounds, at_scale = args.rounds, JOBS_AT_SCALE
    if args.smoke:
        rounds, at_scale = 3, {"mlp": 1.0}
    if args.no_jobs:
        at_scale = {}
    console = results.console()
    cases, jobs = [], []
    gc.collect()
    gc.disable()  # a collection in one round and not in another would be noise
    for case in CASES:
        with console.status(f"timing {case.name}"):
            cases.append(measure_case(case, rounds, args.calls))
    gc.enable()
    for name, scale in at_scale.items():
        with console.status(f"training {name}"):
            jobs.append(measure_job(name, scale, max(rounds // 3, 2), args.seed))
    show(cases, jobs, console)
    middle = {
        key: statistics.median(row[key] for row in cases)
        for key in ("added_ns_per_op", "noop_mode_ns_per_op")
    }
    console.print(
        f"median over the cases: dtr_alloc adds {middle['added_ns_per_op']:,.0f} ns an operator, "
        f"of which {middle['noop_mode_ns_per_op']:,.0f} ns is what any dispatch mode costs"
    )
    if args.json:
        document = results.environment(args.device, args.seed) | {"bench": "overhead"}
        document |= {"rounds": rounds, "calls": args.calls} | middle
        results.write_json(document | {"cases": cases, "jobs": jobs}, args.json)


if __name__ == "__main__":
    main()
