"""Integer programs by named variables, solved with HiGHS through scipy."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Name = tuple[Any, ...]
"""A variable: what it is, then its indices."""
Terms = Sequence[tuple[float, Name]]
"""Factors and the variables that they go with."""

GAP = 1e-6
"""Relative: a solution whose bound is as close as this is optimal."""

_STATUSES = {0: "optimal", 1: "time limit", 2: "infeasible"}


class SolverError(RuntimeError):
    """HiGHS gave up for a reason other than time."""


@dataclass(frozen=True)
class Found:
    """What the solver says.

    Attributes:
        status: ``optimal``, ``time limit`` or ``infeasible``.
        values: of the variables that are not zero, or None if no solution was found.
        bound: the objective is nowhere less; None if infeasible.
        seconds: of the solver.
    """

    status: str
    values: Mapping[Name, float] | None
    bound: float | None
    seconds: float


class IntegerModel:
    """A program that is being written down; it can be solved several times."""

    def __init__(self) -> None:
        self._names: dict[Name, int] = {}
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[Terms, float, float]] = []

    def variable(self, *name: Any, lower: float = 0, upper: float = 1, whole: bool = False) -> None:
        self._names[name] = len(self._lower)
        self._lower.append(lower)
        self._upper.append(upper)
        self._whole.append(whole)

    def row(self, terms: Terms, lower: float = -math.inf, upper: float = math.inf) -> None:
        """Terms of variables that do not exist are zero."""
        self._rows.append(([term for term in terms if term[1] in self._names], lower, upper))

    def solve(
        self,
        objective: Terms,
        seconds: float,
        *,
        rows: Sequence[tuple[Terms, float]] = (),
        whole: bool = True,
    ) -> Found:
        """Minimizes the objective.

        Args:
            objective: what is summed up.
            seconds: when to stop.
            rows: further rows, of this solution only: terms, and at most how much.
            whole: whether variables that are to be integers must be.

        Raises SolverError.
        """
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        all_rows = [*self._rows, *((terms, -math.inf, upper) for terms, upper in rows)]
        costs = np.zeros(len(self._names))
        for factor, name in objective:
            costs[self._names[name]] = factor
        entries = [
            (at, self._names[name], factor)
            for at, (terms, _, _) in enumerate(all_rows)
            for factor, name in terms
            if name in self._names
        ]
        at, of, factors = zip(*entries, strict=True)
        matrix = csr_array((factors, (at, of)), shape=(len(all_rows), len(self._names)))
        lower = [low for _, low, _ in all_rows]
        upper = [high for _, _, high in all_rows]
        begin = time.perf_counter()
        found = milp(
            costs,
            integrality=np.array(self._whole, int) if whole else None,
            bounds=Bounds(np.array(self._lower), np.array(self._upper)),
            constraints=LinearConstraint(matrix, lower, upper),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )
        took = time.perf_counter() - begin
        status = _STATUSES.get(found.status)
        if status is None:
            raise SolverError(f"HiGHS: {found.message}")
        values = None
        if found.x is not None:
            values = {name: found.x[index] for name, index in self._names.items() if found.x[index]}
        bound = None
        if status != "infeasible":
            bound = found.fun if not whole else found.mip_dual_bound
            bound = -math.inf if bound is None else float(bound)
        return Found(status, values, bound, took)
