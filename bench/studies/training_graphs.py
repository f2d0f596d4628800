"""Generated static training graphs: forward pass, loss, backward pass.

``Net`` is written like a model; ``training_graph`` adds the backward pass by reverse-mode
differentiation, with what frameworks save: a convolution's or a product's backward reads its
inputs, an activation's its output, a sum's nothing. An operator's cost is that of a simple
accelerator: the longer of its arithmetic and its memory traffic, in nanoseconds, plus a launch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from bench.studies.static_graph import Node, StaticGraph, graph

FLOPS_PER_NS = 10_000
"""10 TFLOP/s."""
BYTES_PER_NS = 500
"""500 GB/s."""
LAUNCH_NS = 5_000
ELEMENT_BYTES = 4

Shape = tuple[int, ...]
Saves = Literal["inputs", "output", "both", "nothing"]


@dataclass(frozen=True)
class Value:
    """What an operator of a net returns: the index of its node, and its shape."""

    index: int
    shape: Shape

    @property
    def size_bytes(self) -> int:
        return ELEMENT_BYTES * prod(self.shape)


@dataclass(frozen=True)
class _Operator:
    name: str
    inputs: tuple[Value, ...]
    output: Value
    flops: int
    saves: Saves
    joint: bool  # one operator computes all gradients (and that of the parameters)


def _cost(flops: int, moved_bytes: int) -> int:
    return LAUNCH_NS + max(flops // FLOPS_PER_NS, moved_bytes // BYTES_PER_NS)


@dataclass
class Net:
    """A model's forward pass while it is written down. Parameters and the input are pinned."""

    operators: list[_Operator] = field(default_factory=list)
    pinned_bytes: int = 0

    def operator(
        self,
        name: str,
        *inputs: Value,
        shape: Shape,
        flops: int = 0,
        saves: Saves,
        parameters: int = 0,
    ) -> Value:
        """parameters: how many elements; they and their gradients stay."""
        output = Value(len(self.operators), shape)
        joint = len(inputs) <= 1
        self.operators.append(_Operator(name, inputs, output, flops, saves, joint))
        self.pinned_bytes += 2 * ELEMENT_BYTES * parameters
        return output

    def input(self, *shape: int) -> Value:
        """Data: pinned. No node; operators on it read nothing."""
        self.pinned_bytes += ELEMENT_BYTES * prod(shape)
        return Value(-1, shape)

    def convolution(
        self, x: Value, channels: int, kernel: int = 3, stride: int = 1, *, fused: bool = False
    ) -> Value:
        """fused: with an activation, which its backward pass reads as well."""
        batch, before, height, width = x.shape
        shape = (batch, channels, height // stride, width // stride)
        weights = before * channels * kernel**2
        return self.operator(
            "conv",
            x,
            shape=shape,
            flops=2 * weights * prod(shape) // channels,
            saves="both" if fused else "inputs",
            parameters=weights,
        )

    def norm(self, x: Value) -> Value:
        return self.operator("norm", x, shape=x.shape, saves="inputs")

    def activation(self, x: Value, name: str = "relu") -> Value:
        return self.operator(name, x, shape=x.shape, saves="output")

    def add(self, x: Value, y: Value) -> Value:
        return self.operator("add", x, y, shape=x.shape, saves="nothing")

    def concatenation(self, *values: Value) -> Value:
        batch, _, height, width = values[0].shape
        shape = (batch, sum(value.shape[1] for value in values), height, width)
        return self.operator("cat", *values, shape=shape, saves="nothing")

    def pool(self, x: Value, by: int = 2) -> Value:
        batch, channels, height, width = x.shape
        shape = (batch, channels, height // by, width // by)
        return self.operator("pool", x, shape=shape, saves="nothing")

    def upsampling(self, x: Value) -> Value:
        batch, channels, height, width = x.shape
        return self.operator(
            "up", x, shape=(batch, channels, 2 * height, 2 * width), saves="nothing"
        )

    def linear(self, x: Value, features: int) -> Value:
        shape = (*x.shape[:-1], features)
        return self.operator(
            "linear",
            x,
            shape=shape,
            flops=2 * prod(x.shape) * features,
            saves="inputs",
            parameters=x.shape[-1] * features,
        )

    def product(self, x: Value, y: Value, shape: Shape, inner: int) -> Value:
        """A batched matrix product over `inner` elements."""
        return self.operator(
            "matmul", x, y, shape=shape, flops=2 * prod(shape) * inner, saves="inputs"
        )

    def loss(self, x: Value) -> Value:
        return self.operator("loss", x, shape=(1,), saves="inputs")


def training_graph(name: str, net: Net) -> StaticGraph:
    """The graph of a training step of a net whose last operator is the loss. Its outputs are what
    nothing reads: the gradients that end a chain.

    An operator that reads one value, and parameters perhaps, has one backward operator of twice its
    arithmetic; others have one for each value that they read. Gradients of a value that several
    operators read are added up, one at a time.
    """
    nodes: list[Node] = []
    for operator in net.operators:
        sizes = sum(value.size_bytes for value in (*operator.inputs, operator.output))
        inputs = tuple(dict.fromkeys(v.index for v in operator.inputs if v.index >= 0))
        cost = _cost(operator.flops, sizes)
        nodes.append(Node(operator.name, cost, operator.output.size_bytes, inputs))
    gradients: dict[int, int] = {}  # node of the forward pass -> node of its gradient
    pending: dict[int, list[int]] = defaultdict(list)
    for operator in reversed(net.operators):
        output = operator.output
        parts = pending.pop(output.index, [])
        if parts:
            total = parts[0]
            for part in parts[1:]:
                cost = _cost(0, 3 * output.size_bytes)
                nodes.append(Node("sum'", cost, output.size_bytes, (total, part)))
                total = len(nodes) - 1
            gradients[output.index] = total
        seed: tuple[int, ...] = ()
        if output.index in gradients:
            seed = (gradients[output.index],)
        if operator.name == "add":  # the gradient passes to both as it is
            for value in operator.inputs:
                pending[value.index] += seed
            continue
        for value in operator.inputs:
            saved: tuple[int, ...] = ()
            if operator.saves in ("inputs", "both"):
                read = [v for v in operator.inputs if operator.joint or v != value]
                saved = tuple(dict.fromkeys(v.index for v in read if v.index >= 0))
            if operator.saves in ("output", "both"):
                saved = (*saved, output.index)
            size = value.size_bytes if value.index >= 0 else ELEMENT_BYTES
            moved = size + output.size_bytes + sum(nodes[i].size_bytes for i in saved)
            flops = operator.flops * (2 if operator.joint and value.index >= 0 else 1)
            nodes.append(Node(f"{operator.name}'", _cost(flops, moved), size, (*saved, *seed)))
            if value.index >= 0:
                pending[value.index].append(len(nodes) - 1)
    return graph(name, nodes, net.pinned_bytes, len(net.operators))


# ---- the graphs ----


def chain(layers: int) -> StaticGraph:
    """The linear network of the papers: unit costs and sizes. Each backward node reads the gradient
    and the activation of its layer."""
    nodes = [Node("f", 1, 1, (i - 1,) if i else ()) for i in range(layers)]
    for i in reversed(range(layers)):
        gradient = () if i == layers - 1 else (len(nodes) - 1,)
        nodes.append(Node("b", 1, 1, (i, *gradient)))
    return graph(f"chain-{layers}", nodes, forward=layers)


def vgg16(batch: int = 256) -> StaticGraph:
    """VGG16 as Checkmate has it (section 6): a chain of layers with their multiplications as costs
    and none for pooling. A backward node reads its layer's input and output and the gradient, and
    costs twice the layer; gradients of parameters are not counted."""
    layers: list[tuple[str, int, int]] = []  # name, cost, elements of the output
    channels, side = 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(("conv", 9 * channels * width * side**2, width * side**2))
            channels = width
        side //= 2
        layers.append(("pool", 0, channels * side**2))
    layers.append(("flatten", 0, channels * side**2))
    features = channels * side**2
    for width in (4096, 4096, 1000):
        layers.append(("linear", features * width, width))
        features = width
    layers.append(("loss", 0, 1))
    nodes = [
        Node(name, cost * batch, ELEMENT_BYTES * elements * batch, (i - 1,) if i else ())
        for i, (name, cost, elements) in enumerate(layers)
    ]
    last = len(layers) - 1
    for i in reversed(range(last)):
        gradient = () if i == last - 1 else (len(nodes) - 1,)
        read = (i, i + 1, *gradient)
        nodes.append(Node(f"{nodes[i].name}'", 2 * nodes[i].cost, nodes[i].size_bytes, read))
    return graph("VGG16", nodes, forward=len(layers))


def perceptron(layers: int = 12, batch: int = 4096) -> StaticGraph:
    """Linear layers of different widths with activations between."""
    net = Net()
    x = net.input(batch, 512)
    for i in range(layers):
        x = net.activation(net.linear(x, 256 * (1 + i * 5 % 4)))
    net.loss(x)
    return training_graph("MLP", net)


def residual(blocks: int = 3, stages: int = 2, batch: int = 32) -> StaticGraph:
    """ResNet-like: basic blocks (two convolutions, sum with the input); each further stage halves
    the image and doubles the channels. Activations are fused with convolutions where they can."""
    net = Net()
    channels = 32
    x = net.convolution(net.input(batch, 3, 64, 64), channels, fused=True)
    for stage in range(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            channels *= stride
            y = net.convolution(x, channels, stride=stride, fused=True)
            y = net.convolution(y, channels)
            if stride > 1:
                x = net.convolution(x, channels, kernel=1, stride=stride)
            x = net.add(x, y)
    net.loss(net.pool(x, 8))
    return training_graph("ResNet", net)


def unet(levels: int = 3, batch: int = 4) -> StaticGraph:
    """U-Net-like: levels of two convolutions (activations fused) down and up again, and a long
    skip at each."""
    net = Net()
    channels = 16
    x = net.input(batch, 3, 256, 256)
    skips = []

    def level(x: Value, channels: int) -> Value:
        x = net.convolution(x, channels, fused=True)
        return net.convolution(x, channels, fused=True)

    for _ in range(levels):
        x = level(x, channels)
        skips.append(x)
        x = net.pool(x)
        channels *= 2
    x = level(x, channels)
    for skip in reversed(skips):
        channels //= 2
        x = level(net.concatenation(net.upsampling(x), skip), channels)
    net.loss(net.convolution(x, 2, kernel=1))
    return training_graph("U-Net", net)


def dense(layers: int = 4, blocks: int = 2, batch: int = 32) -> StaticGraph:
    """DenseNet-like: each layer reads the concatenation of all before it in its block. What a
    block has gathered is one concatenation that grows by a layer at a time."""
    net = Net()
    growth = 16
    x = net.convolution(net.input(batch, 3, 32, 32), 2 * growth)
    for block in range(blocks):
        for _ in range(layers):
            x = net.concatenation(x, net.convolution(x, growth, fused=True))
        if block < blocks - 1:
            x = net.pool(net.convolution(x, x.shape[1] // 2, kernel=1))
    net.loss(net.pool(x, 8))
    return training_graph("DenseNet", net)


def transformer(layers: int = 2, batch: int = 8) -> StaticGraph:
    """Encoder layers: attention and a feed-forward net, each behind a norm and with a skip."""
    net = Net()
    tokens, width, heads = 256, 256, 4
    x = net.linear(net.input(batch, tokens, 64), width)
    for _ in range(layers):
        y = net.norm(x)
        q, k, v = (net.linear(y, width) for _ in range(3))
        scores = net.product(q, k, (batch, heads, tokens, tokens), width // heads)
        scores = net.activation(scores, "softmax")
        y = net.product(scores, v, (batch, tokens, width), tokens)
        x = net.add(x, net.linear(y, width))
        y = net.activation(net.linear(net.norm(x), 4 * width), "gelu")
        x = net.add(x, net.linear(y, width))
    net.loss(x)
    return training_graph("Transformer", net)
