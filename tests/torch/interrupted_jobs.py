"""Small jobs that use every entry of the package, and what must hold after one was interrupted."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import heuristics, recorder, runtime

KIB = 1024
BUDGET = 512 * KIB


class Twice(torch.autograd.Function):
    """A function of ours among PyTorch's."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        context.save_for_backward(x)
        return dtr_alloc.run_as_operator(lambda x: x * 2, x, name="twice")

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        context.saved_tensors[0].numpy()
        return dtr_alloc.run_as_operator(_double, gradient.clone(), name="double")


def _double(x: Tensor) -> Tensor:
    x.data_ptr()
    return x.mul(2)


class Job:
    """A net that trains, with operators of ours, dropout and a look at the memory of tensors."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = torch.randn(256, 32)

    def step(self) -> None:
        """Whole, or without effect on what checkpoint() gives."""
        x = self.data
        for layer in self.model:
            x = Twice.apply(torch.tanh(layer(x)))
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


def by_hand() -> None:
    """What a user calls between two steps."""
    x = torch.linspace(0, 1, 4096)
    y = x * 3
    dtr_alloc.evict(y)
    dtr_alloc.is_resident(y)
    dtr_alloc.materialize(y)
    dtr_alloc.pin(y)
    dtr_alloc.unpin(y)
    dtr_alloc.evict(y)
    repr(y)
    y.untyped_storage().tolist()
    y.untyped_storage().clone()
    y.numpy().sum()
    y.__dlpack__()
    dtr_alloc.limit_rematerializations(1000)
    dtr_alloc.limit_rematerializations(None)
    dtr_alloc.time_bookkeeping(True)
    dtr_alloc.time_bookkeeping(False)
    dtr_alloc.stats()
    dtr_alloc.reset_peak_stats()
    dtr_alloc.set_budget(2 * BUDGET)
    dtr_alloc.set_budget(BUDGET)
    dtr_alloc.compact()
    dtr_alloc.trim()
    dtr_alloc.check_invariants()
    torch.save(y, io.BytesIO())


def scored() -> Any:
    return heuristics.Heuristic.of(lambda of: of.cost_ns / of.size_bytes)


def assert_no_lock_is_held() -> None:
    """By a thread that asks for each."""
    found: dict[str, bool] = {}
    live = runtime._runtime
    locks: dict[str, Any] = {"runtime": runtime._state}
    if live is not None:
        locks["rules"] = live.recorder._rules_lock
        if live.log is not None:
            locks["log"] = live.log._lock

    def ask() -> None:
        for name, lock in locks.items():
            found[name] = lock.acquire(timeout=5)
            if found[name]:
                lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert all(found.values()), found


def assert_whole(enabled: bool) -> None:
    """What holds after an interrupt, wherever it was."""
    dtr_alloc.check_invariants()
    assert_no_lock_is_held()
    assert runtime.is_enabled() == enabled
    if not enabled:
        return
    # Operators are recorded, and repeated, as before.
    x = torch.linspace(0, 1, 4096)
    ours = dtr_alloc.run_as_operator(lambda x: x + 1, x)
    for made in (x * 2, ours):
        expected = made.clone()
        for _ in range(2):
            assert dtr_alloc.evict(made), "it was recorded, and is not pinned"
            assert torch.equal(made, expected)
    # An address that is asked for makes a constant, and those asked for inside of ours do not.
    kept = x * 5
    kept.data_ptr()
    assert not dtr_alloc.evict(kept), "its address is known"
    assert live_calls() < 100


def live_calls() -> int:
    live = runtime._runtime
    assert live is not None
    return len(live.recorder._calls)


PATCHED: dict[str, Callable[[], Any]] = {
    "Tensor.numpy": lambda: Tensor.numpy,
    "Tensor.data_ptr": lambda: Tensor.data_ptr,
    "Tensor.__repr__": lambda: Tensor.__repr__,
    "Tensor.__dlpack__": lambda: Tensor.__dlpack__,
    "Tensor.__cuda_array_interface__": lambda: Tensor.__dict__["__cuda_array_interface__"],
    "exchange": lambda: vars(Tensor).get("__dlpack_c_exchange_api__"),
    "UntypedStorage.fill_": lambda: torch.UntypedStorage.fill_,
    "torch.save": lambda: torch.save,
    "Thread.run": lambda: threading.Thread.run,
}


def patched() -> dict[str, Any]:
    """What a session replaces."""
    return {name: get() for name, get in PATCHED.items()}


def is_included() -> bool:
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(recorder._KEY))
