"""What the torch-side suites share: clean sessions, comparison of bits, and python in
processes of its own."""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from commands import command, environment, python
from torch import Tensor

import dtr_alloc
from bench.models import differences

__all__ = ["command", "environment", "python"]

MIB = 2**20
ROOT = Path(__file__).parents[2]


@contextmanager
def checked_session(
    budget: int | str = "unlimited", debug: str = "off", **settings: Any
) -> Iterator[None]:
    """A session on CPU tensors whose structures are verified before it ends."""
    with dtr_alloc.session(budget=budget, device="cpu", debug=debug, **settings):
        yield
        dtr_alloc.check_invariants()


def assert_same_bits(expected: dict[str, Tensor], got: dict[str, Tensor], where: str) -> None:
    """Fails with the names of the tensors that differ."""
    wrong = differences(expected, got)
    assert not wrong, f"{where}: {len(wrong)} of {len(expected)} differ: {wrong[:8]}"


def assert_equal(expected: Iterable[Tensor], got: Iterable[Tensor]) -> None:
    """Fails with the places of the tensors that differ."""
    pairs = enumerate(zip(expected, got, strict=True))
    assert [place for place, pair in pairs if not torch.equal(*pair)] == []


def evicted(tensor: Tensor) -> Tensor:
    """The tensor after its storage has lost its content."""
    assert dtr_alloc.evict(tensor), "a result of an operator can be evicted"
    assert not dtr_alloc.is_resident(tensor)
    return tensor


def is_true_in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether a forked child finds so."""
    if (child := os.fork()) == 0:
        status = 1
        with suppress(BaseException):
            status = int(not check())
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def address(tensor: Tensor) -> int:
    """Read as a kernel of C++ reads it: nobody hears of it."""
    from torch._C import _data_address

    return getattr(_data_address, "__wrapped__", _data_address)(tensor)


def fix_costs(path: Path) -> None:
    """Gives the signatures that were met costs that are the same on every machine."""
    costs = json.loads(path.read_text())
    for entry in costs["entries"]:
        entry["cost_ns"] = 10_000 + int(entry["signature"], 16) % 90_000
    path.write_text(json.dumps(costs))


def call(job: str | Callable[..., Any], *arguments: object, **options: Any) -> Any:
    """As python(), of a script, or of a function of a test's module, whose result is printed as
    JSON."""
    if callable(job):
        options["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        arguments = (json.dumps(arguments, default=str),)
        name = f"{job.__module__}.{job.__qualname__}"
        job = f"import json, sys, {job.__module__}\nfound = {name}(*json.loads(sys.argv[1]))\n"
        job += "print(json.dumps(found))"
    return python("-W", "ignore", "-c", job, *arguments, **options)


def told_by(job: str | Callable[..., Any], *arguments: object, **options: Any) -> Any:
    """What is in the last line that call() prints."""
    return json.loads(call(job, *arguments, **options).stdout.splitlines()[-1])


def assert_trains_in(
    share: float, run: Callable[[], list[Tensor]], **settings: Any
) -> dict[str, Any]:
    """The function's tensors have the same bits under a budget of a share of its peak, where it
    computes some again. Returns what that added to the counters."""
    expected = run()
    with checked_session():
        others = dtr_alloc.stats()["allocated_bytes"]  # of what other tests left
        dtr_alloc.reset_peak_stats()
        run()
        peak = dtr_alloc.stats()["peak_allocated_bytes"]
    gc.collect()
    # How dear it becomes depends on costs that are measured.
    with checked_session(others + int(share * (peak - others)), thrash="off", **settings):
        got = run()
        counted = dtr_alloc.stats()
    assert counted["evictions"] + counted["swaps"] > 0
    assert_equal(expected, got)
    return counted
