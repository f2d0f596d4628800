"""What dtr_alloc costs while its budget never binds.

    python -m bench.overhead [--json PATH] [--smoke]

Three answers, each from one process in which running with and without take turns, round by round:

- per operator: the time that dtr_alloc adds to operators on small tensors, where there is nothing
  to hide behind. Tensors have 1 KiB, just large enough that results are recorded with their
  closures.
- in loops of a few operators on tiny tensors, and in inference: the time of an operator as a ratio,
  with "unlimited" and with a budget in bytes that never binds, from the session's beginning: so it
  has the looks for what is repeated in it.
- per training step: the time of steps of whole jobs, as a ratio to the time without. Steps include
  the allocator, whose reuse of memory can make them faster. The job "tiny" is the hardest: a
  thousand operators on tensors of some bytes. A second ratio is with a budget that never binds. A
  third one is of a job that was made before dtr_alloc was switched on, whose parameters are memory
  of PyTorch's own allocator. A fourth one is of a job for which a page and a line of progress are
  asked for: with the thread that looks at the counters, and hooks on all modules.

Times are the least of many rounds, in one thread: of the process's CPU, which other programs on the
machine disturb less, and for steps of the wall clock, too. A few percent stay noise.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from bench import results
from bench.models import JOBS, Job

SIDE = 16
Call = Callable[[], Any]


class Counting(TorchDispatchMode):
    """Counts the operators that a mode sees."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def unlimited() -> AbstractContextManager[None]:
    """dtr_alloc, with a budget that never binds."""
    return dtr_alloc.session(budget="unlimited", device="cpu")


def budgeted() -> AbstractContextManager[None]:
    """The same, with a budget in bytes: whether steps repeat is looked at, too."""
    return dtr_alloc.session(budget="64GiB", device="cpu")


@contextmanager
def shown() -> Iterator[None]:
    """The same, with all that is gathered for a page and shown meanwhile; the page itself is none,
    as the last session of the process has none."""
    with dtr_alloc.session("unlimited", device="cpu", report="page.html", progress=True):
        yield


MODES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "plain": nullcontext,
    "dtr_alloc": unlimited,
}
LOOP_MODES = {**MODES, "budget": budgeted}


def square() -> Tensor:
    return torch.randn(SIDE, SIDE)


def weight() -> nn.Parameter:
    return nn.Parameter(square())


def line() -> nn.Parameter:
    return nn.Parameter(torch.ones(SIDE))


def on(operator: Callable[..., Any], *inputs: Callable[[], Tensor]) -> Callable[[], Call]:
    """Makes the inputs, and what calls the operator on them."""

    def make() -> Call:
        made = [make_input() for make_input in inputs]
        return lambda: operator(*made)

    return make


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, (SIDE,), w, b)


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
    Case("add", on(torch.add, square, square)),
    Case("relu", on(torch.relu, square)),
    Case("mul by a scalar", on(lambda x: x * 0.5, square)),
    Case("addmm", on(torch.addmm, line, square, weight)),
    Case("cat of two", on(lambda x, y: torch.cat([x, y]), square, square)),
    Case("softmax", on(lambda x: torch.softmax(x, dim=-1), square)),
    Case("sum by row", on(lambda x: x.sum(dim=0, keepdim=True), square)),
    Case("layer_norm", on(layer_norm, square, line, line)),
    Case("add_ to a parameter", on(lambda w, step: w.add_(step), weight, square)),
    Case("mul, add_", on(lambda x, y: torch.mul(x, y).add_(y), square, square)),
    Case("dropout", on(lambda x: nn.functional.dropout(x, 0.5), square)),
    Case("addmm, autograd", on(torch.addmm, line, square, weight), grad=True),
    Case("layer_norm, autograd", on(layer_norm, square, line, line), grad=True),
    Case("linear, relu, backward", backward, grad=True),
)


def repeated(*operators: Callable[[Tensor], Tensor]) -> Callable[[], Call]:
    """Makes a loop of these."""

    def make() -> Call:
        x = torch.randn(8)

        def run() -> None:
            for operator in operators:
                operator(x)

        return run

    return make


def foreach() -> Call:
    """Of several dtypes: there is no kernel for all of them together."""
    tensors = [torch.randn(8, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    return lambda: torch._foreach_add(tensors, 1.0)


def inference() -> Call:
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
    x = torch.randn(4, 8)
    return lambda: net(x)


LOOPS = (
    Case("loop of one", repeated(torch.neg)),
    Case("loop of two", repeated(torch.neg, torch.abs)),
    Case("loop of five", repeated(torch.neg, torch.abs, torch.exp, torch.sin, torch.cos)),
    Case("foreach, a tensor at a time", foreach),
    Case("inference", inference),
)
"""What a job does for long without a training step."""
LOOP_OPERATORS = 40_000
"""In one session: several looks for what is repeated are among them."""


class Tiny(Job):
    """40 layers of width 8 and an optimizer that updates all parameters at once."""

    def build(self) -> None:
        layers = [m for _ in range(40) for m in (nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))]
        self.net = self.add_module("net", nn.Sequential(*layers))
        self.optimizers["adamw"] = torch.optim.AdamW(self.net.parameters(), foreach=True)
        self.x = self.randn(self.batch(4), 8)

    def train(self, i: int) -> Tensor:
        self.optimizers["adamw"].zero_grad()
        loss: Tensor = self.net(self.x).square().mean()
        loss.backward()
        self.optimizers["adamw"].step()
        return loss


TINY = ("tiny", Tiny, 1.0)
STEPS = (
    TINY,
    *(
        (name, JOBS[name], scale)
        for name, scale in (("mlp", 16.0), ("transformer", 8.0), ("resnet", 8.0), ("lstm", 32.0))
    ),
)
"""Jobs and scales; but for the first, most operators take 50 microseconds to milliseconds."""


def operators(case: Case) -> int:
    """How many operators one call of the case is, as a mode sees them."""
    with torch.set_grad_enabled(case.grad):
        call = case.make()
        with Counting() as mode:
            call()
    return mode.count


def time_calls(case: Case, mode: Callable[[], AbstractContextManager[None]], calls: int) -> float:
    """CPU nanoseconds of one call, from one round."""
    with mode(), torch.set_grad_enabled(case.grad):
        call = case.make()
        for _ in range(calls // 8 + 1):
            call()
        start = process_time_ns()
        for _ in range(calls):
            call()
        return (process_time_ns() - start) / calls


def measure_case(case: Case, rounds: int, calls: int) -> dict[str, Any]:
    """One row: what dtr_alloc adds to one operator of the case."""
    least = dict.fromkeys(MODES, float("inf"))
    for _ in range(rounds):
        for way, mode in MODES.items():
            least[way] = min(least[way], time_calls(case, mode, calls))
    count = operators(case)
    return {
        "case": case.name,
        "operators": count,
        "plain_ns_per_op": least["plain"] / count,
        "added_ns_per_op": (least["dtr_alloc"] - least["plain"]) / count,
    }


def measure_loop(case: Case, rounds: int) -> dict[str, Any]:
    """One row: what an operator of a loop takes, as ratios to the time without dtr_alloc."""
    count = operators(case)
    least = dict.fromkeys(LOOP_MODES, float("inf"))
    for _ in range(rounds):
        for way, mode in LOOP_MODES.items():
            least[way] = min(least[way], time_calls(case, mode, LOOP_OPERATORS // count))
    return {
        "loop": case.name,
        "plain_ns_per_op": least["plain"] / count,
        "ratio_unlimited": least["dtr_alloc"] / least["plain"],
        "ratio_budget": least["budget"] / least["plain"],
    }


def timed_steps(job: Job, first: int, steps: int) -> Iterator[tuple[float, float]]:
    """Seconds of the CPU and of the wall clock."""
    for i in range(first, first + steps):
        cpu, wall = process_time_ns(), perf_counter_ns()
        job.step(i)
        yield (process_time_ns() - cpu) / 1e9, (perf_counter_ns() - wall) / 1e9


def measure_steps(
    name: str, kind: Callable[..., Job], scale: float, rounds: int, seed: int
) -> dict[str, Any]:
    """One row: a job's step without and with dtr_alloc; a job of its own for each."""
    modes = LOOP_MODES | {"shown": shown, "older": unlimited}
    jobs: dict[str, Job] = {"older": kind(scale=scale, seed=seed)}
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in modes}
    steps = 4
    for done in range(0, rounds * steps, steps):
        for way, mode in modes.items():
            with mode():
                if way not in jobs:
                    jobs[way] = kind(scale=scale, seed=seed)
                # The first step after a switch meets cold caches and new records.
                times[way] += list(timed_steps(jobs[way], done, steps))[1:]
    with Counting() as counting:
        jobs["plain"].step(rounds * steps)
    cpu = {way: min(of[0] for of in times[way]) for way in modes}
    wall = {way: min(of[1] for of in times[way]) for way in modes}
    return {
        "job": name,
        "scale": scale,
        "operators": counting.count,
        "step_seconds_plain": wall["plain"],
        "step_seconds": wall["dtr_alloc"],
        "ratio": wall["dtr_alloc"] / wall["plain"],
        "cpu_ratio": cpu["dtr_alloc"] / cpu["plain"],
        "cpu_ratio_budget": cpu["budget"] / cpu["plain"],
        "cpu_ratio_older": cpu["older"] / cpu["plain"],
        "cpu_ratio_shown": cpu["shown"] / cpu["plain"],
        "added_ns_per_op": (cpu["dtr_alloc"] - cpu["plain"]) * 1e9 / counting.count,
    }


TABLES = {
    "cases": (
        "Per operator on 1 KiB tensors, ns of the CPU",
        {
            "case": "{case}",
            "operators": "{operators:}",
            "plain": "{plain_ns_per_op:,.0f}",
            "added by dtr_alloc": "{added_ns_per_op:,.0f}",
        },
    ),
    "loops": (
        "Loops of operators on 8 numbers, processor time of an operator",
        {
            "loop": "{loop}",
            "plain ns": "{plain_ns_per_op:,.0f}",
            "unlimited": "{ratio_unlimited:.2f}x",
            "a budget that never binds": "{ratio_budget:.2f}x",
        },
    ),
    "jobs": (
        "Per training step",
        {
            "job": "{job}",
            "scale": "{scale:g}",
            "operators": "{operators:}",
            "plain s": "{step_seconds_plain:.5f}",
            "dtr_alloc s": "{step_seconds:.5f}",
            "ratio": "{ratio:.3f}x",
            "of the CPU": "{cpu_ratio:.3f}x",
            "with a budget": "{cpu_ratio_budget:.3f}x",
            "made before": "{cpu_ratio_older:.3f}x",
            "shown": "{cpu_ratio_shown:.3f}x",
            "added ns per op": "{added_ns_per_op:,.0f}",
        },
    ),
}
"""The answers, each with its title and columns."""


@click.command(help="What dtr_alloc costs while its budget is idle.")
@click.option("--rounds", default=40, help="Of the cases; a job takes a third.")
@click.option("--calls", default=400, help="Of a case in one round.")
@click.option("--no-jobs", is_flag=True, help="Operators only.")
@click.option("--seed", default=0)
@results.options("Few rounds, the smallest job, seconds.")
def main(rounds: int, calls: int, no_jobs: bool, seed: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    steps = () if no_jobs else STEPS
    if smoke:
        rounds, steps = 3, (TINY,)
    console = results.console()
    cases, jobs = [], []
    gc.collect()
    gc.disable()  # a collection in one round and not in another would be noise
    for case in CASES:
        with console.status(f"timing {case.name}"):
            cases.append(measure_case(case, rounds, calls))
    loops = []
    for case in LOOPS:
        with console.status(f"timing {case.name}"):
            loops.append(measure_loop(case, max(rounds // 8, 1)))
    gc.enable()
    for name, kind, scale in steps:
        with console.status(f"training {name}"):
            jobs.append(measure_steps(name, kind, scale, max(rounds // 3, 2), seed))
    found = {"cases": cases, "loops": loops, "jobs": jobs}
    for name, (title, columns) in TABLES.items():
        console.print(results.table(title, columns, found[name]))
    middle = statistics.median(row["added_ns_per_op"] for row in cases)
    console.print(f"median over the cases: dtr_alloc adds {middle:,.0f} ns an operator")
    facts = {"rounds": rounds, "calls": calls, "added_ns_per_op": middle}
    results.write(path, "overhead", seed, **facts, **found)


if __name__ == "__main__":
    main()
