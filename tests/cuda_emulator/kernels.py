"""Kernels on the CPU for the CUDA operators of PyTorch, on the stand-in for CUDA (cudart.cpp).

``install()`` replaces the CUDA kernel of every ATen operator by one function: device memory is
host memory there, so it makes CPU tensors over the memory of the arguments, runs the operator's
CPU kernel, and puts results into CUDA tensors that come from the CUDA allocator. Values are
therefore real, and the same in every run. Allocation, views, copies of whole tensors, the
dispatcher, autograd and its threads stay PyTorch's own.

Each kernel tells the stand-in which ranges it reads and writes on the current stream. While the
stream captures a graph it computes nothing but shapes, and becomes a node of the graph.

A random operator draws from the CPU's generator, seeded by the seed and the offset of the CUDA
generator, which then moves on by 4: whoever does not save and restore the state of the CUDA
generator gets other numbers.
"""

import ctypes
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

KEPT = {
    # Allocation and what changes a tensor but not its memory.
    *("empty", "empty_strided", "_efficientzerotensor", "resize_", "set_", "as_strided"),
    *("record_stream", "is_set_to", "set_data", "is_pinned", "_pin_memory"),
    # Reads a number: a copy, which the runtime does.
    "_local_scalar_dense",
    # Asks for no memory, and answers by the flags of torch.backends.cuda.
    "_fused_sdp_choice",
}
"""Operators whose CUDA kernels launch nothing."""

_address = torch._C.TensorBase.data_ptr
"""That of Tensor is guarded by dtr_alloc."""
_stream = torch._C._cuda_getCurrentRawStream

_runtime = ctypes.PyDLL("libcuda.so.1")
_runtime.cuda_emulator_use.argtypes = [
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_int,
]
_NODE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)
_runtime.cuda_emulator_capture.argtypes = [ctypes.c_void_p, _NODE, ctypes.c_uint64]
_waiting = ctypes.CDLL("libcuda.so.1")  # what may wait is called without the GIL
_waiting.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]

Node = Callable[[int], None]
_nodes: list[Node] = []
"""What captured kernels do at a launch, given the stream; graphs know them by their index."""


@_NODE
def _launch_node(token: int, stream: int | None) -> None:
    _nodes[token](stream or 0)


def _captured(stream: int, node: Node) -> bool:
    """Whether the stream captures; then the node is a part of its graph from now on."""
    _nodes.append(node)
    if _runtime.cuda_emulator_capture(stream, _launch_node, len(_nodes) - 1):
        return True
    _nodes.pop()
    return False


def _extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * tensor.itemsize


def on_cpu(tensor: Tensor) -> Tensor:
    """A CPU tensor over the memory of a CUDA tensor. It does not keep the memory."""
    extent = _extent(tensor)
    if extent == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    address = _address(tensor)
    if address == 0:
        raise RuntimeError(f"a kernel got an evicted tensor of shape {tuple(tensor.shape)}")
    memory = (ctypes.c_char * extent).from_address(address)
    flat = torch.frombuffer(memory, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


class Use:
    """The ranges of device memory that one kernel reads and writes."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], bool] = {}

    def add(self, tensor: Tensor, writes: bool) -> None:
        if extent := _extent(tensor):
            key = (_address(tensor), extent)
            self.ranges[key] = self.ranges.get(key, False) or writes

    def tell(self, stream: int) -> None:
        for (address, size), writes in self.ranges.items():
            _runtime.cuda_emulator_use(stream, address, size, writes)


_drawing = threading.RLock()
"""Held while a kernel has the CPU's generator, which no other one may move meanwhile."""


class Drawn:
    """What a random operator draws from: the CPU's generator, as the CUDA generator says."""

    def __init__(self, generator: torch.Generator | None, device: int) -> None:
        source = torch.cuda.default_generators[device] if generator is None else generator
        offset = source.get_offset()
        self.seed = (source.initial_seed() * 1_000_003 + offset * 7919 + 1) % 2**63
        source.set_offset(offset + 4)

    def __enter__(self) -> None:
        _drawing.acquire()
        self.before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self.seed)

    def __exit__(self, *exception: object) -> None:
        torch.default_generator.set_state(self.before)
        _drawing.release()


HOST = "(host)"
"""Instead of the name of a returned argument: a new tensor that stays on the CPU."""


class Kernel:
    """The kernel of one operator.

    Args:
        op: what is overridden.
        run: what computes on CPU tensors; the operator itself unless CUDA has one of its own.
        host: which results stay on the CPU.
        draws: whether it draws random numbers; None: if the operator's tag says so.
    """

    def __init__(
        self,
        op: Any,
        run: Callable[..., Any] | None = None,
        host: tuple[int, ...] = (),
        draws: bool | None = None,
    ) -> None:
        self.run = op if run is None else run
        schema = op._schema
        self.arguments = schema.arguments
        self.written = {
            argument.name
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        self.returned: list[str | None] = []
        by_alias = {
            next(iter(argument.alias_info.before_set)): argument.name
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.before_set
        }
        for value in schema.returns:
            names = value.alias_info.before_set if value.alias_info is not None else ()
            self.returned.append(by_alias[next(iter(names))] if names else None)
        for index in host:
            self.returned[index] = HOST
        self.outputs = {a.name for a in schema.arguments if a.is_out}
        self.random = torch.Tag.nondeterministic_seeded in op.tags if draws is None else draws
        self.answers = (
            torch.Tag.data_dependent_output in op.tags
            or torch.Tag.dynamic_output_shape in op.tags
            or any("Tensor" not in str(value.type) for value in schema.returns)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip((a.name for a in self.arguments), args, strict=False)) | kwargs
        return self.on(_device_of(named), *args, **kwargs)

    def on(self, device: int, *args: Any, **kwargs: Any) -> Any:
        """Runs it as work of a device."""
        named = dict(zip((a.name for a in self.arguments), args, strict=False)) | kwargs
        before = torch.cuda._exchange_device(device)
        try:
            return self._on(device, named, len(args))
        finally:
            torch.cuda._maybe_exchange_device(before)

    def _on(self, device: int, named: dict[str, Any], positional: int) -> Any:
        stream = _stream(device)
        use = Use()
        grown: dict[str, Tensor] = {}  # empty outputs, which the CPU's kernel resizes
        given = {}
        for name, value in named.items():
            if name in self.outputs and isinstance(value, Tensor) and value.numel() == 0:
                given[name] = grown[name] = torch.empty(0, dtype=value.dtype)
            else:
                given[name] = _translated(value, use, name in self.written)
        random = None
        if self.random and not _draws_nothing(named):
            random = Drawn(named.get("generator"), device)
            if "generator" in given:
                given["generator"] = None
        if isinstance(given.get("device"), torch.device):
            given["device"] = torch.device("cpu")
        values = list(given.values())
        args, kwargs = values[:positional], dict(list(given.items())[positional:])

        def compute() -> Any:
            if random is None:
                return self.run(*args, **kwargs)
            with random:
                return self.run(*args, **kwargs)

        in_place = bool(self.written) and all(self.returned) and not grown
        if not in_place:
            result = compute()
        outputs: list[tuple[Tensor, Tensor]] = []  # on CUDA, and what it gets
        if in_place:
            answer = self._answer(named, None, outputs, use)
        else:
            for name, value in grown.items():
                named[name].resize_(value.shape)
                outputs.append((named[name], value))
                use.add(named[name], True)
            answer = self._answer(named, result, outputs, use)

        places = [on_cpu(place) for place, _ in outputs]

        def node(at: int) -> None:
            use.tell(at)
            if in_place:
                compute()
                return
            again = compute()
            values = again if len(self.returned) > 1 else (again,)
            new = [
                value for name, value in zip(self.returned, values, strict=False) if name is None
            ]
            again = [value for value in tree_leaves(new) if isinstance(value, Tensor)]
            for place, value in zip(places, [*grown.values(), *again], strict=True):
                place.copy_(value)

        if _captured(stream, node):
            if random is not None:  # each replay draws anew, from an offset that the graph is told
                raise NotImplementedError("a random operator in a graph is not emulated")
            return answer
        use.tell(stream)
        if in_place:
            compute()
        for place, (_, value) in zip(places, outputs, strict=True):
            place.copy_(value)
        if self.answers:
            _waiting.cudaStreamSynchronize(stream)
        return answer

    def _answer(
        self, named: dict[str, Any], result: Any, outputs: list[tuple[Tensor, Tensor]], use: Use
    ) -> Any:
        """The operator's result on CUDA; notes which new tensors get which values."""

        if not self.returned:
            return None
        values = result if len(self.returned) > 1 else (result,)
        answer = []
        for index, name in enumerate(self.returned):
            if name == HOST:
                answer.append(values[index])
            elif name is not None:
                answer.append(named[name])
            else:
                answer.append(_new(values[index], outputs, use))
        return tuple(answer) if len(answer) > 1 else answer[0]


def _new(value: Any, outputs: list[tuple[Tensor, Tensor]], use: Use) -> Any:
    """A result on CUDA, without its values."""

    def new(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        device = torch._C._cuda_getDevice()
        out = torch.empty_strided(*_dense(value), dtype=value.dtype, device=f"cuda:{device}")
        outputs.append((out, value))
        use.add(out, True)
        return out

    return tree_map(new, value)


def _dense(value: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a new tensor for a value: the value's own if it has no holes."""
    if _extent(value) == value.numel() * value.itemsize:
        return tuple(value.shape), value.stride()
    return tuple(value.shape), value.contiguous().stride()


def _device_of(named: dict[str, Any]) -> int:
    for value in tree_leaves(list(named.values())):
        if isinstance(value, Tensor) and value.is_cuda:
            return value.device.index
        if isinstance(value, torch.device) and value.index is not None:
            return value.index
    return torch._C._cuda_getDevice()


def _translated(value: Any, use: Use, writes: bool) -> Any:
    def on_host(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_cuda:
            return value
        use.add(value, writes)
        return on_cpu(value)

    return tree_map(on_host, value)


def _draws_nothing(named: dict[str, Any]) -> bool:
    """Dropout that is off."""
    return named.get("train", True) is False or named.get("dropout_p", 1) == 0


# ---- operators that need more than their CPU kernel


def _copy_(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """PyTorch's own if it is one copy of bytes, else an operator as any other."""
    same = self.dtype == source.dtype and self.shape == source.shape
    if same and self.is_contiguous() and source.is_contiguous():
        return torch.ops.aten.copy_.default._op_dk(
            torch._C.DispatchKey.CompositeExplicitAutograd, self, source, non_blocking
        )
    if self.is_cuda and source.is_cuda and self.device != source.device:
        return _copy_to_peer(self, source, non_blocking)
    result = _general_copy(self, source, non_blocking)
    for tensor in (self, source):
        if tensor.is_cpu and not (non_blocking and tensor.is_pinned()):
            other = source if tensor is self else self
            _waiting.cudaStreamSynchronize(_stream(other.device.index))
    return result


def _copy_to_peer(self: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
    """By a kernel of the source's device, which uses memory of both."""
    # PyTorch's own copy asks for access.
    torch.empty(1, device=self.device).copy_(torch.empty(1, device=source.device))
    ours, theirs = (torch.cuda.current_stream(of.device) for of in (source, self))
    ours.wait_stream(theirs)
    result = _general_copy.on(source.device.index, self, source, non_blocking)
    theirs.wait_stream(ours)
    return result


_general_copy = Kernel(torch.ops.aten.copy_.default)


def _cudnn_batch_norm(*arguments: Any) -> tuple[Tensor, ...]:
    """Its arguments are those of PyTorch's own."""
    results = torch.ops.aten.native_batch_norm.default(*arguments)
    return *results, torch.empty(0, dtype=torch.uint8)


def _cudnn_batch_norm_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor,
    save_var: Tensor,
    epsilon: float,
    reserve: Tensor,
) -> tuple[Tensor, ...]:
    return torch.ops.aten.native_batch_norm_backward.default(
        *(grad_output, input, weight, running_mean, running_var, save_mean, save_var),
        *(True, epsilon, [True, True, True]),
    )


def _attention(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> tuple[float, Tensor, Tensor, Tensor]:
    """The scale, the probabilities, the factors of dropout, and the logarithms of the sums."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if bias is not None:
        scores = scores + bias
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    kept = torch.ones_like(scores)
    if dropout > 0:
        generator = torch.Generator().manual_seed(int(seed))
        kept = kept.bernoulli_(1 - dropout, generator=generator) / (1 - dropout)
    return factor, scores.softmax(-1), kept, scores.logsumexp(-1)


def _efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Memory-efficient attention. As CUDA's, it returns where its dropout began, on the CPU."""
    seed = torch.randint(2**62, ()) if dropout_p > 0 else torch.zeros((), dtype=torch.int64)
    _, probabilities, kept, sums = _attention(
        query, key, attn_bias, seed, dropout_p, is_causal, scale
    )
    return (probabilities * kept) @ value, sums, seed, torch.zeros((), dtype=torch.int64)


def _efficient_attention_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    factor, probabilities, kept, _ = _attention(
        query, key, attn_bias, philox_seed, dropout_p, is_causal, scale
    )
    into = (grad_out_ @ value.transpose(-2, -1)) * kept
    scores = probabilities * (into - (into * probabilities).sum(-1, keepdim=True))
    return (
        scores @ key * factor,
        scores.transpose(-2, -1) @ query * factor,
        (probabilities * kept).transpose(-2, -1) @ grad_out_,
        scores if grad_input_mask[3] else None,
    )


BY_OTHERS: dict[str, Callable[..., Any] | None] = {
    "aten::cudnn_batch_norm": _cudnn_batch_norm,
    "aten::cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    # Composites, which would choose among CUDA's libraries.
    "aten::convolution": None,
    "aten::convolution_backward": None,
}
"""Operators that run as something else on the CPU (None: as themselves)."""

_library: list[torch.library.Library] = []


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _is_view(op: Any) -> bool:
    return any(
        value.alias_info is not None and not value.alias_info.is_write
        for value in op._schema.returns
    )


def install() -> int:
    """Replaces the CUDA kernels of this process; returns how many."""
    if _library:
        return 0
    library = torch.library.Library("aten", "IMPL")
    _library.append(library)
    installed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            if not name.startswith("aten::") or name in BY_OTHERS or name == "aten::copy_":
                continue
            if name.removeprefix("aten::").partition(".")[0] in KEPT:
                continue
            op = _overload(name)
            if _is_view(op):
                continue
            library.impl(op, Kernel(op).__call__, "CUDA", allow_override=True)
            installed += 1
        for name, run in BY_OTHERS.items():
            op = _overload(name)
            library.impl(op, Kernel(op, run).__call__, "CUDA", allow_override=True)
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
        for op, kernel in (
            (attention.default, Kernel(attention.default, _efficient_attention, host=(2, 3))),
            # Its tag says that it draws; it repeats what the other one drew.
            (
                backward.default,
                Kernel(backward.default, _efficient_attention_backward, draws=False),
            ),
        ):
            library.impl(op, kernel.__call__, "CUDA", allow_override=True)
        library.impl(torch.ops.aten.copy_.default, _copy_, "CUDA", allow_override=True)
    return installed + len(BY_OTHERS) + 1
