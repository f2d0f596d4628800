"""Writes the op log of a running job from the engine's recorder to a file.

The engine gathers numbers (native/oplog). This module adds names of operators, counts steps, and
writes the gathered numbers as instructions (dtr_alloc/oplog/format.py).

Our logs keep these rules, beyond the format's manual:

- ``x<number>`` is the storage of a tensor, as it was first met; ``x<number>v<k>`` is another view
  of it. Names are released with the storage, when its memory is freed: that is exact, also for
  tensors that only autograd holds. Overwriting a storage ends its views; they are defined again
  when they are next met.
- A view operator is a CALL with its time. A view that the recorder did not see is a CALL of
  ``view`` with time 0 at its first use.
- An operator that cannot be repeated, or makes nothing, is an EFFECT.
- An operator whose first argument is new memory (``empty`` and then ``copy_``) has it as a result.
  One that both overwrites and makes tensors is a CALL with the time, then a MUTATE.
- Memory of others (numpy arrays) is a constant of 0 bytes: no budget holds it. Tensors of other
  devices, and the running statistics of a normalization in training, are no arguments.
- A result that becomes a parameter is a constant from then on, with a new name. Optimizers MUTATE
  their parameters.
- Times are nanoseconds. Only times depend on the budget. (If the job itself releases tensors in an
  order that depends on addresses, as autocast's cache does, two runs differ in it.)

A log does not say that an address was given away (``numpy()``, ``data_ptr()``), or what an
operator's own threads allocate.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtr_alloc import oplog
from dtr_alloc.config import Steps
from dtr_alloc.core import ffi, lib
from dtr_alloc.output_file import lock_file

_IMPLICIT_VIEW = "view"


class OpLogRecorder:
    """The op log of one session.

    Args:
        runtime: holds the engine.
        path: the file, compressed by its suffix.
        steps: that are written. A step ends when an optimizer's step() returns; each of several
            optimizers counts.

    Raises FileTaken if another process writes this file, and WrongKind or another OSError if it
    cannot be opened. If the disk is full later, the log ends, not the job: close() says so on
    stderr.
    """

    def __init__(self, runtime: Any, path: Path, steps: Steps) -> None:
        self._lock_on_file = lock_file(path, "op log", "DTR_ALLOC_LOG")
        self._engine = runtime.engine
        self._bridge = runtime.bridge
        self._rules = runtime.recorder.rules
        self._call_sites = runtime.call_sites
        self._steps = steps
        self._step = 1
        self._writer = oplog.Writer(path, recorded=True)
        self._failure: OSError | str | None = None
        self._lock = threading.RLock()
        self._hook: Any = None
        self._numbers = ffi.new("int64_t[]", 1 << 16)
        self._is_draining = False
        self.is_open = True

    def start(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(lambda *_: self.step_ended())
        self._take()  # what a log that was interrupted has left
        self._set_mode()

    def _set_mode(self) -> None:
        writing = self._step in self._steps
        mode = lib.DTR_OP_LOG_WRITING if writing else lib.DTR_OP_LOG_FOLLOWING
        lib.dtr_op_log_set(self._engine, mode)
        self._bridge.log_operators(True)

    def step_ended(self) -> None:
        """Ends a step; after the last one that is wanted, ends the log."""
        with self._lock:
            if not self.is_open:
                return
            was_wanted = self._step in self._steps
            self._step += 1
            if (self._step in self._steps) != was_wanted:
                self._set_mode()
            self._drain()
            if self._steps.last is not None and self._step > self._steps.last:
                self.close()

    def drain(self) -> None:
        """Writes the gathered instructions. Does nothing in a nested call: writing may run a
        finalizer of the job, which may run operators."""
        lock = self._lock
        if lock._is_owned():  # type: ignore[attr-defined]
            return
        # Not by with, which waits. Only the lock itself knows whether it is held, as an interrupt
        # may come when acquire() returns. No other call may stand before release().
        try:
            if lock.acquire(blocking=False):
                self._drain()
        finally:
            try:  # noqa: SIM105
                lock.release()
            except RuntimeError:
                pass  # another thread has it

    def _drain(self) -> None:
        """With the lock held. An interrupt while it writes ends the log, because an unknown part of
        the drained numbers is lost then."""
        if not self.is_open:
            return
        if self._is_draining:  # the last call was interrupted, and did not come to end the log
            self._failure = self._failure or "interrupted while it was written"
            self._end()
            return
        self._is_draining = True
        try:
            for group in self._groups(self._take()):
                self._writer.write(*group)
            self._writer.flush()
        except OSError as error:
            self._failure = error
            self._end()
        except BaseException as error:
            self._failure = f"interrupted by {type(error).__name__} while it was written"
            self._end()
            raise
        self._is_draining = False

    def _take(self) -> list[int]:
        """All that the engine has gathered. The buffer grows as needed."""
        while (
            count := lib.dtr_op_log_drain(self._engine, self._numbers, len(self._numbers))
        ) > len(self._numbers):
            self._numbers = ffi.new("int64_t[]", 2 * count)
        return list(ffi.unpack(self._numbers, count)) if count else []

    def _groups(self, numbers: list[int]) -> Iterator[list[oplog.Instruction]]:
        """The instructions of drained numbers (layout: native/include/dtr/op_log.h), in groups that
        belong together."""
        at = 0

        def take(count: int) -> list[int]:
            nonlocal at
            at += count
            return numbers[at - count : at]

        def one() -> int:
            return take(1)[0]

        def take_names(count: int) -> tuple[str, ...]:
            pairs = iter(take(2 * count))
            return tuple([_name(number, view) for number, view in zip(pairs, pairs, strict=True)])

        places = self._call_sites.by_number()
        group: list[oplog.Instruction] = []
        while at < len(numbers):
            kind = one()
            if kind == lib.DTR_OP_LOG_MEMORY:  # of the operator that follows
                pairs = iter(take(2 * one()))
                trace = [
                    f"{'+-='[what]}{number}" for what, number in zip(pairs, pairs, strict=True)
                ]
                group.append(oplog.Annotate(oplog.WORKSPACE, tuple(trace)))
                continue
            if kind == lib.DTR_OP_LOG_PLACE:
                group.append(oplog.place(*places[one()]))
            elif kind == lib.DTR_OP_LOG_CONSTANT:
                number, size = take(2)
                group += (oplog.Constant(_name(number)), oplog.Memory(_name(number), size))
            elif kind == lib.DTR_OP_LOG_CALL:
                operator, time = take(2)
                args = take_names(one())
                results = [take(4) for _ in range(one())]
                names = tuple([_name(number, view) for number, view, _, _ in results])
                group.append(oplog.Call(self._operator_name(operator), args, names, time))
                for name, (_, _, size, alias) in zip(names, results, strict=True):
                    group += (oplog.Memory(name, size), oplog.Alias(name, alias))
            elif kind == lib.DTR_OP_LOG_MUTATE:
                operator, time = take(2)
                args = take_names(one())
                given = take(one())
                indices = tuple([max(index, ~index) for index in given])
                unread = tuple([~index for index in given if index < 0])
                name = self._operator_name(operator)
                group.append(oplog.Mutate(name, args, indices, time, unread))
            elif kind == lib.DTR_OP_LOG_EFFECT:
                operator, time = take(2)
                args = take_names(one())
                made = [take(3) for _ in range(one())]  # DTR_OP_LOG_CONSTANT, number, size
                names = tuple([_name(number) for _, number, _ in made])
                group.append(oplog.effect(self._operator_name(operator), args, names, time))
                for name, (_, _, size) in zip(names, made, strict=True):
                    group += (oplog.Constant(name), oplog.Memory(name, size))
            else:
                assert kind == lib.DTR_OP_LOG_RELEASE, kind
                group.append(oplog.Release(*take_names(1)))
            yield group
            group = []

    def _operator_name(self, number: int) -> str:
        return self._rules[number].name if number >= 0 else _IMPLICIT_VIEW

    def _end(self) -> None:
        self._bridge.log_operators(False)
        lib.dtr_op_log_set(self._engine, lib.DTR_OP_LOG_OFF)
        try:
            self._writer.close()
        except OSError as error:
            self._failure = self._failure or error
        except ValueError:
            pass  # it is closed already: an interrupt came in between the last time
        self._lock_on_file.close()
        self.is_open = False

    def close(self) -> None:
        """Writes the rest and closes the file. More calls do nothing."""
        with self._lock:
            self._drain()
            if self.is_open:
                self._end()
            if self._failure is not None:
                print(
                    f"dtr_alloc: cannot write DTR_ALLOC_LOG ({self._writer.path}) to its end: "
                    f"{self._failure}",
                    file=sys.stderr,
                )
                self._failure = None

    def stop(self) -> None:
        """The reverse of start(), and close()."""
        self.close()
        # Not when the last step ends: PyTorch is going through its hooks just then.
        if self._hook is not None:
            self._hook.remove()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self._lock = threading.RLock()  # the old one may be held by a thread that is not here
        self.is_open = False
        self._bridge.log_operators(False)
        self._writer.abandon()
        self._lock_on_file.close()
        lib.dtr_op_log_set(self._engine, lib.DTR_OP_LOG_OFF)


def _name(number: int, view: int = 0) -> str:
    return f"x{number}v{view}" if view else f"x{number}"
