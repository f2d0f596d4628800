"""A process forks while its other threads train."""

import io
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from harness import checked_session, evicted
from torch.utils.data import DataLoader, TensorDataset

import dtr_alloc

THREADS = 3


@contextmanager
def training_threads(count: int = THREADS) -> Iterator[list[int]]:
    """Threads that train, and log tensors; the list gets the number of their steps. Each has made
    one before anything forks: a child cannot import what a thread was importing just then."""
    over = threading.Event()
    started = threading.Barrier(count + 1)
    steps = [0] * count
    errors: list[BaseException] = []
    logger = logging.Logger("test_forks")  # its handler's lock is one that fork waits for
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
        except BaseException as error:
            errors.append(error)
            started.abort()

    threads = [threading.Thread(target=train, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    try:
        started.wait()
        yield steps
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors


def fork_and_use_memory(tensor: torch.Tensor) -> int:
    """The status of a child that allocates, frees what it inherited, and computes."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    good = not dtr_alloc.is_enabled() and bool((tensor + torch.ones(1000)).sum() == 2000)
    del tensor
    os._exit(0 if good else 7)


def test_a_child_reads_what_was_evicted_with_an_error():
    with checked_session():
        tensor = evicted(torch.ones(1000) * 2)
        pid = os.fork()
        if not pid:
            told = []
            for read in (lambda: tensor.sum(), lambda: tensor.is_shared()):
                try:
                    read()
                except RuntimeError as error:
                    told.append("memory was evicted" in str(error))
            os._exit(0 if told == [True, True] else 7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_forks_while_threads_train(count):
    tensor = torch.ones(1000)
    with checked_session("2MiB"), training_threads() as steps:
        forks = 0
        while forks < count or min(steps) < 2:
            assert fork_and_use_memory(tensor) == 0
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
