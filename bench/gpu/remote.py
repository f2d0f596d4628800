"""Commands to a process of its own: one JSON object a line, there and back.

A CUDA process has one allocator for good, so whatever is compared runs in several processes; the
one that measures tells them in turn what to do, and only one of them works at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bench.gpu.part import protocol


class Died(RuntimeError):
    """The process ended instead of answering; its standard error says why."""


class Remote(AbstractContextManager):
    """A process that serves commands (`serve`), from the side of the one that gives them."""

    def __init__(
        self, module: str, *arguments: str, seconds: float | None = None, stderr: Any = None
    ) -> None:
        """Starts ``python -m module arguments``; it is killed after `seconds`, if given. `stderr`:
        the file that it has as its standard error; None: ours."""
        self._name = " ".join([module, *arguments])
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self._timer = threading.Timer(seconds or 0, self._process.kill)
        self._timer.daemon = True
        if seconds is not None:
            self._timer.start()

    def send(self, command: str, **arguments: Any) -> None:
        """Gives a command without waiting for its answer. Raises Died."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"command": command, **arguments}), file=self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Died(f"{self._name} ended with {self._process.wait()}") from None

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest command without one. Raises Died."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Died(f"{self._name} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Gives a command and waits. An answer with "error" is an exception's text."""
        self.send(command, **arguments)
        return self.receive()

    def need(self, command: str, **arguments: Any) -> dict[str, Any]:
        """As ask(), where an error or anything but success ends what is measured."""
        answer = self.ask(command, **arguments)
        if "error" in answer or answer.get("outcome", "trains") != "trains":
            said = answer.get("error", answer.get("outcome"))
            raise RuntimeError(f"{self._name}: {command} {arguments}: {said}")
        return answer

    def close(self) -> None:
        """Ends the process. What it was doing is lost."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(commands: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answers commands from standard input until it closes."""
    output = protocol()
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = commands[given.pop("command")](**given)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=output)
