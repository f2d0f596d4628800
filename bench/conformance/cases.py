"""The cases: each operator, module and optimizer of PyTorch's own databases, called on a few of its
samples, plainly and in a session, in which all results are evicted that can be, and read again."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import dtr_alloc
from bench.conformance.samples import (
    bytes_of,
    copied,
    difference,
    dtypes_of,
    fresh,
    name_of,
    outcome,
    samples_of,
    seed,
)
from dtr_alloc.config import TINY_BYTES
from dtr_alloc.torch.pins import parts

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

SAMPLES = 4
"""Of a case: the first ones that give results with memory."""
MOST_SAMPLES = 512
"""That are tried for that."""
STEPS = 2
"""Of an optimizer."""
LIMITS = (TINY_BYTES, 0)
"""Of tiny storages, in bytes."""

Run = Callable[[], Any]
"""Calls it on one sample, in memory that is new. Gives the same each time."""


@dataclass(frozen=True)
class Case:
    """One entry of a database.

    Attributes:
        kind: ``operators``, ``modules`` or ``optimizers``.
        runs: makes its samples; each is a call.
    """

    kind: str
    name: str
    runs: Callable[[], Iterator[Run]]


def all_cases() -> list[Case]:
    """Those of the three databases, in their order."""
    return [
        *(Case("operators", name_of(op), partial(_operator, op)) for op in op_db),
        *(Case("modules", module.name, partial(_module, module)) for module in module_db),
        *(Case("optimizers", optim.name, partial(_optimizer, optim)) for optim in optim_db),
    ]


def _operator(op: Any) -> Iterator[Run]:
    def run(sample: Any) -> Any:
        torch.manual_seed(1)
        of = fresh(sample)
        return op(of.input, *of.args, **of.kwargs)

    for dtype in dtypes_of(op)[:1]:  # none, if it has no CPU kernel
        for sample in samples_of(op, dtype, True, MOST_SAMPLES):
            yield partial(run, sample)


def _module(module: Any) -> Iterator[Run]:
    def run(sample: Any, training: bool) -> Any:
        torch.manual_seed(1)
        made, given = sample.constructor_input, sample.forward_input
        of = module.module_cls(*tree_map(copied, made.args), **tree_map(copied, made.kwargs))
        of.train(training)
        return of(*tree_map(copied, given.args), **tree_map(copied, given.kwargs))

    for training in (True, False) if module.train_and_eval_differ else (True,):
        seed()
        samples = module.module_inputs_func(
            module, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for sample in islice(samples, MOST_SAMPLES):
            yield partial(run, sample, training)


def _optimizer(optim: Any) -> Iterator[Run]:
    """Its results are the parameters and its state, after some steps."""

    def run(settings: dict[str, Any]) -> Any:
        torch.manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(*shape)) for shape in ((10, 5), (5, 10))]
        optimizer = optim.optim_cls(parameters, **deepcopy(settings))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = torch.stack([parameter.pow(2).sum() for parameter in parameters]).sum()
            loss.backward()
            for parameter in parameters:
                if optim.only_supports_sparse_grads and parameter.grad is not None:
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        for _ in range(STEPS):
            if optim.step_requires_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        return [parameters, list(optimizer.state.values())]

    for sample in optim.optim_inputs_func("cpu"):
        yield partial(run, sample.kwargs)


def report_of(case: Case) -> dict[str, Any]:
    """What became of a case's results.

    Returns:
        ``evicted`` and ``resident``: numbers of results, by limit; ``kept``: of those that were
        resident without a limit, ``[reason, operator, number]``; ``wrong``: what had other bits, in
        words. Results without memory do not count. A sample that plain PyTorch refuses gives none.

    Raises what a session raises and plain PyTorch does not.
    """
    evicted, resident = dict.fromkeys(LIMITS, 0), dict.fromkeys(LIMITS, 0)
    kept: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    tried = 0
    for index, run in enumerate(case.runs()):
        plain = outcome(run)
        if isinstance(plain, Exception) or not any(map(_has_bytes, tree_leaves(plain))):
            continue
        if tried == SAMPLES:
            break
        tried += 1
        for limit in LIMITS:
            with dtr_alloc.session("unlimited", device="cpu", debug=f"tiny:{limit}"):
                found = _evict_and_read(run, plain)
                dtr_alloc.check_invariants()
            for what in found:
                evicted[limit] += what.why is None
                resident[limit] += what.why is not None
                if what.wrong:
                    wrong.append(f"sample {index}, limit {limit}: {what.wrong}")
                if what.why is not None and limit == 0:
                    kept[what.why] += 1
    return {
        "evicted": evicted,
        "resident": resident,
        "kept": [[*why, number] for why, number in sorted(kept.items())],
        "wrong": wrong,
    }


@dataclass(frozen=True)
class _Result:
    """One tensor: why it was not evicted, if it was not; what was wrong when it came back."""

    why: tuple[str, str] | None
    wrong: str | None


def _evict_and_read(run: Run, plain: Any) -> list[_Result]:
    results = [part for part in tree_leaves(run()) if _has_bytes(part)]
    expected = [part for part in tree_leaves(plain) if _has_bytes(part)]
    before = [_bits(result) for result in results]
    for result in results:
        dtr_alloc.evict(result)
    # Two results may have one storage: only when all was tried is it known what is left.
    reasons = [_why(result) for result in results]
    if len(results) != len(expected):
        return [_Result(None, f"{len(expected)} results are {len(results)}")]
    found = []
    for index, result in enumerate(results):
        wrong = None
        if reasons[index] is None:
            pairs = zip(before[index], _bits(result), strict=True)
            if not all(torch.equal(one, other) for one, other in pairs):
                wrong = f"result {index} came back with other bits"
            elif differs := difference(expected[index], result):
                again = [part for part in tree_leaves(run()) if _has_bytes(part)]
                repeats = difference(result, again[index]) is None
                wrong = f"result {index} is not that of plain PyTorch: {differs}" * repeats
        found.append(_Result(reasons[index], wrong or None))
    return found


def _has_bytes(part: Any) -> bool:
    return isinstance(part, Tensor) and part.numel() > 0 and not part.is_meta


def _bits(result: Tensor) -> list[Tensor]:
    return [bytes_of(part) for part in parts(result.detach())]


def _why(result: Tensor) -> tuple[str, str] | None:
    why = dtr_alloc.why_kept(result)
    if why is None and dtr_alloc.is_resident(result):
        raise AssertionError("it can be evicted, and was not")
    return None if why is None else (why.why, why.operator)
