"""Ranks of torch.distributed: if one ends because it is out of memory, the others end as well.

A failed rank completes no collective, and the others would wait until the timeout of the process
group, half an hour by default. So the rank writes its error to the group's store, and the others
raise torch.OutOfMemoryError with this message.

*A rank has failed* when the error ends its process: it was not caught, or it left the function of a
process of multiprocessing. If the job catches the error, to continue with a smaller
batch or to end with ``sys.exit``, the others are not told. So this is decided once, when the
process ends (_ends_by).

*The others* read the store four times a second, each on a thread of its own. A rank that is told
raises the error on its main thread: at the next line of Python, or in place of the error of the
collective in which it waits (threads.py). That collective ends once all are told: process groups
are aborted, and the failed rank, which has waited for this, ends. Its end closes the connections of
gloo, whose groups cannot be aborted.

No function of PyTorch is replaced. The thread begins with the session or, if the job has no process
group then, when the recorder first meets an operator afterwards: the first collective at the
latest. A rank that fails looks for its group when its process ends.

Upstream: torch/distributed/distributed_c10d.py (_world),
torch/csrc/distributed/c10d/ProcessGroup.hpp (abort).
"""

from __future__ import annotations

import atexit
import functools
import opcode
import os
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from dtr_alloc import report
from dtr_alloc.torch.session import Session
from dtr_alloc.torch.threads import at_next_line_of_all

_PERIOD_SECONDS = 0.25
_PATIENCE_SECONDS = 2.0
"""The longest time that a rank that ends waits until the others are told."""
_A_MOMENT_SECONDS = 0.01

# Keys of the store: the message of a failed rank, and the number of others that have read it.
_FAILED, _TOLD = "failed", "told"


class _Group:
    """A default process group of the job, seen from one of its ranks."""

    def __init__(self, group: Any) -> None:
        self._group = ref(group)
        self._rank, self._size = group.rank(), group.size()
        self._store: Any = None
        self._is_told = False
        self._has_left = False
        try:
            # The job's own connection is locked while a call on it waits, which may take minutes.
            own = group.get_group_store().clone()
            # A later group may have the same store.
            self._store = dist.PrefixStore(f"dtr_alloc/{_failures}", own)
        except Exception as error:
            print(
                f"dtr_alloc: if a rank runs out of memory, the others will wait for it: {error}",
                file=sys.stderr,
            )

    def is_of(self, group: object) -> bool:
        return self._group() is group

    def failure(self) -> str | None:
        """The message of a failed rank, if there is one."""
        if self._store is None:
            return None
        try:
            return self._store.get(_FAILED).decode() if self._store.check([_FAILED]) else None
        except RuntimeError:  # the rank that kept the store has ended, its job done
            self._store = None
            return None

    def tell(self, words: str) -> None:
        """Has the main thread raise the error, and its collectives end."""
        global _failures
        _failures += 1
        self._is_told = True

        def raise_on_main_thread() -> None:
            if threading.get_ident() == threading.main_thread().ident:
                raise torch.OutOfMemoryError(words)

        if not at_next_line_of_all(raise_on_main_thread):
            print(words, file=sys.stderr)
        self._wait_until_all_are_told(1)
        _abort_groups()

    def leave(self, error: torch.OutOfMemoryError) -> None:
        """Tells the others that this rank has failed, unless the error is that of another one.
        Returns when all are told: the end of this rank ends its connections, and perhaps the
        store."""
        if self._has_left or self._store is None:
            return
        self._has_left = True
        more = 0
        if not self._is_told:
            words = (
                f"dtr_alloc: rank {self._rank} of {self._size}, whose budget is "
                f"{report.budget_text(_runtime.config.budget)}, is out of memory and ends, so no "
                f"collective can complete. It raised: {error}"
            )
            with suppress(RuntimeError):
                more = self._store.compare_set(_FAILED, "", words).decode() != words
        self._wait_until_all_are_told(more)

    def _wait_until_all_are_told(self, more: int) -> None:
        """Adds ``more`` to the number of ranks that are told, and waits for the others, for
        _PATIENCE_SECONDS at most."""
        end = time.monotonic() + _PATIENCE_SECONDS
        with suppress(RuntimeError):  # the store is gone
            while self._store.add(_TOLD, more) < self._size - 1 and time.monotonic() < end:
                more = 0
                time.sleep(_A_MOMENT_SECONDS)


class _Watch:
    """A thread that looks for a failed rank, from begin() to end()."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="dtr_alloc ranks", daemon=True)

    def begin(self) -> None:
        """More calls do nothing."""
        with suppress(RuntimeError):
            self._thread.start()

    def end(self) -> None:
        # The thread must not be in PyTorch when the interpreter ends.
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE_SECONDS)

    def _look(self) -> None:
        while not self._over.wait(_PERIOD_SECONDS):
            group = _last_group()
            if group is None or not group.is_of(dist.group.WORLD):
                continue
            words = group.failure()
            if words is not None and not self._over.is_set():
                group.tell(words)
                return


_runtime: Session
_watch: _Watch | None = None
_group: _Group | None = None
_failures = 0
"""Failed ranks of which this one was told."""


def start(runtime: Session) -> None:
    """Watches the other ranks from now on, or once there are any."""
    global _runtime, _watch
    if not dist.is_available():
        return
    _runtime = runtime
    _watch = _Watch()
    _decide_at_end()
    runtime.recorder.meet_operator = _begin_if_there_are_ranks
    _begin_if_there_are_ranks()
    if any(rule.lasts for rule in runtime.recorder.rules):  # collectives were met before
        _watch.begin()


def _begin_if_there_are_ranks() -> None:
    if _watch is not None and dist.is_initialized():
        _watch.begin()


def stop() -> None:
    """Stops looking. A failure of this rank is still told: the error may be leaving the session."""
    if _watch is not None:
        _watch.end()


def _last_group() -> _Group | None:
    """The job's default process group. If the job has destroyed it, others may be waiting in
    theirs."""
    global _group
    group = dist.group.WORLD
    is_new = _group is None or not _group.is_of(group)
    if is_new and isinstance(group, dist.ProcessGroup) and group.size() > 1:
        _group = _Group(group)
    return _group


@functools.cache
def _decide_at_end() -> None:
    atexit.register(_end_of_process)
    Finalize(None, _end_of_process, exitpriority=100)  # in a process of multiprocessing


def _end_of_process() -> None:
    stop()
    error = _ends_by()
    while error is not None and _runtime.config.ranks != "off":
        if isinstance(error, torch.OutOfMemoryError):
            if (group := _last_group()) is not None:
                group.leave(error)
            return
        error = error.__cause__ or error.__context__


def _ends_by() -> BaseException | None:
    """The error by which this process ends.

    In a process of multiprocessing it is leaving the function that runs there, perhaps as an exit
    with a status. In others the interpreter has left it in sys.last_value. Debuggers, notebooks and
    prompts leave other errors there. The error that ended the process went through the outermost
    frame, which has run nothing afterwards.
    """
    error = sys.exception()
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    traceback = getattr(sys, "last_traceback", None)
    if error is not None or traceback is None or hasattr(sys, "ps1"):
        return error
    frame = traceback.tb_frame
    ended_by = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    raises_again = ended_by[:1] == _RERAISE or ended_by == _RAISE  # behind a finally or an except
    is_through = frame.f_back is None and (frame.f_lasti == traceback.tb_lasti or raises_again)
    return sys.last_value if is_through else None


_RERAISE = bytes([opcode.opmap["RERAISE"]])
_RAISE = bytes([opcode.opmap["RAISE_VARARGS"], 0])
"""``raise`` without an argument."""


def _abort_groups() -> None:
    names = dist.distributed_c10d._world.pg_names
    # In the same order on each rank, as PyTorch does it.
    for group in sorted(names, key=names.__getitem__, reverse=True):
        with suppress(RuntimeError):
            group.abort()


def _after_fork_in_child() -> None:
    global _group, _watch
    _group = _watch = None
    _decide_at_end.cache_clear()  # multiprocessing forgets what its parent was to do


os.register_at_fork(after_in_child=_after_fork_in_child)
