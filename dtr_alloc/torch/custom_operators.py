"""Custom operators, and the conditions for repeating them.

The user may declare an operator of a custom library as *trusted*, or as never to be repeated.
Without a declaration it is *tried*: some of its first calls run twice, and if both runs give the
same bits it is repeated from then on (native/bridge/trial.h). An operator is tried only if it takes
and returns tensors, and by its schema neither overwrites nor returns its arguments. Operators
without tensor arguments, such as one that reads a file, would often pass by chance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from dtr_alloc.config import OPERATOR_FORMS, ConfigError, operator_or_namespace

_declared: dict[str, bool] = {}
"""The last declaration for a namespace or an operator: whether it is trusted."""
_of_session: tuple[str, ...] = ()
"""Trusted by the setting ``trust``."""
_forget_rules: Callable[[], None] | None = None
"""Makes the rule of each operator again at its next call."""


def trust(name: str) -> None:
    """Has the results of a custom operator evicted and recomputed, without a trial.

    Without it, custom operators whose schemas overwrite nothing are tried: their first calls run
    twice, and one that gives the same both times is repeated from then on
    (dtr_alloc/torch/custom_operators.py). One that overwrites arguments, by its schema, is repeated
    if it is trusted. It must then give the same bits for the same arguments and the same state of
    PyTorch's generators, and its schema must name all overwritten arguments.

    A function of a C++ extension that is no operator is never tried, but repeated if it is trusted
    (dtr_alloc/torch/extensions.py).

    Args:
        name: of an operator, such as ``mylib::gelu``, or of a namespace, such as ``flash_attn``. Of
            a function: its package and name.

    It counts from the next call on, in this session and later ones; ``DTR_ALLOC_TRUST`` and the
    setting ``trust`` do the same for one session. Raises ConfigError for any other name.
    """
    _say(name, True)


def distrust(name: str) -> None:
    """Declares that an operator, given as in trust(), must never run again: its later results are
    never evicted. A declaration for an operator takes precedence over that for its namespace."""
    _say(name, False)


def _say(name: str, trusted: bool) -> None:
    try:
        _declared[operator_or_namespace(name)] = trusted
    except ValueError:
        raise ConfigError("the argument name", name, OPERATOR_FORMS) from None
    if _forget_rules is not None:
        _forget_rules()


def trust_in_session(names: tuple[str, ...]) -> None:
    """Trusts these until the next session."""
    global _of_session
    before, _of_session = _of_session, names
    if names != before and _forget_rules is not None:
        _forget_rules()


def after_each_declaration(forget_rules: Callable[[], None]) -> None:
    """Registers a callback that forgets the rules after each declaration."""
    global _forget_rules
    _forget_rules = forget_rules


def declared(namespace: str, name: str) -> bool | None:
    """Whether an operator, by its name without a namespace, was declared as trusted; None without a
    declaration. A declaration for an operator takes precedence over one for a namespace, and one of
    the program over the setting."""
    for key in (f"{namespace}::{name}", namespace):
        if key in _declared:
            return _declared[key]
        if key in _of_session:
            return True
    return None


def can_be_tried(schema: torch._C.FunctionSchema) -> bool:
    """Whether an operator may be tried, by its arguments and results."""
    kinds = [str(argument.type) for argument in schema.arguments]
    return (
        any("Tensor" in kind for kind in kinds)
        and not any(kind.startswith("__torch__") for kind in kinds)  # objects have a state
        and all(argument.alias_info is None for argument in schema.arguments)
        and bool(schema.returns)
        and all(value.alias_info is None for value in schema.returns)
    )


def failed_trial(name: str, fault: str) -> None:
    """Reports that an operator is not repeated, and the reason."""
    bare = name.rpartition(".")[0]
    print(
        f"dtr_alloc: {bare} {fault}, so its results are never evicted from now on. "
        f'dtr_alloc.trust("{bare}") has them evicted all the same; dtr_alloc.distrust("{bare}") '
        "spares it the trial and you this line.",
        file=sys.stderr,
    )
