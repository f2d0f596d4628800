"""The linear feedforward network of the DTR paper (appendix A.1; the simrd thesis, section 5.1).

``layers`` forward tensors t_i = f_i(t_{i-1}), then as many gradients: that of t_i is computed from
t_{i-1} and the gradient of t_{i+1}. Each tensor has one unit of memory and each operator takes one
unit of time. The input is always there and counts as nothing, so f_1 has no arguments. As in the
generator published with simrd, the last layer's gradient has none either.

Layers are counted from 0 here, and so are tensors, in the order in which they are made first: layer
i's forward tensor is number i, its gradient is number 2 * layers - 1 - i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from bench.studies.log import Log
from dtr_alloc.oplog import Program

BUDGETS: Mapping[str, Callable[[int], int]] = {
    "2 sqrt N": lambda layers: math.isqrt(4 * layers - 1) + 1,
    "log2 N": lambda layers: (layers - 1).bit_length(),
}
"""Budgets in tensors for a number of layers, both rounded up: those of the simrd thesis."""


def linear_network(layers: int, size_bytes: int = 1) -> Program:
    """The network's forward and backward pass, of tensors of this size.

    Each name is released as soon as the program does not need it any more: what is left at the end
    is the first layer's gradient. Raises ValueError for fewer than 2 layers.
    """
    if layers < 2:
        raise ValueError(f"layers is {layers}; allowed: 2 and more")
    log = Log(f"linear network of {layers} layers")
    for i in range(layers):
        log.call(f"f{i - 1}" if i else "", {f"f{i}": size_bytes})
    log.release(f"f{layers - 1}")
    log.call("", {f"b{layers - 1}": size_bytes})
    for i in reversed(range(layers - 1)):
        log.release(f"f{i}")
        log.call(f"f{i - 1} b{i + 1}" if i else f"b{i + 1}", {f"b{i}": size_bytes})
        log.release(f"b{i + 1}")
    return log.program


def layer_of(tensor: int, layers: int) -> int:
    """The layer that a tensor belongs to: its own, or that of which it is the gradient."""
    return tensor if tensor < layers else 2 * layers - 1 - tensor
