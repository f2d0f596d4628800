"""Writes to many tensors, one after the other, on which more depends than there is memory for."""

import gc
import sys
import weakref
from collections.abc import Callable

import pytest
import torch
from harness import MIB, assert_equal, checked_session
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import dtr_alloc

WIDTH, LAYERS = 128, 6
BUDGET = 12 * MIB
LARGE = 4096
"""Rows of a batch of which the results of all linear layers take the budget."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda of: torch.optim.SGD(of, lr=0.01, momentum=0.9, foreach=False),
    "Adam": lambda of: torch.optim.Adam(of, foreach=False),
    "Adam, foreach": lambda of: torch.optim.Adam(of, foreach=True),
    "AdamW, fused": lambda of: torch.optim.AdamW(of, fused=True),
    "LBFGS": lambda of: torch.optim.LBFGS(of, max_iter=3, line_search_fn="strong_wolfe"),
}


class Job:
    """A model and its optimizer. A step may leave the graph of a larger batch behind."""

    def __init__(self, optimizer: str) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(
            *(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
        )
        self.optimizer = OPTIMIZERS[optimizer](self.net.parameters())

    def features(self, rows: int, seed: int) -> list[Tensor]:
        """What each layer makes of a batch."""
        found = [torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))]
        for part in self.net:
            found.append(part(found[-1]))
        return found

    def loss(self, rows: int, seed: int) -> Tensor:
        return self.features(rows, seed)[-1].square().mean()

    def step(self, seed: int, scale: float = 1.0) -> None:
        """An optimizer's step, with a closure as LBFGS wants one."""

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(256, seed)
            (loss * scale).backward()
            return loss

        self.optimizer.step(closure)

    def state(self) -> list[Tensor]:
        """Copies of parameters and of what the optimizer keeps of each."""
        states = [part for state in self.optimizer.state.values() for part in state.values()]
        return [
            tensor.detach().clone()
            for tensor in (*self.net.parameters(), *states)
            if isinstance(tensor, Tensor)
        ]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_on_which_more_depends_than_fits_uses_host_memory(optimizer):
    """The results of all layers for an earlier batch are still referenced."""

    def train() -> list[Tensor]:
        job = Job(optimizer)
        job.step(0)
        held = job.features(LARGE, 1)
        job.step(2)
        job.step(3)
        return [*job.state(), *(one.sum().detach() for one in held)]

    expected = train()
    with checked_session(BUDGET):
        got = train()
        stats = dtr_alloc.stats()
    assert_equal(expected, got)
    assert stats["swapped_out_bytes"] > 0
    assert stats["peak_reserved_bytes"] <= BUDGET


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_is_out_of_memory_changes_nothing_and_names_who_holds_it(
    optimizer, monkeypatch
):
    """As in a notebook, whose last error holds the graph of a batch that was too large."""

    def fail(job: Job) -> None:
        loss = job.loss(LARGE, 1)
        raise RuntimeError(f"{loss.shape}")

    monkeypatch.setattr(sys, "last_value", None, raising=False)
    plain = Job(optimizer)
    plain.step(0)
    plain.step(2)
    with dtr_alloc.session(budget=BUDGET, device="cpu", swap="off"):
        job = Job(optimizer)
        job.step(0)
        before = job.state()
        dropped = torch.ones(4)
        try:
            fail(job)
        except RuntimeError as error:
            sys.last_value = error
        with pytest.raises(
            torch.OutOfMemoryError,
            match=r"step\(\) has changed nothing.*by sys\.last_value(.|\n)*out of memory",
        ):
            job.step(2)
        remains = weakref.ref(dropped)
        del dropped
        assert remains() is None, "the search for references keeps none"
        assert_equal(before, job.state())
        dtr_alloc.check_invariants()
        sys.last_value = None
        gc.collect()
        job.step(2)
        got = job.state()
    assert_equal(plain.state(), got)


def accumulate(job: Job) -> list[Tensor]:
    """Gradients, added to those of an earlier batch."""
    job.loss(256, 2).backward()
    job.loss(256, 3).backward()
    return gradients(job)


def average(job: Job) -> list[Tensor]:
    """An exponential moving average of the parameters."""
    averages = [parameter.detach().clone() for parameter in job.net.parameters()]
    held = [average.expand(32, *average.shape) + 1 for average in averages]
    with torch.no_grad():
        for average, parameter in zip(averages, job.net.parameters(), strict=True):
            average.mul_(0.9).add_(parameter, alpha=0.1)
    return [*averages, *(one.sum() for one in held)]


def clip(job: Job) -> list[Tensor]:
    job.loss(256, 2).backward()
    held = [gradient.expand(32, *gradient.shape) + 1 for gradient in gradients(job)]
    clip_grad_norm_(job.net.parameters(), 1e-3)
    return [*gradients(job), *(one.sum() for one in held)]


def unscale(job: Job) -> list[Tensor]:
    """A step through a scaler of gradients."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(job.loss(256, 2)).backward()
    held = [gradient.expand(32, *gradient.shape) + 1 for gradient in gradients(job)]
    scaler.step(job.optimizer)
    scaler.update()
    return [*job.state(), *(one.sum() for one in held)]


def gradients(job: Job) -> list[Tensor]:
    return [parameter.grad for parameter in job.net.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("write", [accumulate, average, clip, unscale])
def test_a_loop_of_in_place_operators_on_which_more_depends_than_fits(write):
    """Where no optimizer says what will be written, each operator settles before it begins."""
    expected = write(Job("Adam"))
    with checked_session(BUDGET):
        got = write(Job("Adam"))
    assert_equal(expected, got)


@pytest.mark.parametrize(
    "write",
    [
        lambda tensors: torch._foreach_mul_(tensors, 0.5),
        lambda tensors: torch._foreach_lerp_(tensors, [torch.zeros(()) for _ in tensors], 0.5),
    ],
)
def test_an_operator_of_foreach_that_is_out_of_memory_changes_none_of_its_tensors(write):
    averages = [torch.full((64, 1024), float(i)) for i in range(8)]
    before = [average.clone() for average in averages]
    with dtr_alloc.session(budget="12MiB", device="cpu", swap="off"):
        held = [average.expand(16, 64, 1024) + 1 for average in averages]
        with pytest.raises(torch.OutOfMemoryError):
            write(averages)
        assert_equal(before, averages)
        dtr_alloc.check_invariants()
        held.clear()
        write(averages)
    assert not torch.equal(before[1], averages[1])
