"""Jobs that are interrupted at a place of the package's code, and what must hold afterwards.

``python tests/torch/interrupted_jobs.py JOBS SHARE FOLDER`` runs each of the JOBS ("all", or names
with commas) once for every place that it meets, or for a SHARE of them, each time in a forked
process. It prints what does not hold, and fails then.
"""

import io
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interrupting import WAYS, Injector, Place
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import oplog
from dtr_alloc.heuristics import Candidate, register
from dtr_alloc.torch import api, cuda_graphs, recorder

BUDGET = 512 * 1024
SECONDS = 900
"""After which a job hangs."""


class Ours(torch.autograd.Function):
    """A function with operators of a user's among PyTorch's."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        context.save_for_backward(x)
        result: Tensor = dtr_alloc.run_as_operator(lambda x: x * 2, x, name="twice")
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        result: Tensor = dtr_alloc.run_as_operator(_twice, gradient.clone(), name="address")
        return result


def _twice(x: Tensor) -> Tensor:
    x.data_ptr()
    return x.mul(2)


class Job:
    """A net that trains."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = torch.randn(256, 32)

    def step(self) -> None:
        x = self.data
        for layer in self.model:
            x = Ours.apply(torch.tanh(layer(x)))
        x = torch.nn.functional.dropout(x, 0.1)
        loss = x.square().mean()
        loss.backward()
        loss.tolist()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def checkpoint(self) -> bytes:
        file = io.BytesIO()
        torch.save((self.model.state_dict(), torch.get_rng_state()), file)
        return file.getvalue()

    def load(self, checkpoint: bytes) -> None:
        state, generator = torch.load(io.BytesIO(checkpoint))
        self.model.load_state_dict(state)
        self.optimizer.zero_grad()
        torch.set_rng_state(generator)

    def bits(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def trained() -> list[Tensor]:
    job = Job()
    for _ in range(3):
        job.step()
    return job.bits()


# ---- what must hold ----


def replaced() -> dict[str, Any]:
    """What a session replaces."""
    storage = torch.UntypedStorage
    return {
        "Tensor.numpy": Tensor.numpy,
        "Tensor.data_ptr": Tensor.data_ptr,
        "Tensor.__repr__": Tensor.__repr__,
        "Tensor.__dlpack__": Tensor.__dlpack__,
        "__cuda_array_interface__": Tensor.__dict__["__cuda_array_interface__"],
        "__dlpack_c_exchange_api__": vars(Tensor).get("__dlpack_c_exchange_api__"),
        "UntypedStorage.fill_": storage.fill_,
        "UntypedStorage.data_ptr": vars(storage).get("data_ptr"),
        "torch.save": torch.save,
        "Thread.run": threading.Thread.run,
    }


_replaced = replaced()
_expected: list[Tensor] = []


def assert_off() -> None:
    """Nothing of a session is left, and the job trains as it does without us."""
    assert not dtr_alloc.is_enabled()
    left = [name for name, value in replaced().items() if value is not _replaced[name]]
    assert not left, left
    assert not torch._C._dispatch_tls_is_dispatch_key_included(recorder._KEY)
    assert_no_lock_is_held()
    assert_same(trained())


def assert_on() -> None:
    """A session does all that it should."""
    assert dtr_alloc.is_enabled()
    dtr_alloc.check_invariants()
    assert_no_lock_is_held()
    x = torch.linspace(0, 1, 4096)
    for made in (x * 2, dtr_alloc.run_as_operator(lambda x: x + 1, x)):
        expected = made.clone()
        for _ in range(2):
            assert dtr_alloc.evict(made), "it was recorded, and nothing pins it"
            assert torch.equal(made, expected)
    known = x * 5
    known.data_ptr()
    assert not dtr_alloc.evict(known), "its address is known"
    live = api._runtime
    assert live is not None
    assert live.config.budget.size_bytes == dtr_alloc.stats()["budget_bytes"]
    assert len(live.recorder._calls) < 100
    assert_same(trained())
    Job().checkpoint()


def assert_same(bits: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(bits, _expected, strict=True))


def assert_no_lock_is_held() -> None:
    """A thread can have each."""
    locks: dict[str, Any] = {"runtime": api._state}
    if (live := api._runtime) is not None:
        locks["rules"] = live.recorder._rules_lock
        locks["dropped"] = live.bridge._dropped_lock
        if live.log is not None:
            locks["log"] = live.log._lock
    held: list[str] = []

    def ask() -> None:
        for name, lock in locks.items():
            if lock.acquire(timeout=300):
                lock.release()
            else:
                held.append(name)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert not held, held


# ---- jobs ----


def enable(**settings: Any) -> None:
    dtr_alloc.enable(BUDGET, device="cpu", **settings)


def first(injector: Injector, _: Path) -> None:
    """The first session of a process."""
    with injector.following():
        enable()
    if dtr_alloc.is_enabled():
        dtr_alloc.disable()
    assert_off()
    enable()


def again(injector: Injector, folder: Path) -> None:
    """The next session, with all that it can write."""
    enable()
    dtr_alloc.disable()
    with injector.following():
        enable(log=folder / "log", costs=folder / "costs", trace=folder / "trace")
    if dtr_alloc.is_enabled():
        dtr_alloc.disable()
    assert_off()
    enable(log=folder / "log", costs=folder / "costs", trace=folder / "trace")


def off(injector: Injector, folder: Path) -> None:
    """The end of a session: all or nothing."""
    enable(log=folder / "log")
    x = torch.linspace(0, 1, 4096) * 3
    expected = x.tolist()
    assert dtr_alloc.evict(x)
    with injector.following():
        dtr_alloc.disable()
    if dtr_alloc.is_enabled():
        assert dtr_alloc.stats()["budget_bytes"] == BUDGET
        assert_on()
        dtr_alloc.disable()
    assert x.tolist() == expected
    assert_off()
    enable()


def step(injector: Injector, _: Path, **settings: Any) -> None:
    """A step of training."""
    enable(**settings)
    job = Job()
    job.step()
    start = job.checkpoint()
    with injector.following():
        job.step()
    if injector.raised:
        assert_on()
        job.load(start)
        job.step()
    job.step()
    assert_same(job.bits())


def logged(injector: Injector, folder: Path) -> None:
    """A step with an op log, which is written now and then."""
    enable(log=folder / "log.gz")
    Job().step()
    with injector.following():
        job = Job()
        for _ in range(8):
            job.step()
    dtr_alloc.disable()
    oplog.compile_log(folder / "log.gz")
    enable()


def scored(injector: Injector, folder: Path) -> None:
    """A step with a heuristic of the user's."""

    def score(of: Candidate) -> float:
        return of.cost_ns / of.size_bytes

    step(injector, folder, heuristic=register("ours", score))


def by_hand(injector: Injector, _: Path) -> None:
    """What a user calls between two steps."""
    enable()
    with injector.following():
        x = torch.linspace(0, 1, 4096)
        y = x * 3
        dtr_alloc.evict(y)
        dtr_alloc.is_resident(y)
        dtr_alloc.materialize(y)
        dtr_alloc.evict(y)
        repr(y)
        y.untyped_storage()[0]
        y.untyped_storage().clone()
        y.numpy().sum()
        y.__dlpack__()
        dtr_alloc.limit_rematerializations(1000)
        dtr_alloc.limit_rematerializations(None)
        dtr_alloc.stats()
        dtr_alloc.reset_peak_stats()
        dtr_alloc.set_budget(2 * BUDGET)
        dtr_alloc.set_budget(BUDGET)
        dtr_alloc.compact()
        dtr_alloc.trim()
        dtr_alloc.check_invariants()
        torch.save(y, io.BytesIO())


class Graph:
    """In place of torch.cuda.CUDAGraph, which only a device has."""

    def capture_begin(self) -> None:
        pass

    def capture_end(self) -> None:
        pass


def captured(injector: Injector, _: Path) -> None:
    """The capture of a graph, which ends with the graph at the latest."""
    torch.cuda.CUDAGraph = Graph  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda device: None  # type: ignore[assignment,misc]
    enable()
    cuda_graphs.install(api._runtime)
    x = torch.linspace(0, 1, 4096) * 3
    dtr_alloc.evict(x)
    graph = torch.cuda.CUDAGraph()
    with injector.following():
        graph.capture_begin()
        assert not dtr_alloc.evict(x)
        y = x * 2
        graph.capture_end()
        assert not dtr_alloc.evict(y), "the graph uses its address"


JOBS: dict[str, Callable[[Injector, Path], None]] = {
    job.__name__: job for job in (first, again, off, step, logged, scored, by_hand, captured)
}


def run(name: str, injector: Injector, folder: Path) -> None:
    """A job; whatever happened to it, all holds then, and in the next session."""
    JOBS[name](injector, folder)
    dtr_alloc.limit_rematerializations(None)
    assert_on()
    dtr_alloc.disable()
    assert_off()
    with dtr_alloc.session(BUDGET, device="cpu"):
        assert_on()


def run_forked(name: str, injector: Injector, folder: Path) -> tuple[str, dict[Place, int], bool]:
    """What did not hold, and what the injector knows then."""
    result = folder / "result"
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        failure = ""
        errors = (folder / "stderr").open("w+b")
        os.dup2(errors.fileno(), 2)
        try:
            run(name, injector, folder)
        except BaseException:
            failure = traceback.format_exc()
        # What Python could raise nowhere it prints.
        printed = (folder / "stderr").read_text()
        if "Traceback" in printed or "ignored" in printed:
            failure += printed
        result.write_bytes(pickle.dumps((failure, injector.met, injector.raised)))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        return f"ended with {status}", {}, True
    found: tuple[str, dict[Place, int], bool] = pickle.loads(result.read_bytes())
    return found


def sweep(name: str, share: float, folder: Path) -> bool:
    """Interrupts a job at its places, or at a share of them; whether all held."""
    failure, met, _ = run_forked(name, Injector(), folder)
    assert not failure, failure
    draw = random.Random(0)
    runs = raised = failed = 0
    for place, times in met.items():
        for occurrence in {1, times}:
            if draw.random() >= share:
                continue
            way = WAYS[runs % len(WAYS)]
            failure, _, was_raised = run_forked(name, Injector(place, occurrence, way), folder)
            runs += 1
            raised += was_raised
            if failure:
                failed += 1
                print(f"{name}: {way.__name__} at {place}, time {occurrence}:\n{failure}\n")
    assert runs == 0 or raised > runs // 2, f"{raised} of {runs} raised"
    print(f"{name}: {len(met)} places, {runs} interrupts, {raised} raised", file=sys.stderr)
    return failed == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    _expected += trained()
    jobs = JOBS if sys.argv[1] == "all" else sys.argv[1].split(",")
    Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
    held = [sweep(job, float(sys.argv[2]), Path(sys.argv[3])) for job in jobs]
    sys.exit(not all(held))
