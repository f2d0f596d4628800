"""A job whose recorder rests trains with the same bits, and is evicted once it has grown."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from harness import MIB, assert_equal, checked_session
from native_fixtures import on_threads
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc import Stats

REST = "rest:32"
WIDTH = 256
STEPS, MORE_STEPS = 6, 3


def trained(
    work: Callable[[nn.Module, int], Tensor], before: Callable[[int], None] = lambda _: None
) -> list[Tensor]:
    """The parameters and losses of a job. before: is called before each step."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(STEPS + MORE_STEPS):
        before(step)
        loss = work(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *(tensor.detach().clone() for tensor in model.state_dict().values())]


def unrolled(times: Callable[[int], int], rows: Callable[[int], int]) -> Any:
    def work(model: nn.Module, step: int) -> Tensor:
        x = torch.randn(rows(step), WIDTH)
        for _ in range(times(step)):
            x = torch.relu_(model(x)) * 0.5 + x
        return x.square().mean()

    return work


GROWTHS = {
    "batch": unrolled(times=lambda _: 3, rows=lambda step: 128 if step < STEPS else 1024),
    "length": unrolled(times=lambda step: 3 if step < STEPS else 40, rows=lambda _: 128),
}


@pytest.mark.parametrize("growth", GROWTHS)
def test_a_job_that_grows_many_times_over_after_a_rest_trains_with_the_same_bits(growth):
    """The larger steps need several times the budget."""
    counted: list[Stats] = []
    expected = trained(GROWTHS[growth])
    with checked_session(16 * MIB, REST):
        got = trained(GROWTHS[growth], lambda _: counted.append(dtr_alloc.stats()))
        end = dtr_alloc.stats()
    assert_equal(expected, got)
    at_growth = counted[STEPS]
    assert at_growth.rests > 0
    assert at_growth.unrecorded_ops > 0
    assert at_growth.evictions == 0
    assert end.evictions > at_growth.evictions
    assert end.recorded_ops > at_growth.recorded_ops
    assert end.out_of_memory_errors == 0


def rest(x: Tensor) -> None:
    while dtr_alloc.stats().rests == 0:
        torch.relu(x)


def test_threads_that_run_operators_at_rest_see_no_evicted_content():
    """A budget is set while they do."""
    threads = 3
    ready, changed = threading.Barrier(threads + 1), threading.Event()
    results: dict[int, Tensor] = {}

    def work(number: int) -> None:
        x = torch.full((WIDTH, WIDTH), float(number))
        for i in range(60):
            if i == 20:
                ready.wait()
            y = torch.relu(x)
            for _ in range(10):
                y = y * 0.5 + x
            x = y - x
        changed.wait()
        results[number] = x.clone()

    def change() -> None:
        ready.wait()
        if dtr_alloc.is_enabled():
            dtr_alloc.set_budget(4 * MIB)
        changed.set()

    def run() -> list[Tensor]:
        changed.clear()
        on_threads(change, *(partial(work, number) for number in range(threads)))
        return [results.pop(number) for number in range(threads)]

    expected = run()
    with checked_session(debug=REST):
        rest(torch.ones(WIDTH, WIDTH))
        assert dtr_alloc.stats().rests == 1
        got = run()
        assert dtr_alloc.stats().unrecorded_ops > 100
    assert_equal(expected, got)


@pytest.mark.parametrize("setting", ["log", "trace", "report", "costs", "debug"])
def test_the_recorder_does_not_rest_where_all_operators_are_asked_for(setting, tmp_path):
    x = torch.ones(1000)
    costs = tmp_path / "costs.json"
    asked: dict[str, Any] = {
        "log": {"log": tmp_path / "job.log"},
        "trace": {"trace": tmp_path / "job.trace"},
        "report": {"report": tmp_path / "report.txt"},
        "costs": {"costs": costs},
        "debug": {"debug": f"contents,{REST}"},
    }
    with checked_session(**{"debug": REST, **asked[setting]}):
        for _ in range(500):
            torch.relu(x)
        assert dtr_alloc.stats().rests == 0
        assert dtr_alloc.stats().recorded_ops == 500


def test_it_rests_unless_debug_says_rest_0():
    x = torch.ones(1000)
    with checked_session(debug="rest:0"):
        for _ in range(20_000):
            torch.relu(x)
        assert dtr_alloc.stats().rests == 0
    with checked_session():
        rest(x)
