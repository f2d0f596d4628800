"""What these tests compare: the bits of tensors before and after they were evicted."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

import dtr_alloc
from bench.measure import Profile
from bench.models.job import as_bytes

MIB = 2**20
T = TypeVar("T")


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(as_bytes(a), as_bytes(b))


def profiled(run: Callable[[], T]) -> tuple[T, Profile]:
    """What a function returns, and the bytes in use before it and at most."""
    idle = dtr_alloc.stats()["allocated_bytes"]
    dtr_alloc.reset_peak_stats()
    found = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, Profile(idle, dtr_alloc.stats()["peak_allocated_bytes"])


def assert_recomputes(make: Callable[[], Tensor | Sequence[Tensor]]) -> None:
    """What `make` computes is computed again, after it was evicted, with the same bits; and
    random numbers that are drawn later are as if nothing had happened."""
    found = make()
    made = [found] if isinstance(found, Tensor) else list(found)
    copies = [as_bytes(tensor).clone() for tensor in made]
    positions = [generator.get_state() for generator in generators()]
    for tensor in made:
        assert dtr_alloc.evict(tensor), "a result of an operator can be evicted"
        assert not dtr_alloc.is_resident(tensor)
    for tensor, copy in zip(made, copies, strict=True):
        assert torch.equal(as_bytes(tensor), copy), "other bits"
    for generator, position in zip(generators(), positions, strict=True):
        assert torch.equal(generator.get_state(), position), "a generator moved"


def generators() -> list[torch.Generator]:
    """The default ones, of the CPU and of the device in use."""
    found = [torch.default_generator]
    if torch.cuda.is_available():
        found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return found
