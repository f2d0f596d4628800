"""Python functions that count as one operator, such as kernels that PyTorch does not know."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dtr_alloc.torch import api, escapes

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def run_as_operator(
    *, mutated: Iterable[int | str] = (), name: str = ""
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
@overload
def run_as_operator(
    function: Callable[_P, _R], *, mutated: Iterable[int | str] = (), name: str = ""
) -> Callable[_P, _R]: ...
@overload
def run_as_operator(
    function: Callable[..., _R],
    *arguments: Any,
    mutated: Iterable[int | str] = (),
    name: str = "",
) -> _R: ...
def run_as_operator(
    function: Callable[..., Any] | None = None,
    *arguments: Any,
    mutated: Iterable[int | str] = (),
    name: str = "",
) -> Any:
    """Runs a function of tensors as one operator, such as a kernel that PyTorch does not know.
    Without arguments, it decorates the function, so that each call does::

        @dtr_alloc.run_as_operator(mutated=["out"])
        def scale(x, out, factor):
            kernel[grid](x, out, factor)

    Its results can be evicted, and are recomputed by calling it again with the same values; it must
    then give the same results. It may ask tensors for their addresses, and use them until it
    returns. If it seeds a generator of PyTorch, a later call restores the generator. Autograd does
    not look inside: call this in forward() and backward() of a torch.autograd.Function. Without a
    budget, and inside of another such function, it is just called.

    Args:
        function: returns a tensor, or tensors in lists, tuples and dictionaries, in memory that
            PyTorch allocated. It uses no tensors but its arguments, and others that stay unchanged;
            these can be evicted, and are back when it is called again.
        arguments: tensors, also in lists, tuples and dictionaries, and values of any other type,
            which are kept. Those of a decorated function may be given by name.
        mutated: positions or names of the arguments whose tensors it overwrites.
        name: for messages, logs and costs; by default that of the function.

    Raises StateError if the function reads an evicted tensor that depends on one which it
    overwrites, TypeError if mutated names anything but tensors of the arguments, and RuntimeError
    if an argument requires a gradient, which the result would not have.
    """
    mutated = tuple(mutated)
    if function is None:
        return partial(run_as_operator, mutated=mutated, name=name)
    name = name or f"{function.__module__}.{function.__qualname__}"
    if arguments:
        return _run_as_operator(function, dict(enumerate(arguments)), mutated, name)
    signature = inspect.signature(function)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise TypeError(f"{name} takes any arguments (*args, **kwargs); give each one a name")

    def by_position(*values: Any) -> Any:
        named = dict(zip(signature.parameters, values, strict=True))
        bound = inspect.BoundArguments(signature, named)
        return function(*bound.args, **bound.kwargs)

    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _run_as_operator(by_position, bound.arguments, mutated, name)

    return decorated


def _run_as_operator(
    function: Callable[..., Any],
    arguments: Mapping[Any, Any],
    mutated: tuple[int | str, ...],
    name: str,
) -> Any:
    """run_as_operator() for arguments by their names, or by their positions."""
    leaves_of = {argument: tree_leaves(value) for argument, value in arguments.items()}
    names: dict[Any, Any] = dict(enumerate(arguments))
    overwritten = [which if which in arguments else names.get(which) for which in mutated]
    for which, argument in zip(mutated, overwritten, strict=True):
        if argument is None or not any(isinstance(each, Tensor) for each in leaves_of[argument]):
            raise TypeError(f"{name}: mutated has {which!r}, which is no tensor of its arguments")
    owners = [argument for argument, leaves in leaves_of.items() for _ in leaves]
    leaves, spec = tree_flatten(list(arguments.values()))
    if torch.is_grad_enabled():
        for argument, leaf in zip(owners, leaves, strict=True):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                raise RuntimeError(
                    f"{name}: the argument {argument} wants a gradient, which run_as_operator does "
                    "not give: call it in a torch.autograd.Function, or under torch.no_grad()"
                )
    made: Any = None

    def of_leaves(leaves: list[Any]) -> list[Any]:
        nonlocal made
        given = tree_unflatten(leaves, spec)
        results, made = tree_flatten(escapes.addresses_not_kept(function, *given))
        return results

    with torch.no_grad():
        runtime = api._runtime
        if runtime is None or not runtime.is_active or not runtime.recorder.sees(leaves):
            return function(*arguments.values())
        positions = [at for at, argument in enumerate(owners) if argument in overwritten]
        return tree_unflatten(runtime.recorder.run(of_leaves, leaves, name, positions), made)
