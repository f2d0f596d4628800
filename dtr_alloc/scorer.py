"""Python heuristics: scores from a callable, for the engine, and the callable's errors."""

from __future__ import annotations

import math
import threading
from dataclasses import fields
from typing import Any

from dtr_alloc.core import ffi
from dtr_alloc.heuristics import Candidate, Heuristic

_SIGNATURE = (
    "int32_t(void *, const dtr_candidate *, uint64_t, double *, char *, uint64_t)"  # dtr_score_fn
)
_FIELDS = tuple(field.name for field in fields(Candidate))


class Scorer:
    """Calls a heuristic's callable for the engine.

    Attributes:
        pointer: the C function; it lives as long as this object.
    """

    def __init__(self, heuristic: Heuristic) -> None:
        assert heuristic.score is not None
        self._score = heuristic.score
        self._name = heuristic.name
        self._failures = threading.local()
        # What comes from outside (Ctrl-C) may come before _call can catch anything, or after that.
        self.pointer = ffi.callback(_SIGNATURE, self._call, error=1, onerror=self._interrupted)

    def _call(
        self, _: Any, candidates: Any, count: int, scores: Any, message: Any, capacity: int
    ) -> int:
        try:
            for index in range(count):
                of = candidates[index]
                values = {name: getattr(of, name) for name in _FIELDS}
                score = self._score(Candidate(**values | {"live": bool(of.live)}))
                if isinstance(score, str) or math.isnan(score):
                    raise ValueError(
                        f"the score of storage {of.id} is {score!r}; allowed: any number but NaN"
                    )
                scores[index] = score
        except BaseException as error:
            # It crosses C++ frames as a message; the recorder gives it back its object.
            self._failures.error = error
            text = f"heuristic {self._name!r} failed: {type(error).__name__}: {error}"
            encoded = text.encode(errors="replace")[: capacity - 1]
            ffi.memmove(message, encoded + b"\0", len(encoded) + 1)
            return 1
        return 0

    def _interrupted(self, _: Any, error: BaseException, __: Any) -> None:
        self._failures.error = error

    def take_failure(self) -> BaseException | None:
        """The callable's last error on this thread, once."""
        error = getattr(self._failures, "error", None)
        self._failures.error = None
        return error
