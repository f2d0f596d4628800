"""Operators are recorded on every thread, however it began."""

import _thread
import ctypes
import io
import logging
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
import torch
from harness import checked_session, evicted, is_true_in_a_fork
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import dtr_alloc
from dtr_alloc.core import StateError
from dtr_alloc.torch import runtime

Body = Callable[[], None]


class Prefetcher(threading.Thread):
    """A thread with a run() of its own."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.run = body


def begin_by_c(body: Body) -> None:
    """On a thread that C began, of which Python's modules know nothing."""
    kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: body())
    thread = ctypes.c_ulong()
    libc = ctypes.CDLL(None)
    assert libc.pthread_create(ctypes.byref(thread), None, kept, None) == 0
    libc.pthread_join(thread, None)


BEGINNINGS: dict[str, Callable[[Body], object]] = {
    "target": lambda body: threading.Thread(target=body).start(),
    "subclass": lambda body: Prefetcher(body).start(),
    "timer": lambda body: threading.Timer(0, body).start(),
    "module _thread": lambda body: _thread.start_new_thread(body, ()),
    "executor": lambda body: ThreadPoolExecutor(1).submit(body).result(),
    "C, once it has allocated": begin_by_c,
}


def run_and_wait(begin: Callable[[Body], None], work: Body) -> None:
    done = threading.Event()

    def body() -> None:
        try:
            work()
        finally:
            done.set()

    begin(body)
    done.wait()


def doubled() -> tuple[Tensor, Tensor]:
    buffer = torch.ones(1000) * 1
    return buffer, buffer * 2


def overwrite_on(begin: Callable[[Body], object]) -> int:
    """What another thread overwrites is computed from what it was. Returns how many writes were
    noticed that no operator was seen to make."""
    buffer, result = doubled()
    run_and_wait(begin, lambda: buffer.copy_(torch.full((1000,), 7.0)))
    evicted(result)
    dtr_alloc.materialize(result)
    assert (result == 2).all()
    assert (buffer == 7).all()
    return int(dtr_alloc.stats()["unseen_writes"])


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_operators_of_another_thread_are_recorded(begin):
    with checked_session():
        assert overwrite_on(BEGINNINGS[begin]) == 0


@pytest.fixture
def older() -> Iterator[Callable[[Body], None]]:
    """Runs a body on a thread that is in the middle of a loop when the session begins."""
    bodies: SimpleQueue[Body | None] = SimpleQueue()

    def loop() -> None:
        while body := bodies.get():
            body()

    thread = threading.Thread(target=loop)
    thread.start()
    yield bodies.put
    bodies.put(None)
    thread.join()


def test_a_thread_that_is_older_than_the_session(older):
    with checked_session():
        assert overwrite_on(older) == 0


def test_a_debugger_keeps_its_trace_function(older):
    """Then what an older thread writes is noticed, not recorded."""

    def debugger(*_: object) -> None:
        return None

    sys.settrace(debugger)
    try:
        with checked_session():
            assert sys.gettrace() is debugger
            overwrite_on(older)
    finally:
        sys.settrace(None)


def test_what_a_thread_of_c_writes_before_is_noticed():
    with checked_session():
        constant, seven = torch.tensor([1.0] * 1000), torch.tensor([7.0] * 1000)
        result = constant * 2
        begin_by_c(lambda: constant.copy_(seven))
        evicted(result)
        with pytest.raises(StateError, match="changed by something other than an operator"):
            dtr_alloc.materialize(result)
        del result  # the session could not end with it


def test_threads_after_the_session_run_nothing_of_ours():
    begin = _thread.start_new_thread, threading._start_new_thread  # type: ignore[attr-defined]
    with checked_session():
        assert _thread.start_new_thread is not begin[0]
    assert (_thread.start_new_thread, threading._start_new_thread) == begin  # type: ignore[attr-defined]


def test_what_is_not_callable_is_refused_as_without_us():
    with checked_session(), pytest.raises(TypeError, match="callable"):
        _thread.start_new_thread(7, ())  # type: ignore[arg-type]


@pytest.fixture
def busy() -> Iterator[list[float]]:
    """Threads that run operators all the time, also backward, and what each loop of theirs gave."""
    over = threading.Event()
    sums: list[float] = []

    def loop() -> None:
        while not over.is_set():
            weight = torch.ones(50, 50, requires_grad=True)
            hidden = weight * 2
            hidden.add_(1)
            (hidden * hidden).sum().backward()
            assert weight.grad is not None
            sums.append(float(weight.grad.sum()))

    with ThreadPoolExecutor(2) as executor:
        loops = [executor.submit(loop) for _ in range(2)]
        yield sums
        over.set()
    for each in loops:
        each.result()


def test_sessions_begin_and_end_while_other_threads_run_operators(busy):
    """What they make while one ends has no history that the next would compute anew."""
    for _ in range(10):
        with checked_session():
            before = len(busy)
            while len(busy) < before + 2:
                torch.ones(10) * 2
        assert dtr_alloc.stats()["live_ops"] == 0
    assert set(busy) == {50 * 50 * 12.0}


@pytest.fixture
def blocked(monkeypatch) -> Iterator[threading.Event]:
    """An operator that runs on another thread until the event is set."""
    begun, over = threading.Event(), threading.Event()

    def wait(tensor: Tensor) -> Tensor:
        begun.set()
        over.wait()
        return tensor + 1

    monkeypatch.setattr(runtime, "LONGEST_WAIT_S", 0.0)
    with dtr_alloc.session("unlimited", device="cpu"), ThreadPoolExecutor(1) as executor:
        given = torch.ones(1000)
        result = executor.submit(dtr_alloc.run_as_operator, wait, given)
        begun.wait()
        yield over
        over.set()
        assert (result.result() == 2).all()


def test_an_operator_that_does_not_end_is_named_and_the_session_goes_on(blocked):
    tensor = torch.ones(1000) * 2
    with pytest.raises(StateError, match="wait still runs on another thread after 0 s"):
        dtr_alloc.disable()
    evicted(tensor)
    assert (tensor + 1 == 3).all()
    assert dtr_alloc.is_enabled()


def test_a_session_ends_once_the_operator_has_ended(blocked, monkeypatch):
    monkeypatch.setattr(runtime, "LONGEST_WAIT_S", 1e6)
    threading.Timer(0, blocked.set).start()
    dtr_alloc.disable()
    dtr_alloc.enable("unlimited", device="cpu")  # the fixture ends it


# ---- processes that fork while their threads train ----

THREADS = 3


@contextmanager
def training_threads(count: int = THREADS) -> Iterator[list[int]]:
    """Threads that train, and log tensors; the list gets the number of their steps. Each has made
    one before anything forks: a child cannot import what a thread was importing just then."""
    over = threading.Event()
    started = threading.Barrier(count + 1)
    steps = [0] * count
    logger = logging.Logger("test_threads")  # its handler's lock is one that fork waits for
    logger.addHandler(logging.StreamHandler(io.StringIO()))

    def train(index: int) -> None:
        try:
            net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
            optimizer = torch.optim.SGD(net.parameters(), 0.01)
            while not over.is_set():
                optimizer.zero_grad()
                x = torch.nn.functional.dropout(net(torch.randn(512, 64)), 0.1)
                x.square().mean().backward()
                optimizer.step()
                logger.debug("a tensor: %s", x[0, :2].detach())
                steps[index] += 1
                if steps[index] == 1:
                    started.wait()
        except BaseException:
            started.abort()
            raise

    with ThreadPoolExecutor(count) as executor:
        training = [executor.submit(train, index) for index in range(count)]
        try:
            started.wait()
            yield steps
        finally:
            over.set()
    for each in training:
        each.result()


def test_a_child_reads_what_was_evicted_with_an_error():
    with checked_session():
        tensor = evicted(torch.ones(1000) * 2)

        def reads_fail() -> bool:
            for read in (tensor.sum, tensor.is_shared):
                with pytest.raises(RuntimeError, match="memory was evicted"):
                    read()
            return True

        assert is_true_in_a_fork(reads_fail)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_forks_while_threads_train(count):
    held = [torch.ones(1000)]

    def uses_memory() -> bool:
        """Allocates, computes, and frees what it inherited."""
        return not dtr_alloc.is_enabled() and (held.pop() + torch.ones(1000)).sum().item() == 2000

    with checked_session("2MiB"), training_threads() as steps:
        forks = 0
        while forks < count or min(steps) < 2:
            assert is_true_in_a_fork(uses_memory)
            forks += 1
    assert dtr_alloc.stats()["evictions"] > 0


def test_workers_of_a_loader_begin_while_threads_train():
    data = TensorDataset(torch.arange(64.0).reshape(32, 2))
    with checked_session("64MiB"), training_threads():
        for _ in range(3):
            loader = DataLoader(
                data, 8, num_workers=2, multiprocessing_context=multiprocessing.get_context("fork")
            )
            assert sum(batch.sum().item() for (batch,) in loader) == 2016
