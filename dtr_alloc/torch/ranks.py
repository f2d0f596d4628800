"""Ranks of torch.distributed: one that ends because it is out of memory takes the others along.

A lost rank completes no collective any more, and the others would wait in theirs until the timeout
of the process group, which is half an hour by default. So the rank says in the group's store what
happened, and the others raise torch.OutOfMemoryError with its words.

*A rank is lost* when it ends or leaves a process group because of the error: when the error is
caught by nobody, or is being handled where the job calls ``sys.exit``, where it shuts a process
group down, or where a process of multiprocessing ends. What a job catches, to go on with a smaller
batch, is its own business, and the others do not hear of it.

*The others* look into the store four times a second, each on a thread of its own. A rank that is
told raises the error on its main thread, at the next line of Python, or in place of what the
collective raises in which it waits (threads.py). When all are told, these end: process groups are
aborted, and connections of gloo, which cannot be aborted, are cut. No rank ends before.

Nothing begins before the job has a process group. What is replaced in Python and PyTorch stays, and
does nothing without one.

Upstream: torch/distributed/distributed_c10d.py (_update_default_pg, destroy_process_group, _world),
torch/csrc/distributed/c10d/ProcessGroup.hpp (abort, shutdown), gloo/transport/tcp/loop.cc.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtr_alloc import report
from dtr_alloc.torch.threads import at_next_line_of_all

# Together less than a second.
_PERIOD_SECONDS = 0.25
_PATIENCE_SECONDS = 0.7
_A_MOMENT_SECONDS = 0.01

_CUTS = 500
"""How often the connections of gloo are looked for, a moment apart: on a busy machine its threads
are hardly ever seen to wait."""

_EPOLL_OF_GLOO = ["0x40", "0xa"]
"""How gloo's threads call epoll_wait: for 64 events at most, for 10 ms."""

# Keys of the store: what a lost rank says, and how many others have heard of it.
_LOST, _TOLD = "lost", "told"


class _Group:
    """The job's default process group, seen from one of its ranks."""

    def __init__(self, group: Any, number: int) -> None:
        self._rank, self._size = group.rank(), group.size()
        # The job's own connection is locked while a call on it waits, which may take minutes.
        own = group.get_group_store().clone()
        self._store = dist.PrefixStore(f"dtr_alloc/{number}", own)
        self._is_told = False
        self._has_left = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begins to look whether another rank is lost."""
        if self._thread is None:
            self._over.clear()
            self._thread = threading.Thread(target=self._look, name="dtr_alloc ranks", daemon=True)
            self._thread.start()

    def stop_watching(self) -> None:
        # The thread must not be in PyTorch when the interpreter ends.
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_SECONDS)
        self._thread = None

    def _look(self) -> None:
        with suppress(RuntimeError):  # the rank that kept the store has ended, its job done
            while not self._over.wait(_PERIOD_SECONDS):
                if self._store.check([_LOST]):
                    self._hear(self._store.get(_LOST).decode())
                    return

    def _hear(self, words: str) -> None:
        if self._over.is_set():
            return
        self._is_told = True
        has_raised = threading.Event()

        def raise_on_main_thread() -> None:
            if threading.get_ident() == threading.main_thread().ident:
                has_raised.set()
                raise torch.OutOfMemoryError(words)

        if not at_next_line_of_all(raise_on_main_thread):
            print(words, file=sys.stderr)
        self._wait_until_all_are_told(1)
        _abort_groups()
        for _ in range(_CUTS):
            _cut_connections_of_gloo()
            if has_raised.wait(_A_MOMENT_SECONDS):
                break

    def leave(self, error: torch.OutOfMemoryError) -> None:
        """Says that this rank is lost, unless the error is what another one said. Returns when all
        know: the end of this rank ends its connections, and perhaps the store."""
        if self._has_left:
            return
        self._has_left = True
        more = 0
        if not self._is_told:
            self.stop_watching()
            words = (
                f"dtr_alloc: rank {self._rank} of {self._size}, whose budget is "
                f"{report.budget_text(_runtime.config.budget)}, is out of memory and ends, so no "
                f"collective can complete. It raised: {error}"
            )
            with suppress(RuntimeError):
                more = self._store.compare_set(_LOST, "", words).decode() != words
        self._wait_until_all_are_told(more)

    def _wait_until_all_are_told(self, more: int) -> None:
        """Counts this rank, if it is one more that knows, and waits for the others, but not for
        longer than its patience."""
        end = time.monotonic() + _PATIENCE_SECONDS
        with suppress(RuntimeError):  # the store is gone
            while self._store.add(_TOLD, more) < self._size - 1 and time.monotonic() < end:
                more = 0
                time.sleep(_A_MOMENT_SECONDS)


_runtime: Any = None
_group: _Group | None = None
_is_watching = False
_numbers = count(1)


def start(runtime: Any) -> None:
    """Watches the other ranks from now on, or once there are any."""
    global _runtime, _is_watching
    if not dist.is_available():
        return
    _runtime = runtime
    _is_watching = True
    _replace_in_torch()
    if _group is not None:
        _group.watch()
    elif dist.is_initialized():
        _meet(dist.group.WORLD)


def stop() -> None:
    """Watches nobody any more. That this rank is lost is said all the same: the error may be on its
    way out of the session."""
    global _is_watching
    _is_watching = False
    if _group is not None:
        _group.stop_watching()


def _meet(group: Any) -> None:
    """The job has another default process group, or none."""
    global _group
    if _group is not None:
        _group.stop_watching()
        _group = None
    if not (_is_watching and isinstance(group, dist.ProcessGroup) and group.size() > 1):
        return
    try:
        _group = _Group(group, next(_numbers))
    except Exception as error:
        print(
            f"dtr_alloc: if a rank runs out of memory, the others will wait for it: {error}",
            file=sys.stderr,
        )
        return
    _replace_in_python()
    _group.watch()


def _ends_by(error: BaseException | None) -> None:
    """This rank ends, or leaves a process group, because of an error."""
    if _group is None or _runtime.config.ranks == "off":
        return
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            _group.leave(error)
            return
        error = error.__cause__ or error.__context__


def _end_of_process() -> None:
    _ends_by(sys.exception() or getattr(sys, "last_value", None))
    stop()


@functools.cache
def _replace_in_torch() -> None:
    c10d: Any = dist.distributed_c10d
    group_type: Any = dist.ProcessGroup
    update, shutdown = c10d._update_default_pg, group_type.shutdown

    @functools.wraps(update)
    def update_default_pg(group: Any) -> None:
        update(group)
        _meet(group)

    @functools.wraps(shutdown)
    def shut_down(group: Any) -> None:
        _ends_by(sys.exception())
        shutdown(group)

    c10d._update_default_pg = update_default_pg
    group_type.shutdown = shut_down


@functools.cache
def _replace_in_python() -> None:
    show, leave = sys.excepthook, sys.exit

    def excepthook(kind: Any, error: BaseException, traceback: Any) -> None:
        show(kind, error, traceback)
        _ends_by(error)

    @functools.wraps(leave)
    def exit(*status: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            _ends_by(sys.exception())
        leave(*status)

    sys.excepthook = excepthook
    sys.exit = exit  # type: ignore[assignment]
    # For an error that another excepthook took; processes of multiprocessing have neither.
    atexit.register(_end_of_process)
    Finalize(None, _end_of_process, exitpriority=100)


def _abort_groups() -> None:
    names = dist.distributed_c10d._world.pg_names
    # In the same order on each rank, as PyTorch does it.
    for group in sorted(names, key=names.__getitem__, reverse=True):
        with suppress(RuntimeError):
            group.abort()


def _cut_connections_of_gloo() -> None:
    """Cuts those for which a thread of gloo waits at this moment."""
    for descriptor in _connections_of_gloo():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)


def _connections_of_gloo() -> Iterator[int]:
    """Descriptors, of listening sockets too, as /proc shows them."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ends just now
            call = (thread / "syscall").read_text().split()
            if call[3:5] == _EPOLL_OF_GLOO:
                members = Path(f"/proc/self/fdinfo/{int(call[1], 16)}").read_text()
                yield from map(int, re.findall(r"^tfd: *(\d+)", members, re.MULTILINE))


def _after_fork_in_child() -> None:
    global _group, _is_watching
    _group, _is_watching = None, False


os.register_at_fork(after_in_child=_after_fork_in_child)
