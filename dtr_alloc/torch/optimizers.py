"""Settles the dependents of an optimizer's parameters and states before it writes.

An optimizer overwrites many tensors one after the other. Their dependents that are still referenced
must come back first, and may not fit into memory. So this happens before the first write: either
the whole step is made, or nothing has changed. If all of it takes less than three quarters of the
budget, each operator settles for itself (Engine::settle). Examining all tensors takes several
percent of a step of tiny operators, so two counters are read first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtr_alloc.config import error_size
from dtr_alloc.torch.pins import parts
from dtr_alloc.torch.references import Reference, references
from dtr_alloc.torch.session import Session

_hooks: list[Any] = []


def start(runtime: Session) -> None:
    """Makes all optimizers settle before they write, until stop()."""
    _hooks.append(register_optimizer_step_pre_hook(functools.partial(_before_step, runtime)))


def stop() -> None:
    while _hooks:
        _hooks.pop().remove()


def _before_step(
    runtime: Session, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if torch.compiler.is_compiling():
        return None  # the compiled step is one operator
    _settle(runtime, optimizer)
    # A closure computes anew from the parameters, which are overwritten when it has returned.
    closure: Any = kwargs.get("closure")
    if callable(closure):
        return args, {**kwargs, "closure": _settling(runtime, optimizer, closure)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _settling(runtime, optimizer, args[1]), *args[2:]), kwargs
    return None


def _settling(runtime: Session, optimizer: Optimizer, closure: Callable[..., Any]) -> Any:
    @functools.wraps(closure)
    def settling(*args: Any, **kwargs: Any) -> Any:
        loss = closure(*args, **kwargs)
        _settle(runtime, optimizer, " since its closure ran")
        return loss

    return settling


def _settle(runtime: Session, optimizer: Optimizer, since: str = "") -> None:
    if runtime.has_ample_room():
        return
    try:
        runtime.recorder.settle_all(_overwritten(optimizer))
    except torch.OutOfMemoryError as error:
        text = (
            f"dtr_alloc: {type(optimizer).__name__}.step() has changed nothing{since}: "
            f"{_reason(references(runtime, optimizer))}\n{error}"
        )
    else:
        return
    raise torch.OutOfMemoryError(text)


def _overwritten(optimizer: Optimizer) -> Iterator[Tensor]:
    """Parameters that have a gradient, and their states."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state.get(parameter)
            for tensor in (parameter, *(state.values() if isinstance(state, dict) else ())):
                if type(tensor) is Tensor or type(tensor) is Parameter:
                    yield tensor
                elif isinstance(tensor, Tensor):
                    yield from parts(tensor)


def _reason(held: list[Reference]) -> str:
    text = (
        "tensors that were computed from what it overwrites are evicted and still referenced, so "
        "they have to come back first, and neither the budget nor host memory (DTR_ALLOC_SWAP) has "
        "room for them all."
    )
    if held:
        text += " Held are: " + "; ".join(
            f"{of.tensors} evicted tensors of {error_size(of.size_bytes)} by {of.name}"
            for of in held
        )
        text += ". Drop these references, or raise the budget."
    return text
