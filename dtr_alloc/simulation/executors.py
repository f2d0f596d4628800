"""Executors for independent runs, and the distribution of the data that runs share.

Every run is a task of a ``concurrent.futures.Executor``: of forked processes, of the ranks of an
MPI job, of the workers of a Dask cluster, or of one that a caller brings. Shared data, such as the
logs, is sent to each worker once; a task carries its own arguments only.

A run that raises, or whose worker dies, is a ``Failure``, and the others go on. A worker with
another version of this package ends all of them, as its results would not be comparable.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from dtr_alloc.report import package_version

FORMS = "local, mpi, dask://HOST:PORT"
WAIT_S = 10
"""The longest time for a Dask scheduler, and the first of its workers, to answer."""
MPI_COMMAND = "mpiexec -n RANKS python -m mpi4py.futures -m dtr_alloc.cli"
MOST_NAMED = 20


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ExecutorError(RuntimeError):
    """There is no such executor here, or its workers cannot make the runs: the message gives the
    reason."""


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
    """An executor (None: this process), and the shared data of its tasks as its workers know
    it."""

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
    """The place of runs. Raises ValueError for text that is no executor.

    Attributes:
        executor: one of FORMS; or an Executor, which gets the shared data with each task and is not
            shut down.
        jobs: processes of ``local``; 1: this one.
    """

    executor: str | Executor = "local"
    jobs: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.executor, str) and self.executor not in ("local", "mpi"):
            _dask_address(self.executor)

    @contextmanager
    def opened(self, shared: Any, tasks: int) -> Iterator[Pool]:
        """The workers, with ``shared``, for so many tasks at most. Tasks that have not begun when
        the context ends are cancelled. Raises ExecutorError."""
        received = _Received()
        executor: AbstractContextManager[Executor | None]
        if isinstance(self.executor, Executor):
            executor, shared_as = nullcontext(self.executor), shared
        elif self.executor == "local" and self.jobs == 1:
            executor, shared_as = nullcontext(None), shared
        elif self.executor == "local":
            executor, shared_as = _processes(min(self.jobs, tasks), received, shared), received
        elif self.executor == "mpi":
            executor, shared_as = _mpi(received, shared), received
        else:
            executor, shared_as = _dask(self.executor, received, shared), received
        with executor as entered:
            pool = Pool(entered, shared_as)
            try:
                yield pool
            finally:
                pool.cancel()


HERE = Workers()
"""This process alone."""


# ---- in a worker ----


_received: dict[str, Any] = {}
"""The shared data in this worker. A worker of a cluster may serve several clients at once."""


@dataclass(frozen=True)
class _Received:
    """Stands, among the arguments of a task, for the data that each worker has under this name."""

    name: str = field(default_factory=lambda: uuid4().hex)

    def hold(self, shared: Any) -> None:
        _received[self.name] = shared

    def hold_alone(self, shared: Any) -> None:
        _received.clear()
        self.hold(shared)

    def begin_process(self, shared: Any) -> None:
        # An interrupt ends the workers at once: none is waited for that is deep in a run.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.hold(shared)

    def forget(self) -> None:
        _received.pop(self.name, None)


def _call(version: str, task: Callable[..., Any], shared: Any, *arguments: Any) -> Any:
    _check_version(version, "a worker")
    try:
        return task(_received[shared.name] if isinstance(shared, _Received) else shared, *arguments)
    except Exception as error:
        return Failure(error)


def _check_version(wanted: str, who: str, found: str | None = None) -> None:
    found = found or code_version()
    if found != wanted:
        raise ExecutorError(f"{who} has dtr_alloc {found}; allowed: {wanted}, as here")


# ---- the executors ----


def _processes(count: int, received: _Received, shared: Any) -> Executor:
    """Forked, so that nothing is copied to share it."""
    return ProcessPoolExecutor(
        max(1, count),
        get_context("fork"),
        initializer=received.begin_process,
        initargs=(shared,),
    )


def _mpi(received: _Received, shared: Any) -> Executor:
    try:
        from mpi4py.futures import MPIPoolExecutor
    except (ImportError, RuntimeError) as error:  # the latter: there is no library of MPI
        raise ExecutorError(
            f"--executor mpi needs mpi4py and a library of MPI ({error}): "
            "pip install 'dtr-alloc[cluster]'"
        ) from None
    if "mpi4py.futures" not in sys.orig_argv:  # it would start ranks itself, or wait for them
        raise ExecutorError(f"--executor mpi needs ranks to run on: {MPI_COMMAND} COMMAND ...")
    executor: Executor = MPIPoolExecutor(
        main=False, initializer=received.hold_alone, initargs=(shared,)
    )
    return executor


def _dask_address(text: str) -> str:
    """The address of the scheduler of ``dask://HOST:PORT``. Raises ValueError."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or text.lower() != f"dask://{parts.netloc.lower()}" or parts.username:
        raise ValueError(f"executor is {text!r}; allowed: {FORMS}")
    return f"tcp://{parts.netloc}"


class _OnDask(Executor):
    """The client's cluster. Its own get_executor() may take the result of a task whose worker has
    died since for an error (_cascade_future() of distributed 2026.8 reads the status too late)."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        # Equal calls are separate tasks: another client's failure is not ours.
        return self._client.submit(task, *arguments, pure=False, **named)


@contextmanager
def _dask(text: str, received: _Received, shared: Any) -> Iterator[Executor]:
    try:
        from distributed import Client, WorkerPlugin
    except ImportError:
        raise ExecutorError(
            f"--executor {text} needs distributed: pip install 'dtr-alloc[cluster]'"
        ) from None
    try:
        client = Client(_dask_address(text), timeout=WAIT_S, set_as_default=False)
    except OSError as error:  # a timeout is one
        raise ExecutorError(
            f"--executor {text}: no Dask scheduler answers there within {WAIT_S} s ({error})"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WAIT_S)
        except TimeoutError:
            raise ExecutorError(
                f"--executor {text}: the cluster has had no worker for {WAIT_S} s"
            ) from None
        # Before anything of ours is sent that they could not read. The scheduler reads tasks, too.
        try:
            versions = client.run(code_version)
            versions["the scheduler"] = client.run_on_scheduler(code_version)
        except Exception as error:  # whatever its import raised there
            raise ExecutorError(
                f"--executor {text}: the scheduler or a worker has no dtr_alloc {code_version()}, "
                f"as here ({error})"
            ) from None
        for who, version in versions.items():
            _check_version(code_version(), f"--executor {text}: {who}", version)

        # A plugin reaches every worker, also one that starts anew after it died. Scattered data
        # would be gone with the last worker that has it.
        class Shared(WorkerPlugin):
            def setup(self, worker: Any) -> None:
                received.hold(shared)

            def teardown(self, worker: Any) -> None:
                received.forget()

        client.register_plugin(Shared(), name=received.name)
        try:
            yield _OnDask(client)
        finally:
            try:
                client.unregister_worker_plugin(received.name)
            except OSError as error:
                raise ExecutorError(f"--executor {text}: the scheduler is gone ({error})") from None
