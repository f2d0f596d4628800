"""Train jobs for long under all that can go wrong, and compare what comes out.

    python -m bench.soak [--minutes 60] [--seed 0] [--first ROUND] [--smoke] [--json PATH]

A round is a session with a drawn budget and drawn settings. Troubles come first, one or two of
TROUBLES, then a job trains in the same session and must end with the bits that it has without one.
After a round no record is left. The resident set must not grow. A round that takes too long ends
the process with a traceback of every thread. `--first` begins at a later round: what a round does
is drawn from the seed and its number, except for the moments of interrupts.
"""

from __future__ import annotations

import _thread
import ctypes
import faulthandler
import functools
import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import click
import psutil
import torch
from torch import Tensor

import dtr_alloc
from bench import measure, results
from bench.models import JOBS, differences, digest
from dtr_alloc import heuristics
from dtr_alloc.simulation.presets import PRESETS

SANITIZED = os.environ.get("DTR_ALLOC_BUILD") == "sanitize"
"""Sanitizers need terabytes of addresses, and keep freed memory."""
ADDRESSES = resource.RLIM_INFINITY if SANITIZED else 16 << 30
"""The most address space of the process: where it is limited the heap maps memory when it needs
some, and can be refused it."""
SPARE = 128 << 20
"""Address space that the host driver leaves to others."""
MOST_REPEATS = 20_000
"""Rematerializations after which an attempt is given up: the budget works in principle."""
HANG_SECONDS = 900
"""More than any round takes on a machine that does much else."""
GROWTH_BYTES = 16 << 20
"""What the resident set may grow by, from the second quarter of the rounds to the last."""

Attempt = Callable[[], None]
counts: Counter[str] = Counter()
unraisable: list[str] = []
"""What Python could not raise, as in a __del__."""


class Raised(Exception):
    """What a user's function raises here."""


def shortage(error: RuntimeError) -> str | None:
    """What there was too little of, as it is counted; None: it is another error."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "driver_refused_memory" if "mmap of" in text else "out_of_memory"
    if isinstance(error, measure.Thrashing) or "limit_rematerializations()" in text:
        return "gave_up"
    return "driver_refused_file" if "mkostemp in" in text else None


@functools.cache
def expected(name: str, scale: float, seed: int, steps: int) -> tuple[str, measure.Profile]:
    """The digest of a job's state without a session, and its memory without a budget."""
    state = measure.train_plain(name, steps, scale=scale, seed=seed)
    profile, run = measure.profile(name, steps, scale=scale, seed=seed)
    assert not differences(state, run.state), f"{name} has other bits without a budget"
    return digest(state), profile


class Round:
    """What a round draws, and its troubles."""

    def __init__(self, number: int, seed: int) -> None:
        self.draw = draw = random.Random(f"{seed}/{number}")
        self.job: dict[str, Any] = {
            "name": draw.choice(sorted(JOBS)),
            "scale": draw.choice([0.05, 0.25]),
            "seed": draw.randrange(3),
            "steps": draw.choice([2, 3]),
        }
        self.settings: dict[str, Any] = {
            "heuristic": replace(
                preset := draw.choice([*PRESETS.values(), heuristics.PRESETS[heuristics.DEFAULT]]),
                dealloc=draw.choice(["eager", "eager", "lazy", "auto", "ignore", "banish"]),
                room=draw.choice([preset.room, preset.room, "single", "auto"]),
            ),
            "swap": draw.choice([None, 0, 1 << 20, 16 << 20]),
            "debug": draw.choice(["off", "no-moves", "contents"]),  # not poison: the heap keeps it
        }
        self.fraction = draw.choice([draw.uniform(0.0, 0.3), draw.uniform(0.2, 1.0)])
        self.troubles = draw.sample(sorted(TROUBLES), draw.choice([1, 2]))
        self.beside = draw.random() < 0.3

    def __str__(self) -> str:
        beside = ", a thread beside" if self.beside else ""
        return f"{self.job}, {self.settings}, {self.fraction:.3f}, {self.troubles}{beside}"

    def options(self) -> dict[str, Any]:
        return {"scale": self.job["scale"], "seed": self.job["seed"]}

    def session(self) -> Any:
        return dtr_alloc.session(self.budget, device="cpu", **self.settings)

    def attempt(self, steps: int = 1, between: Callable[[], None] | None = None) -> dict | None:
        """Trains the job; its state, or None where memory or a driver did not suffice."""
        job = None
        try:
            with measure.limited_repeats(MOST_REPEATS):
                job = JOBS[self.job["name"]](**self.options())
                for i in range(steps):
                    job.step(i)
                    if between is not None:
                        between()
                return job.state()
        except (Raised, KeyboardInterrupt):
            if job is not None:
                job.drop_gradients()
            raise
        except RuntimeError as error:
            if (kind := shortage(error)) is None:
                raise
            counts[kind] += 1
        if job is not None:
            job.drop_gradients()
        measure.forget_broken_backward()
        return None

    # ---- troubles ----

    def interrupt(self) -> None:
        """Ctrl-C, or an exception that another thread sets, while the job trains."""
        self._interrupted(self.attempt)
        measure.forget_broken_backward()

    def exception(self) -> None:
        """A user's hook raises, in forward or in backward."""
        left = self.draw.randrange(1, 30)

        def count(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Raised

        def after_forward(module: Any, inputs: Any, output: Any) -> None:
            count()
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(count)

        hook = torch.nn.modules.module.register_module_forward_hook(after_forward)
        try:
            self.attempt()
        except Raised:
            counts["exceptions"] += 1
        finally:
            hook.remove()
        measure.forget_broken_backward()

    def fork(self) -> None:
        """A child trains the same job, without a session, between two steps."""

        def fork() -> None:
            pid = os.fork()
            if pid == 0:
                signal.alarm(HANG_SECONDS // 2)
                good = False
                try:
                    self.kept.clear()
                    state = measure.train_plain(
                        self.job["name"], self.job["steps"], **self.options()
                    )
                    good = not dtr_alloc.is_enabled() and digest(state) == self.digest
                finally:
                    os._exit(0 if good else 7)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == 0, f"a child ended with {status}"
            counts["forks"] += 1

        self.attempt(2, fork)

    def out_of_memory(self) -> None:
        """Too little of a budget, and a tensor that fits no memory."""
        before = counts["out_of_memory"]
        try:
            dtr_alloc.set_budget(self.budget // 4)
            self.attempt()
        except torch.OutOfMemoryError:
            counts["out_of_memory"] += 1
        finally:
            dtr_alloc.set_budget(self.budget)
        try:
            torch.empty(1 << 40)
        except torch.OutOfMemoryError:
            counts["out_of_memory"] += 1
        assert counts["out_of_memory"] > before

    def full_disk(self) -> None:
        """The host driver gets no file for what is swapped out."""
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = "/nonexistent"
        try:
            self.attempt()
        finally:
            del os.environ["TMPDIR"]
            if before is not None:
                os.environ["TMPDIR"] = before

    def no_addresses(self) -> None:
        """The host driver gets a few MiB from the system, and then no more."""
        dtr_alloc.trim()
        limit = psutil.Process().memory_info().vms + SPARE + self.draw.randrange(4 << 20, 12 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, ADDRESSES))
        try:
            self.attempt()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))

    def _interrupted(self, work: Callable[[], Any]) -> None:
        """Repeats the work until it is interrupted at some moment."""
        main = ctypes.c_ulong(threading.get_ident())
        error = ctypes.py_object(KeyboardInterrupt)
        way = self.draw.choice(
            [
                _thread.interrupt_main,
                lambda: os.kill(os.getpid(), signal.SIGINT),
                lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main, error),
            ]
        )
        timer = threading.Timer(self.draw.random() * 0.3, way)
        until = time.monotonic() + 60
        try:
            timer.start()
            while time.monotonic() < until:
                work()
        except KeyboardInterrupt:
            counts["interrupts"] += 1
        else:
            if repr(KeyboardInterrupt()) not in unraisable:
                raise AssertionError("an interrupt was lost")
            unraisable.remove(repr(KeyboardInterrupt()))
            counts["interrupts_dropped_by_python"] += 1
        finally:
            timer.join()
        if not torch.is_grad_enabled():  # Optimizer.step() was interrupted where it turns them on
            counts["gradients_left_off_by_pytorch"] += 1
            torch.set_grad_enabled(True)

    # ---- a round ----

    def run(self) -> None:
        self.digest, profile = expected(**self.job)
        self.budget = profile.budget(self.fraction) + (1 << 20)
        gc.collect()
        before = dtr_alloc.stats()
        if self.draw.random() < 0.1:
            self._interrupted(self._whole_session)
            measure.forget_broken_backward()
        with self.session():
            self.kept = [torch.linspace(0, 1, 4096) * i for i in range(8)]
            with thread_beside() if self.beside else nullcontext():
                for trouble in self.troubles:
                    getattr(self, trouble)()
                    dtr_alloc.check_invariants()
                self._compare(self.attempt(self.job["steps"]))
            for i, tensor in enumerate(self.kept):
                assert torch.equal(tensor, torch.linspace(0, 1, 4096) * i), "a kept tensor differs"
            del tensor
            dtr_alloc.check_invariants()
            self.kept.clear()
        gc.collect()
        after = dtr_alloc.stats()
        for name in ("live_records", "live_ops", "live_storages", "live_blocks", "host_bytes"):
            assert after[name] <= before[name], f"{name}: {before[name]}, then {after[name]}"
        for name in ("evictions", "rematerializations", "swaps", "moves", "unseen_writes"):
            counts[name] += after[name]

    def _whole_session(self) -> None:
        with self.session():
            self.attempt()

    def _compare(self, state: dict[str, Tensor] | None) -> None:
        if state is None:  # it was too little: then with enough, after all that
            dtr_alloc.set_budget("unlimited")
            state = self.attempt(self.job["steps"])
        assert state is not None, "no memory without a budget"
        counts["compared"] += 1
        if digest(state) != self.digest:
            counts["differences"] += 1
            plain = measure.train_plain(self.job["name"], self.job["steps"], **self.options())
            raise AssertionError(f"other bits: {differences(plain, state)[:8]}")


TROUBLES = ["interrupt", "exception", "fork", "out_of_memory", "full_disk"]
if not SANITIZED:
    TROUBLES.append("no_addresses")


@contextmanager
def thread_beside() -> Iterator[None]:
    """A thread that computes, under the same budget, what it knows."""
    over = threading.Event()
    errors: list[str] = []

    def compute() -> None:
        while not over.is_set():
            try:
                x = torch.linspace(-1, 1, 128 * 128).view(128, 128).requires_grad_()
                (x.tanh() @ x).cos().sum().backward()
                assert x.grad is not None
                if not torch.equal(x.grad, known):
                    errors.append("a thread beside has other bits")
                counts["steps_beside"] += 1
            except RuntimeError as error:
                if shortage(error) is None:
                    errors.append(traceback.format_exc())
                counts["shortages_beside"] += 1
            except BaseException:
                errors.append(traceback.format_exc())

    x = torch.linspace(-1, 1, 128 * 128).view(128, 128).requires_grad_()
    (x.tanh() @ x).cos().sum().backward()
    assert x.grad is not None
    known = x.grad.clone()
    del x
    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not errors, errors[0]


def soak(seconds: float, seed: int, first: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Rounds for so long: the failures, and the resident set after each round, in bytes."""
    failures: list[dict[str, Any]] = []
    resident: list[int] = []
    sys.unraisablehook = lambda found: unraisable.append(repr(found.exc_value))
    until = time.monotonic() + seconds
    number = first
    while time.monotonic() < until:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        this = Round(number, seed)
        try:
            this.run()
            assert not unraisable, unraisable
        except BaseException:
            failures.append({"round": number, "plan": str(this), "error": traceback.format_exc()})
            print(f"round {number}: {this}\n{failures[-1]['error']}", file=sys.stderr)
            unraisable.clear()
            if dtr_alloc.is_enabled():
                break  # the session could not end
        counts["rounds"] += 1
        counts[f"job {this.job['name']}"] += 1
        resident.append(psutil.Process().memory_info().rss)
        number += 1
    faulthandler.cancel_dump_traceback_later()
    return failures, resident


def growth(resident: list[int]) -> int:
    """By how much the largest value of the last quarter exceeds that of the second."""
    quarter = len(resident) // 4
    if quarter == 0:
        return 0
    return max(resident[-quarter:]) - max(resident[quarter : 2 * quarter])


@click.command(help="Train for long under all that can go wrong.")
@click.option("--minutes", default=60.0)
@click.option("--seed", default=0)
@click.option("--first", default=0, help="The round to begin with.")
@results.options("Five seconds.")
def main(minutes: float, seed: int, first: int, path: str | None, smoke: bool) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    measure.forget_broken_backward()  # makes a gradient, which stays
    start = time.monotonic()
    failures, resident = soak(5 if smoke else 60 * minutes, seed, first)
    seconds = round(time.monotonic() - start)
    for name in ("differences", "interrupts", "exceptions", "forks"):
        counts[name] += 0
    found = {
        "seconds": seconds,
        "failures": failures,
        "counts": dict(sorted(counts.items())),
        "resident_set_bytes": {"peak": max(resident), "final": resident[-1]},
        "resident_set_growth_bytes": growth(resident),
        "resident_set_growth_allowed_bytes": GROWTH_BYTES,
        "peak_resident_set_by_tenth_bytes": [
            max(resident[len(resident) * i // 10 : len(resident) * (i + 1) // 10] or [0])
            for i in range(10)
        ],
    }
    console = results.console()
    console.print(found["counts"])
    console.print(f"resident set grew by {growth(resident) / results.MIB:.1f} MiB")
    results.write(path, "soak", seed, **found)
    if failures or (not (smoke or SANITIZED) and growth(resident) > GROWTH_BYTES):
        raise SystemExit(f"{len(failures)} rounds failed")


if __name__ == "__main__":
    main()
