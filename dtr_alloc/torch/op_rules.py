"""The rules of operators: whether another run gives the same, decided once per operator.

An operator of a known namespace is pure unless a table says otherwise: its results depend on its
arguments alone, and it changes only the arguments that its schema marks as written. The exceptions
are listed here, each with its reason. For custom libraries see custom_operators.py. Operators that
are not repeated return constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from dtr_alloc.costs import operator_key, signed
from dtr_alloc.torch import custom_operators

READ, MUTATE, WRITE_ONLY, SCRATCH = range(4)
"""How an operator uses a tensor argument; the numbers of dtr/ops.h (DTR_USE_...)."""

NAMESPACES = {"aten", "fsdp", "inductor", "mkldnn", "prims"}
"""PyTorch's own namespaces, whose schemas are correct but for the tables below."""

VIEWS = {
    # Aliases without an alias mark in the schema.
    "_unsafe_view",
    # Change a tensor's shape or storage, never memory.
    *("as_strided_", "detach_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_"),
    *("transpose_", "unsqueeze_", "requires_grad_", "rename_"),
    "_coalesced_",  # a mark of a sparse tensor
}
"""Operators that need no data and change none, beyond those whose schema says so."""

UNINITIALIZED = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
    *("new_empty", "new_empty_strided"),
}
"""Results are the present content of memory: constants, which the engine adopts when it first meets
them, until they are overwritten, at once or in parts. They read only the shapes of their
arguments."""

OFTEN_PASSING = {
    *("_reshape_alias", "alias", "as_strided", "detach", "diagonal", "expand", "lift_fresh"),
    *("permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose"),
    *("unbind", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real"),
    *VIEWS,
    *UNINITIALIZED,
}
"""Operators of aten that need no data and change none, and that jobs call often."""

IMPURE = {
    "resize_": "gives the buffer another size in place",
    "resize_as_": "gives the buffer another size in place",
    "_resize_output_": "gives the buffer another size in place",
    "set_data": "exchanges the storage",
    "as_strided_copy": "may read outside of its argument",
    "record_stream": "is a message to the allocator",
    "_pin_memory": "gives memory that is not ours",
    "_cudnn_rnn": "draws dropout from a state of its own",
    "_cudnn_init_dropout_state": "draws from the generator on the device",
    "_fused_moving_avg_obs_fq_helper": "updates observers",
    "linalg_lstsq": "gives other last bits from run to run, without us as well",
}
"""Operators that are not repeated, and why."""

WRITES_NOTHING = {"record_stream"}
"""Operators whose schema marks an argument as written although it keeps its content."""

WRITE_ONLY_SELF = {
    *("copy_", "fill_", "zero_", "normal_", "uniform_", "exponential_", "random_"),
    *("cauchy_", "log_normal_", "geometric_", "bernoulli_", "_foreach_copy_", "_foreach_zero_"),
}
"""Write every element of their first argument and read none. (The engine still treats it as an
input if it is a view of a part of its storage.)"""

HIDDEN_STATE = dict.fromkeys(
    (
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        *("_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_with_update"),
    ),
    ("running_mean", "running_var"),
)
"""Arguments that are updated in training mode, and are no inputs of the results then."""

NOISE = {"rrelu_with_noise", "rrelu_with_noise_"}
"""Write their argument ``noise`` in training mode, every element, and do not touch it otherwise."""

COPIES = {"copy_"}
"""Only copy their second tensor to their first, element by element."""

UNMARKED_WRITES = {
    "mkldnn_rnn_layer_backward": ("workspace",),
    "all_gather_copy_in": ("all_gather_output",),
}
"""Arguments that are read and written without a mark in the schema: oneDNN computes in the
workspace of its forward, and FSDP2 fills a part of the gathered tensor."""

COLLECTIVES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"}
"""Namespaces of torch.distributed. Their operators may end before their work does, which uses the
memory of their tensors by itself. That memory is never moved or evicted again."""

_READING_COLLECTIVES = {"send", "barrier", "monitored_barrier_", "check_for_nan"}
_WRITING_COLLECTIVES = {"irecv", "batch_p2p_ops"}


def _collective_writes(namespace: str, name: str, argument: str) -> bool:
    """Whether an operator of torch.distributed overwrites an argument without a mark in the schema.
    Operators of c10d have no marks: they overwrite all arguments that are not named input."""
    if namespace == "c10d":
        return name not in _READING_COLLECTIVES and not argument.startswith("input")
    return namespace == "_c10d_functional" and name in _WRITING_COLLECTIVES


PINNING_COMPOSITES = {
    *("tensor_split.tensor_indices_or_sections", "ctc_loss.Tensor", "_pad_packed_sequence"),
    *("lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data"),
}
"""Operators above the capture, which sees only their calls, whose kernels read the memory of their
integer arguments (lengths, indices) themselves."""

WHOLE_COMPOSITES = {
    *("_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_scramble_"),
    *("_sobol_engine_initialize_state_", "_saturate_weight_to_fp16", "_rowwise_prune"),
}
"""Operators above the capture, without a gradient, whose kernels use the memory of all their
arguments themselves: each is captured as one operator."""

WHOLE_WITHOUT_GRADIENT = {"max_pool1d"}
"""Operators above the capture that call others if a gradient is wanted, and otherwise use the
memory of their first argument themselves: then each is captured as one operator."""


_LISTS = {"List[Tensor]": 1, "List[Optional[Tensor]]": 2}
"""Kinds of lists of tensors, by the names of their types; the numbers of native/bridge/rules.h."""


_ANYTHING = ("Any", "t", "List[t]")
"""Types of arguments that may or may not be tensors."""


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """An argument that can hold tensors.

    Attributes:
        position: in the schema.
        kind: 0, one tensor; 1, a list of tensors; 2, a list of tensors and None.
        use: READ, MUTATE, WRITE_ONLY, SCRATCH.
        in_training: the same, in training mode.
    """

    position: int
    kind: int
    use: int
    in_training: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The recorder's treatment of one operator. A position is an index in its schema, -1: none.

    Attributes:
        name: such as ``aten.add.Tensor``.
        key: the engine's number of the operator; see dtr_alloc/costs.py.
        passes: needs no data and changes none, so it is not recorded.
        looks: reads tensors, and makes and changes none: its arguments must be resident.
        lasts: its work may go on, with its tensors' memory, after it ended.
        because: the reason, a predicate, why another run on the same inputs might give other bits;
            ``""``: it gives the same.
        tried: that is not known, and its first calls will show it.
        of_others: of a library that is not PyTorch's.
        copies: copies its second tensor to its first.
        random: draws from a generator. (Backward operators are tagged so, too, but take the mask or
            the seed of the forward as an argument.)
        generator: position of its generator.
        device: position of the device of its results.
        dropout: position of the probability, at 0 of which nothing is drawn.
        training: position of the flag that says whether hidden state is written; none: it is.
        tensors: the arguments that can hold tensors.
    """

    name: str
    key: int
    passes: bool
    looks: bool
    lasts: bool
    because: str
    tried: bool
    of_others: bool
    copies: bool
    random: bool
    generator: int = -1
    device: int = -1
    dropout: int = -1
    training: int = -1
    tensors: tuple[TensorArgument, ...] = ()

    @property
    def recomputable(self) -> bool:
        """Whether it is run again."""
        return not self.because

    def numbers(self, number: int) -> list[int]:
        """The rule for native/bridge/rules.h.

        Args:
            number: the index of the rule in the caller's list.
        """
        marks = (
            *(self.passes, self.looks, self.lasts, self.recomputable, self.tried),
            *(self.of_others, self.copies, self.random),
        )
        positions = [self.generator, self.device, self.dropout, self.training]
        tensors = [
            value for of in self.tensors for value in (of.position, of.kind, of.use, of.in_training)
        ]
        return [signed(self.key), number, *map(int, marks), *positions, *tensors]


def operator_name(func: OpOverload) -> str:
    """The qualified name of an operator, such as ``aten::convolution_backward.default``."""
    return f"{func._schema.name}.{func._schema.overload_name or 'default'}"


def _why_not_repeated(name: str, known: bool, may_repeat: bool, anything: bool, gives: bool) -> str:
    """Rule.because of an operator.

    Args:
        known: of a known namespace.
        may_repeat: a custom one that is trusted or can be tried.
        anything: with arguments of any type.
        gives: or overwrites tensors.
    """
    if not (known or may_repeat):
        return "is of a library that is not known, and is neither trusted nor can be tried"
    if known and name in UNINITIALIZED:
        return "gives whatever was in memory"
    if known and name in IMPURE:
        return IMPURE[name]
    if anything:
        return "takes arguments of any type"
    return "" if gives else "gives no tensor"


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
    lasts = func.namespace in COLLECTIVES
    if lasts:
        for argument in schema.arguments:
            if _collective_writes(func.namespace, name, argument.name):
                uses[argument.name] = MUTATE
    if known:
        uses |= dict.fromkeys(UNMARKED_WRITES.get(name, ()), MUTATE)
    # A composite whose schema promises an alias may copy after all (reshape, contiguous, to).
    aliases = (
        bool(schema.returns)
        and all(
            value.alias_info is not None and not value.alias_info.is_write
            for value in schema.returns
        )
        and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    )
    in_training = dict.fromkeys(HIDDEN_STATE.get(name, ()) if known else (), SCRATCH)
    if known and name in NOISE:
        uses["noise"], in_training["noise"] = SCRATCH, WRITE_ONLY
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    positions = {name: position for position, name in enumerate(kinds)}
    generator = next((positions[name] for name, kind in kinds.items() if "Generator" in kind), -1)
    # Prims of TorchScript that take anything: what stands there is not always a tensor.
    anything = any(kind in _ANYTHING for kind in kinds.values())

    def position(*names: str) -> int:
        return next((positions[name] for name in names if name in positions), -1)

    is_trusted = custom_operators.declared(func.namespace, name)
    custom = not known and not lasts
    tried = custom and is_trusted is None and custom_operators.can_be_tried(schema)
    gives_out = any(argument.is_out for argument in schema.arguments)
    makes = any("Tensor" in str(value.type) for value in schema.returns)
    return Rule(
        name=str(func),
        key=operator_key(operator_name(func)),
        passes=known
        and not gives_out
        and (name in VIEWS or ((aliases or name in UNINITIALIZED) and not uses)),
        looks=known and not uses and not in_training and not makes and not anything,
        lasts=lasts,
        because=(
            "is not trusted (dtr_alloc.distrust)"
            if is_trusted is False
            else _why_not_repeated(
                name, known, tried or (custom and is_trusted is True), anything, bool(uses) or makes
            )
        ),
        tried=tried,
        of_others=not known,
        copies=known and name in COPIES,
        # What a custom operator draws is noted, if it draws.
        random=generator >= 0
        or custom
        or (torch.Tag.nondeterministic_seeded in func.tags and not name.endswith("_backward")),
        generator=generator,
        device=position("device"),
        dropout=position("dropout_p") if known else -1,
        # _batch_norm_with_update has no such argument: it always trains.
        training=position("training", "train") if in_training else -1,
        tensors=tuple(
            TensorArgument(
                positions[name],
                _LISTS.get(kind, 0),
                uses.get(name, READ),
                in_training.get(name, uses.get(name, READ)),
            )
            for name, kind in kinds.items()
            if "Tensor" in kind or kind in _ANYTHING
        ),
    )
