"""Executors for independent runs.

Every run is a task of a ``concurrent.futures.Executor``: of forked processes, or of any other one,
such as those of mpi4py and Dask. Forked processes have the data that runs share, such as the logs;
another executor is sent it with each task.

A run that raises, or whose worker dies, is a ``Failure``, and the others go on. A worker with
another version of this package ends all of them, as its results would not be comparable.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dtr_alloc.report import package_version

MOST_NAMED = 20


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ExecutorError(RuntimeError):
    """The workers of an executor cannot make the runs: the message gives the reason."""


@dataclass(frozen=True)
class Failure:
    """Stands for the result of a run that failed."""

    error: Exception


class RunsFailed(RuntimeError):
    """Some runs failed, and all others have ended.

    Attributes:
        failures: the errors by the names of the runs.
    """

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        self.failures = dict(failures)
        lines = [
            f"{name}: {type(error).__name__}: {error}" for name, error in self.failures.items()
        ]
        more = len(lines) - MOST_NAMED
        lines[MOST_NAMED:] = [f"and {more} more"] if more > 0 else []
        super().__init__("\n  ".join(["runs failed:", *lines]))


@functools.cache
def code_version() -> str:
    """The version of this package, with a hash of its Python sources."""
    package = Path(__file__).parents[1]
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if "native" not in path.relative_to(package).parts:
            sources.update(path.read_bytes())
    return f"{package_version('dtr-alloc')} ({sources.hexdigest()[:12]})"


class Pool:
    """An executor (None: this process), and the shared data of its tasks (None: its workers have
    it)."""

    def __init__(self, executor: Executor | None, shared: Any) -> None:
        self._executor, self._shared = executor, shared
        self._futures: deque[Future[Any]] = deque()

    def outcomes(
        self, task: Callable[..., Any], arguments: Iterable[Sequence[Any]]
    ) -> Iterator[Any]:
        """The results of ``task(shared, *each)``, in order, or a Failure: each as soon as it and
        those before it are there. One such iterator of a pool must be used up before the next.

        Raises ExecutorError if a worker has another version.
        """
        for each in arguments:
            call = (code_version(), task, self._shared, *each)
            if self._executor is None:
                yield _call(*call)
            else:
                self._futures.append(self._executor.submit(_call, *call))
        while self._futures:  # what was yielded is not kept
            try:
                outcome = self._futures[0].result()
            except ExecutorError:
                raise
            except Exception as error:  # the executor's: _call() returns those of the task
                outcome = Failure(error)
            self._futures.popleft()
            yield outcome

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


@dataclass(frozen=True)
class Workers:
    """The place of runs.

    Attributes:
        executor: gets the shared data with each task, and is not shut down. None: processes of this
            machine.
        jobs: their number; 1: this one.
    """

    executor: Executor | None = None
    jobs: int = 1

    @contextmanager
    def opened(self, shared: Any, tasks: int) -> Iterator[Pool]:
        """The workers, with ``shared``, for so many tasks at most. Tasks that have not begun when
        the context ends are cancelled."""
        executor: AbstractContextManager[Executor | None] = nullcontext(self.executor)
        is_forked = self.executor is None and self.jobs > 1
        if is_forked:  # nothing is copied to share it
            count, context = max(1, min(self.jobs, tasks)), get_context("fork")
            executor = ProcessPoolExecutor(count, context, _begin_process, (shared,))
        with executor as entered:
            pool = Pool(entered, None if is_forked else shared)
            try:
                yield pool
            finally:
                pool.cancel()


HERE = Workers()
"""This process alone."""


# ---- in a worker ----


_shared: Any = None
"""The shared data in a forked process."""


def _begin_process(shared: Any) -> None:
    global _shared
    # An interrupt ends the workers at once: none is waited for that is deep in a run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _shared = shared


def _call(version: str, task: Callable[..., Any], shared: Any, *arguments: Any) -> Any:
    if version != code_version():
        raise ExecutorError(f"a worker has dtr_alloc {code_version()}; allowed: {version}, as here")
    try:
        return task(_shared if shared is None else shared, *arguments)
    except Exception as error:
        return Failure(error)
