"""What dtr_alloc costs while its budget never binds: at rest, and while it records.

    python -m bench.overhead [--null-cuda] [--json PATH] [--smoke]

The recorder rests (docs/concepts/life-of-an-operator.md) once a job has shown that nothing has to
be evicted, so each is measured twice: at rest, and with a recorder that never rests, under a budget
that never binds. Plain PyTorch takes turns with both, round by round, in one process:

- per operator: the time that dtr_alloc adds to operators on small tensors, where there is nothing
  to hide behind. Tensors have 1 KiB, just large enough that results are recorded with their
  closures. Loops of a few operators on tiny tensors, and inference, take one session of 40,000
  operators, so that it has the looks for what is repeated in it.
- per training step: the time of steps of whole jobs, as a ratio to the time without. Steps include
  the allocator, whose reuse of memory can make them faster. The job "tiny" is the hardest: a
  thousand operators on tensors of some bytes. A third ratio is of a job that was made before
  dtr_alloc was switched on, whose parameters are memory of PyTorch's own allocator. A fourth one is
  of a job for which a page and a line of progress are asked for: with the thread that looks at the
  counters, and hooks on all modules. Both are recorded.
- with --null-cuda, per training step on a CUDA device whose kernels compute nothing, so all of the
  step is the host's (bench/null_cuda; the python that runs it has a CUDA build of PyTorch). Here
  each way has a process of its own.

Times are of the process's CPU, which other programs on the machine disturb less, and for steps of
the wall clock, too: the least of many rounds, in one thread; on the null device the median of all
steps. A few percent stay noise.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dtr_alloc
from bench import results
from bench.models import JOBS, Job
from bench.null_cuda import __main__ as null_cuda

SIDE = 16
Call = Callable[[], Any]


class Counting(TorchDispatchMode):
    """Counts the operators that a mode sees."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def at_rest() -> Iterator[None]:
    """dtr_alloc, whose recorder rests."""
    with dtr_alloc.session("unlimited", device="cpu", debug="rest:8"):
        x = square()
        while not dtr_alloc.stats().rests:
            torch.relu(x)
        yield
        if dtr_alloc.stats().rests > 1:
            raise SystemExit("bench.overhead: the recorder did not stay at rest")


def recording(**settings: Any) -> AbstractContextManager[None]:
    """dtr_alloc, which records, with a budget: whether steps repeat is looked at, too."""
    return dtr_alloc.session("64GiB", device="cpu", debug="rest:0", **settings)


Modes = dict[str, Callable[[], AbstractContextManager[None]]]
MODES: Modes = {"plain": nullcontext, "rest": at_rest, "recording": recording}
# No page is written, as the process's last session has none.
JOB_MODES: Modes = {
    **MODES,
    "shown": lambda: recording(report="page.html", progress=True),
    "older": recording,
}


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
    is_long: bool = False  # whether a round is what a job does for long without a training step


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
    Case("loop of one", repeated(torch.neg), is_long=True),
    Case("loop of two", repeated(torch.neg, torch.abs), is_long=True),
    Case(
        "loop of five",
        repeated(torch.neg, torch.abs, torch.exp, torch.sin, torch.cos),
        is_long=True,
    ),
    Case("foreach, a tensor at a time", foreach, is_long=True),
    Case("inference", inference, is_long=True),
)
ROUNDS = 40  # of the cases; a job takes a third
CALLS = 400  # of a case in one round
LONG_OPERATORS = 40_000


class Tiny(Job):
    """40 layers of width 8 and an optimizer that updates all parameters at once."""

    def build(self) -> None:
        layers = [m for _ in range(40) for m in (nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))]
        self.net = self.add_module("net", nn.Sequential(*layers))
        self.optimizers["adamw"] = torch.optim.AdamW(self.net.parameters(), foreach=True)
        self.x = self.randn(self.batch(4), 8)

    def loss(self, i: int) -> Tensor:
        return self.net(self.x).square().mean()


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


def measure_case(case: Case, rounds: int) -> dict[str, Any]:
    """One row: what an operator of the case takes."""
    count, calls = operators(case), CALLS
    if case.is_long:
        rounds, calls = max(rounds // 8, 1), LONG_OPERATORS // count
    least = dict.fromkeys(MODES, float("inf"))
    for _ in range(rounds):
        for way, mode in MODES.items():
            least[way] = min(least[way], time_calls(case, mode, calls) / count)
    return {"case": case.name, "operators": count, **of_idle(least, count=1)}


def of_idle(ns: dict[str, float], count: int) -> dict[str, float]:
    """What a time of `count` operators is for each, at rest and recording."""
    found = {"plain_ns_per_op": ns["plain"] / count}
    for way in ("rest", "recording"):
        found[f"{way}_ratio"] = ns[way] / ns["plain"]
        found[f"{way}_added_ns_per_op"] = (ns[way] - ns["plain"]) / count
    return found


def timed_steps(job: Job, first: int, steps: int) -> Iterator[tuple[float, float]]:
    """Seconds of the CPU and of the wall clock."""
    for i in range(first, first + steps):
        cpu, wall = process_time_ns(), perf_counter_ns()
        job.step(i)
        yield (process_time_ns() - cpu) / 1e9, (perf_counter_ns() - wall) / 1e9


def measure_steps(name: str, kind: Callable[..., Job], scale: float, rounds: int) -> dict[str, Any]:
    """One row: a job's step without and with dtr_alloc; a job of its own for each."""
    jobs: dict[str, Job] = {"older": kind(scale=scale)}
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in JOB_MODES}
    steps = 4
    for done in range(0, rounds * steps, steps):
        for way, mode in JOB_MODES.items():
            with mode():
                if way not in jobs:
                    jobs[way] = kind(scale=scale)
                # The first step after a switch meets cold caches and new records.
                times[way] += list(timed_steps(jobs[way], done, steps))[1:]
    with Counting() as counting:
        jobs["plain"].step(rounds * steps)
    cpu = {way: min(of[0] for of in times[way]) for way in JOB_MODES}
    wall = {way: min(of[1] for of in times[way]) for way in JOB_MODES}
    return {
        "job": name,
        "scale": scale,
        "operators": counting.count,
        "step_seconds_plain": wall["plain"],
        **{f"{way}_wall_ratio": wall[way] / wall["plain"] for way in ("rest", "recording")},
        **of_idle({way: 1e9 * seconds for way, seconds in cpu.items()}, counting.count),
        **{f"{way}_ratio": cpu[way] / cpu["plain"] for way in ("older", "shown")},
    }


def measure_null_cuda(rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each job: steps on the device whose kernels compute nothing."""
    steps = 6
    with tempfile.TemporaryDirectory() as folder:
        library = null_cuda.library.build(Path(folder))
        for job in null_cuda.JOBS:
            with closing(null_cuda.Trainers(library)) as trainers:
                ways = {
                    "plain": trainers.start(job, "plain"),
                    "rest": trainers.start(job, "dtr_alloc"),
                    "recording": trainers.start(job, "dtr_alloc", debug="rest:0"),
                }
                taken = null_cuda.turns(ways, rounds, steps)
            operators = round(taken["recording"]["added"]["recorded_ops"] / steps)
            rested = taken["rest"]["added"]
            ns = {way: 1e6 * taken[way]["host_ms"] for way in ways}
            yield {
                "job": job,
                "operators": operators,
                "recorded_at_rest": rested["recorded_ops"],
                "plain_step_ms": taken["plain"]["host_ms"],
                **of_idle(ns, operators),
            }


OF_IDLE = {
    "operators": "{operators:}",
    "plain ns": "{plain_ns_per_op:,.0f}",
    "at rest": "{rest_ratio:.3f}x",
    "added ns": "{rest_added_ns_per_op:,.0f}",
    "recording": "{recording_ratio:.3f}x",
    "it adds ns": "{recording_added_ns_per_op:,.0f}",
}
TABLES = {
    "cases": ("An operator on 1 KiB tensors or less", {"case": "{case}", **OF_IDLE}),
    "jobs": (
        "A training step",
        {
            "job": "{job}",
            "plain s": "{step_seconds_plain:.5f}",
            **OF_IDLE,
            "made before": "{older_ratio:.3f}x",
            "shown": "{shown_ratio:.3f}x",
        },
    ),
    "null_cuda": ("A training step on the null device", {"job": "{job}", **OF_IDLE}),
}
"""The answers, each with its title and columns."""


@click.command(help="What dtr_alloc costs while its budget is idle.")
@click.option("--no-jobs", is_flag=True, help="Operators only.")
@click.option("--null-cuda", "on_null_device", is_flag=True, help="The null device, too.")
@results.options("Few rounds, the smallest job, seconds.")
def main(no_jobs: bool, on_null_device: bool, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = () if no_jobs else (TINY,) if smoke else STEPS
    rounds = 3 if smoke else ROUNDS
    console = results.console()
    found: dict[str, list[dict[str, Any]]] = {"cases": [], "jobs": [], "null_cuda": []}
    gc.collect()
    gc.disable()  # a collection in one round and not in another would be noise
    for case in CASES:
        with console.status(f"timing {case.name}"):
            found["cases"].append(measure_case(case, rounds))
    gc.enable()
    for name, kind, scale in steps:
        with console.status(f"training {name}"):
            found["jobs"].append(measure_steps(name, kind, scale, max(rounds // 3, 2)))
    if on_null_device:
        found["null_cuda"] += measure_null_cuda(max(rounds // 8, 1))
    for name, (title, columns) in TABLES.items():
        if found[name]:
            console.print(results.table(title, columns, found[name]))
    facts: dict[str, Any] = {"rounds": rounds, "calls": CALLS}
    for way in ("rest", "recording"):
        key = f"{way}_added_ns_per_op"
        facts[key] = statistics.median(row[key] for row in found["cases"])
        console.print(f"{way}, median over the cases: {facts[key]:,.0f} ns an operator")
    results.write(path, "overhead", **facts, **found)


if __name__ == "__main__":
    main()
