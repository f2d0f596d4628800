"""Ctrl-C, sys.exit() in a signal's handler and asynchronous exceptions, wherever they come."""

import _thread
import random
import threading
from pathlib import Path
from typing import Any

import interrupted_jobs as jobs
import pytest
import torch
from harness import call, checked_session, evicted, python
from interrupting import WAYS, Injector
from torch import Tensor

import dtr_alloc
from dtr_alloc.heuristics import Candidate, register

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("names", "share"),
    [
        ("off,step,by_hand,captured", 0.02),
        *(pytest.param(name, 0.1, marks=pytest.mark.long) for name in jobs.JOBS),
    ],
)
def test_a_job_goes_on_after_interrupts_at_some_places(names, share, tmp_path):
    """At all of them: ``make interrupts``."""
    python(HERE / "interrupted_jobs.py", names, share, tmp_path)


def interrupted_by_signals(turns: int) -> int:
    """Each turn trains until an interrupt comes, then goes on from a checkpoint. Returns how many
    came."""
    torch.set_num_threads(1)
    jobs._expected += jobs.trained()
    draw = random.Random(0)
    caught = 0
    jobs.enable()
    checkpoint = jobs.Job().checkpoint()
    for _ in range(turns):
        job = jobs.Job()
        try:
            timer = threading.Timer(draw.random() * 0.05, _thread.interrupt_main)
            timer.start()
            while True:
                job.step()
        except KeyboardInterrupt:
            caught += 1
        timer.join()
        dtr_alloc.check_invariants()
        job.load(checkpoint)
        for _ in range(3):
            job.step()
        job.checkpoint()
        jobs.assert_same(job.bits())
        jobs.assert_no_lock_is_held()
    jobs.assert_on()
    dtr_alloc.disable()
    jobs.assert_off()
    return caught


@pytest.mark.parametrize("turns", [4, pytest.param(500, marks=pytest.mark.long)])
def test_a_job_goes_on_after_signals(turns):
    done = call(interrupted_by_signals, turns)
    assert done.stderr == ""
    assert int(done.stdout) == turns


# ---- one fault each ----


def test_an_interrupt_in_a_heuristic_of_the_users_is_raised_as_it_is():
    calls = 0

    def score(of: Candidate) -> float:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return of.cost_ns

    def fill() -> list[Tensor]:
        return [torch.full((16384,), 1.5) * scale for scale in range(32)]

    with dtr_alloc.session(2**20, device="cpu", heuristic=register("interrupted", score)):
        with pytest.raises(KeyboardInterrupt):
            fill()
        dtr_alloc.check_invariants()
        made = fill()
        assert torch.equal(made[3], torch.full((16384,), 4.5))
        calls = 4
        with pytest.raises(KeyboardInterrupt):
            dtr_alloc.set_budget(2**19)
        assert dtr_alloc.stats()["budget_bytes"] == 2**20
        dtr_alloc.set_budget(2**19)


def test_a_draw_by_an_operator_of_ours_in_one_of_pytorchs_is_a_part_of_that():
    """An operator of a library that PyTorch runs in Python may call run_as_operator()."""
    with torch.library._scoped_library("dtr_alloc_test", "DEF") as library:
        library.define("noisy(Tensor x, *, Generator? generator=None) -> Tensor")

        def noisy(x: Tensor, *, generator: Any = None) -> Tensor:
            result: Tensor = dtr_alloc.run_as_operator(lambda x: x + torch.rand_like(x), x)
            return result

        library.impl("noisy", noisy, "CompositeExplicitAutograd")
        with checked_session():
            x = torch.linspace(0, 1, 4096)
            torch.ops.dtr_alloc_test.noisy(x)
            assert torch.equal(evicted(x * 2), x + x)


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_where_a_session_is_entered_or_left_ends_it(way):
    """Also before the first instruction of what ends it. Interrupts within enable() and disable()
    are in interrupted_jobs.py."""

    def run(injector: Injector) -> None:
        with injector.following(), dtr_alloc.session(2**26, device="cpu"):
            torch.ones(8).add(1)

    run(every := Injector())
    places = [place for place in every.met if place[1].startswith("session.")]
    assert "session._leave" in [name for _, name, _ in places]
    for place in places:
        run(injector := Injector(place, way=way))
        assert injector.raised
        assert not dtr_alloc.is_enabled()
