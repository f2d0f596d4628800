"""The purity table: what running an operator again means, decided once per operator.

An operator of a known namespace is pure unless the table says otherwise: its results depend on
its arguments alone, and it touches nothing but what its schema marks as written. The exceptions
are listed here, each with its reason. Unknown operators (custom libraries) are never repeated;
what they return is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch._ops import OpOverload

from dtr_alloc.costs import operator_key

READ, MUTATE, WRITE_ONLY, SCRATCH = range(4)
"""How an operator uses a tensor argument; the numbers of native/dtr_alloc.h (DTR_USE_...)."""

NAMESPACES = {"aten", "prims"}
"""Namespaces whose operators' schemas tell the whole truth."""

VIEWS = {
    # Aliases without an alias mark in the schema.
    "_unsafe_view",
    # Change a tensor's shape or storage, never memory.
    *("as_strided_", "detach_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_"),
    *("transpose_", "unsqueeze_", "requires_grad_", "rename_"),
}
"""Operators that need no data and change none, beyond those whose schema says so."""

UNINITIALIZED = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
    *("new_empty", "new_empty_strided"),
}
"""Results are whatever was in memory: constants until they are overwritten, which the engine adopts
when it first meets them. Of their arguments they read shapes alone."""

IMPURE = {
    "resize_": "gives the buffer another size in place",
    "resize_as_": "gives the buffer another size in place",
    "_resize_output_": "gives the buffer another size in place",
    "set_data": "exchanges the storage",
    "record_stream": "is a message to the allocator",
    "_pin_memory": "its result is not ours",
    "_cudnn_rnn": "draws dropout from a state of its own",
    "_cudnn_init_dropout_state": "draws from the generator on the device",
    "_fused_moving_avg_obs_fq_helper": "updates observers",
}
"""Operators that are not repeated, and why."""

WRITES_NOTHING = {"record_stream"}
"""Operators whose schema marks an argument as written that keeps its content."""

WRITE_ONLY_SELF = {
    *("copy_", "fill_", "zero_", "normal_", "uniform_", "exponential_", "random_"),
    *("cauchy_", "log_normal_", "geometric_", "bernoulli_", "_foreach_copy_", "_foreach_zero_"),
}
"""Write every element of their first argument and read none. (The engine still treats it as an
input when it is a view of a part of its storage.)"""

HIDDEN_STATE = dict.fromkeys(
    (
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        *("_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_with_update"),
    ),
    ("running_mean", "running_var"),
)
"""Arguments that are updated in training mode and are then no input of the results."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How the recorder treats one operator.

    Attributes:
        func: the operator; held so that its id() stays its own.
        key: what the engine knows the operator by; see dtr_alloc/costs.py.
        view: needs no data and changes none: passes through.
        replayable: running it again on the same inputs gives the same bits.
        random: draws from a generator.
        uses: by argument name, how a written argument is used.
        positions: names of the positional arguments, in order.
        hidden: arguments that are scratch in training mode.
        dropout: position of the probability, at 0 of which nothing is drawn; -1: none such.
        tensors: the positions at which tensors can be, with how each is used.
        lists: whether an argument can be a list of tensors.
        scalars: arguments by keyword that cannot be tensors.
    """

    func: OpOverload
    key: int
    view: bool
    replayable: bool
    random: bool
    uses: dict[str, int] = field(default_factory=dict)
    positions: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    dropout: int = -1
    tensors: tuple[tuple[int, int], ...] = ()
    lists: bool = False
    scalars: frozenset[str] = frozenset()


def operator_name(func: OpOverload) -> str:
    """The qualified name of an operator, such as ``aten::convolution_backward.default``."""
    return f"{func._schema.name}.{func._schema.overload_name or 'default'}"


def rule_for(func: OpOverload) -> Rule:
    """The rule of an operator, from its schema and the tables above."""
    schema = func._schema
    name = schema.name.split("::")[-1]
    known = func.namespace in NAMESPACES
    uses: dict[str, int] = {}
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            if known and name in WRITES_NOTHING:
                continue
            covers = known and (
                (argument.kwarg_only and argument.is_out)
                or (name in WRITE_ONLY_SELF and argument.name == schema.arguments[0].name)
            )
            uses[argument.name] = WRITE_ONLY if covers else MUTATE
    # A composite whose schema promises an alias may copy after all (reshape, contiguous, to).
    aliases = (
        bool(schema.returns)
        and all(
            value.alias_info is not None and not value.alias_info.is_write
            for value in schema.returns
        )
        and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    )
    hidden = HIDDEN_STATE.get(name, ()) if known else ()
    positions = tuple(argument.name for argument in schema.arguments)
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}

    def may_hold(name: str) -> bool:
        """Whether a tensor can be in the argument, alone or in a list."""
        return "Tensor" in kinds[name] or kinds[name] in ("Any", "t", "List[t]")

    return Rule(
        func=func,
        key=operator_key(operator_name(func)),
        view=known and (name in VIEWS or ((aliases or name in UNINITIALIZED) and not uses)),
        replayable=known and name not in IMPURE and name not in UNINITIALIZED,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        uses=uses,
        positions=positions,
        hidden=hidden,
        dropout=positions.index("dropout_p") if known and "dropout_p" in positions else -1,
        tensors=tuple(
            (position, uses.get(name, READ))
            for position, name in enumerate(positions)
            if may_hold(name)
        ),
        lists=any("List[" in kinds[name] and may_hold(name) for name in positions),
        scalars=frozenset(
            argument.name
            for argument in schema.arguments
            if argument.kwarg_only and not may_hold(argument.name)
        ),
    )
