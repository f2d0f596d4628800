"""Records the events of this process's pools in a trace file (setting ``trace``).

The pools add to a log in the core (allocator/event_log.h) and do not wait. A thread writes the
gathered events in blocks a few times a second, so the file of a killed job ends a moment before the
job (docs/reference/trace-format.md). Needs no torch.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtr_alloc.core import check, ffi, lib
from dtr_alloc.output_file import FileTaken, lock_file
from dtr_alloc.pools import Pools
from dtr_alloc.report import package_version
from dtr_alloc.traces.ring import Ring
from dtr_alloc.traces.trace import COLUMNS, Kind
from dtr_alloc.traces.trace_file import TraceWriter

SECONDS_BETWEEN_DRAINS = 0.1
_CAPACITY = 1 << 16
_OPERATOR = 6  # where the core's column of operators stands, and ours of names
_PLACE = 7

_lock = threading.RLock()
_current: Recording | None = None


class Recording:
    """One trace file, from start() to stop().

    Args:
        pools: recorded as devices 0, 1, ...
        path: the file; the folders above it are made.
        mode: ``light`` or ``budget``, for the meta.
        name_of: the operator of a key of op_begin, "" if unknown.
        only_at_oom: whether the file is written when a request fails, with the last events.
        site_of: the call site of a number of dtr_place, "" if unknown; names of events have it.

    Raises FileTaken if another process writes the file, and WrongKind or another OSError if it
    cannot be opened.
    """

    def __init__(
        self,
        pools: Pools,
        path: Path,
        mode: str,
        name_of: Callable[[int], str] = lambda _: "",
        only_at_oom: bool = False,
        site_of: Callable[[int], str] | None = None,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._mark = lock_file(path, "trace", "DTR_ALLOC_TRACE")
        self._pools = pools
        self._name_of = name_of
        self._site_of = site_of
        meta = _meta(pools, mode)
        self._ring = Ring(path, meta) if only_at_oom else None
        self._writer = self._ring or TraceWriter(path, meta)
        log = ffi.new("dtr_event_log **")
        check(lib.dtr_event_log_create(log))
        self._log = ffi.gc(log[0], lib.dtr_event_log_destroy)
        self._arrays = [
            array(column.typecode, bytes(column.width * _CAPACITY))
            for column in COLUMNS[:_OPERATOR]
        ]
        self._arrays.append(array("Q", bytes(8 * _CAPACITY)))
        self._arrays.append(array("I", bytes(4 * _CAPACITY)))
        self._columns = ffi.new("dtr_event_columns *")
        self._kept = []
        fields = ffi.typeof("dtr_event_columns").fields
        for (field, of), numbers in zip(fields, self._arrays, strict=True):
            ctype = f"{of.type.item.cname}[]"
            self._kept.append(ffi.from_buffer(ctype, numbers, require_writable=True))
            setattr(self._columns, field, self._kept[-1])
        # Of names in the file, by the operator's key, and with site_of by key and place.
        self._numbers: dict[Any, int] = {}
        self._began_unix_ns = 0
        self._failure: OSError | None = None
        self.draining = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dtr_alloc trace", daemon=True)

    def start(self) -> None:
        """Begins with the present state of the pools."""
        self._began_unix_ns = time.time_ns()
        if self._ring is not None:
            self._ring.meta["began_unix_ns"] = self._began_unix_ns
        for device, pool in enumerate(self._pools.handles):
            check(lib.dtr_pool_set_log(pool, self._log, device))
        self._thread.start()

    def note(self, kind: Kind, device: int = 0) -> None:
        """Adds an event without an address, such as the beginning of a step."""
        lib.dtr_pool_note(self._pools.handles[device], kind, ffi.NULL, 0)

    def _run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_DRAINS):
            self.drain()
        self._finish()

    def drain(self) -> None:
        """Writes the gathered events. A disk error ends the recording, not the job."""
        with self.draining:
            while self._failure is None:
                count = lib.dtr_event_log_drain(self._log, self._columns, _CAPACITY)
                if count == 0:
                    return
                try:
                    self._writer.write(self._taken(count))
                except OSError as error:
                    self._failure = error
                    self._detach()
                if self._ring is not None and self._ring.is_written:
                    self._detach()

    def _taken(self, count: int) -> list[array[int]]:
        taken = [numbers[:count] for numbers in self._arrays]
        places = taken.pop(_PLACE)
        keys: Any = taken[_OPERATOR]
        if self._site_of is not None:
            keys = list(zip(keys, places, strict=True))
        numbers = self._numbers
        for key in set(keys) - numbers.keys():
            numbers[key] = self._writer.name(self._text_of(key))
        taken[_OPERATOR] = array("I", [numbers[key] for key in keys])
        return taken

    def _text_of(self, key: Any) -> str:
        if self._site_of is None:
            return self._name_of(key) if key else ""
        operator, place = key
        if not operator:
            return ""  # memory that no operator asked for: a place says nothing of it
        return f"{self._name_of(operator)}{self._site_of(place) if place else ''}"

    def _detach(self) -> None:
        for pool in self._pools.handles:
            lib.dtr_pool_set_log(pool, ffi.NULL, 0)

    def _finish(self) -> None:
        """Writes the rest and the end, on the thread, which no interrupt reaches."""
        self.drain()
        lost = lib.dtr_event_log_lost(self._log)
        with self.draining:
            try:
                if self._failure is None:
                    end = {"began_unix_ns": self._began_unix_ns}
                    self._writer.close(end | ({"lost_events": int(lost)} if lost else {}))
                else:
                    self._writer.leave()
            except OSError as error:
                self._failure = error

    def stop(self) -> None:
        """Writes the rest and ends the file. It may be called again, also after an interrupt."""
        if self._mark.closed:
            return
        self._detach()
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._finish()  # if the thread has not
        if self._ring is not None and not self._ring.is_written:
            with suppress(OSError):
                if self.path.is_file() and not self.path.stat().st_size:
                    self.path.unlink()  # lock_file() has made it
        self._mark.close()
        lost = lib.dtr_event_log_lost(self._log)
        if self._failure is not None:
            text = f"cannot be written to its end: {self._failure}"
        elif lost:
            text = f"ends early: {lost} events came faster than they could be written"
        else:
            return
        print(f"dtr_alloc: DTR_ALLOC_TRACE ({self.path}) {text}", file=sys.stderr)

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self._ended.set()
        self._detach()
        self._writer.abandon()
        self._mark.close()


def _meta(pools: Pools, mode: str) -> dict[str, Any]:
    return {
        "source": "dtr_alloc",
        "version": package_version("dtr-alloc"),
        "time_unit": "ns",
        "mode": mode,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": list(sys.orig_argv),
        "devices": [
            {
                "kind": pools.device_type,
                "budget_bytes": of["budget_bytes"],
                "total_bytes": of["total_bytes"],
                "chunk_bytes": of["chunk_bytes"],
                "fixed": _is_fixed(pool),
            }
            for pool, of in zip(pools.handles, pools.stats(), strict=True)
        ],
    }


def _is_fixed(pool: Any) -> bool:
    room = ffi.new("dtr_pool_room *")
    check(lib.dtr_pool_get_room(pool, 1, room))
    return bool(room.fixed)


def start(pools: Pools, path: Path, mode: str, **options: Any) -> Recording | None:
    """Begins the process's recording, unless there is one; the process's end or stop() ends it. The
    arguments are those of Recording.

    Returns the running one; None, with a line on stderr, if another process writes the file. Raises
    OSError if it cannot be opened.
    """
    global _current
    with _lock:
        if _current is not None:
            return _current
        try:
            made = Recording(pools, path, mode, **options)
        except FileTaken as error:
            print(f"dtr_alloc: {error}", file=sys.stderr)
            return None
        _current = made
        try:
            made.start()
        except BaseException:
            stop()
            raise
        return made


def stop() -> None:
    """Ends the process's recording, if there is one."""
    global _current
    with _lock:
        if _current is not None:
            _current.stop()
            _current = None


def _before_fork() -> None:
    _lock.acquire()
    if _current is not None:
        _current.draining.acquire()


def _after_fork_in_parent() -> None:
    if _current is not None:
        _current.draining.release()
    _lock.release()


def _after_fork_in_child() -> None:
    global _current
    if _current is not None:
        _current.draining.release()
        _current.abandon()
        _current = None
    _lock.release()


atexit.register(stop)
os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
