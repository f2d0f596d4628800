"""dtr_alloc.find_batch_size: what fits, what computes too much again, and what stays afterwards."""

import math
import weakref
from collections.abc import Callable

import pytest
import torch
from harness import MIB, checked_session
from torch import Tensor, nn

import dtr_alloc


def job(calls: list[int]) -> Callable[[int], None]:
    """A chain whose activations take 8 KiB a sample; notes the sizes of its batches."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(8)])

    def step(size: int) -> None:
        calls.append(size)
        model.zero_grad()
        model(torch.ones(size, 128)).square().mean().backward()

    return step


def unevicted_bytes(size: int) -> int:
    """What the job holds at most."""
    with checked_session("unlimited"):
        step = job([])
        dtr_alloc.reset_peak_stats()
        step(size)
        step(size)
        return dtr_alloc.stats()["peak_allocated_bytes"]


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        ([100, 200, 400, 800, 1600, 1200, 1400, 1300], 1300),
        ([4096, 2048, 1024, 1536, 1280, 1152], 1024),
    ],
    ids=["from a small one", "from one that is too large"],
)
def test_the_largest_batch_of_which_nothing_is_computed_again(tried, found):
    calls: list[int] = []
    with checked_session(unevicted_bytes(found) + MIB // 4):
        assert dtr_alloc.find_batch_size(job(calls), tried[0], slowdown=1) == found
    assert list(dict.fromkeys(calls)) == tried


class Hook:
    """Of a gradient: it lives as long as the graph."""

    def __call__(self, gradient: Tensor) -> None:
        pass


def test_batches_that_ran_out_of_memory_are_forgotten_and_the_session_goes_on():
    """In a backward of two branches: PyTorch leaves the older one's graph in a queue. What the
    step made is in a reference cycle."""
    hooks: list[weakref.ref[Hook]] = []

    def step(size: int) -> None:
        older, younger = (layer(torch.ones(size, 128)) for layer in layers)
        older.register_hook(hook := Hook())
        hooks.append(weakref.ref(hook))
        if size >= 480:
            younger.register_hook(lambda gradient: torch.empty(4 * MIB))
        cycle: list[object] = [older]
        cycle.append(cycle)
        (older.square().mean() + younger.square().mean()).backward()

    with checked_session(4 * MIB):
        layers = [nn.Linear(128, 128) for _ in range(2)]
        assert dtr_alloc.find_batch_size(step, 16, slowdown=math.inf) == 448
        assert dtr_alloc.stats()["out_of_memory_errors"] > 0
        assert not [hook for hook in hooks if hook() is not None]
        step(448)


def test_an_error_names_what_is_wrong():
    step = job([])
    with pytest.raises(dtr_alloc.StateError, match="not enabled"):
        dtr_alloc.find_batch_size(step)
    with checked_session("unlimited"), pytest.raises(dtr_alloc.StateError, match="unlimited"):
        dtr_alloc.find_batch_size(step)
    with checked_session("64KiB"):
        for wrong in ({"start": 0}, {"slowdown": 0.5}, {"start": 8, "most": 4}):
            with pytest.raises(dtr_alloc.ConfigError, match="find_batch_size: "):
                dtr_alloc.find_batch_size(step, **wrong)
        with pytest.raises(torch.OutOfMemoryError, match="requested"):
            dtr_alloc.find_batch_size(step, 8)
