"""A buffer that began as uninitialized memory can be evicted once operators have written all of
it, in parts too; before that, it is kept."""

import ctypes
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from harness import address, assert_equal, checked_session, evicted
from torch import Tensor

import dtr_alloc


def source(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, int(torch.Size(shape).numel())).reshape(shape) * 1


def dirty(*shape: int) -> Tensor:
    """Uninitialized memory that holds something."""
    torch.full(shape, 7.0).mul(3)
    return torch.empty(*shape)


Fill = Callable[[Tensor], object]

PARTS: dict[str, tuple[tuple[int, ...], Fill]] = {
    "rows": ((8, 32), lambda b: [b[i].copy_(source(32) + i) for i in (3, 1, 0, 2, 7, 6, 5, 4)]),
    "columns": (
        (16, 32),
        lambda b: [b[:, i : i + 8].copy_(source(16, 8) * i) for i in range(0, 32, 8)],
    ),
    "ranges": (
        (300,),
        lambda b: (
            b[:100].fill_(1),
            b[50:200].copy_(source(150)),
            b[200:].uniform_(generator=torch.Generator().manual_seed(1)),
        ),
    ),
    "every second": (
        (32, 8),
        lambda b: [b[i].fill_(i) for start in (0, 1) for i in range(start, 32, 2)],
    ),
    "results": (
        (4, 64),
        lambda b: (torch.add(source(2, 64), 1, out=b[:2]), torch.mul(source(2, 64), 3, out=b[2:])),
    ),
    "flat": ((8, 16), lambda b: (b[:4].copy_(source(4, 16)), b.view(-1)[64:].copy_(source(64)))),
    "a written part is read": (
        (4, 64),
        lambda b: (
            b.__setitem__(0, source(64)),
            [b[i].copy_(b[i - 1] * 2 + b[:i].sum(0)) for i in range(1, 4)],
        ),
    ),
    "a written part is changed": (
        (2, 64),
        lambda b: (b[0].copy_(source(64)), b[0].add_(1), b[1].copy_(source(64))),
    ),
}


def filled(shape: tuple[int, ...], fill: Fill) -> Tensor:
    buffer = dirty(*shape)
    fill(buffer)
    return buffer


def circular(dimensions: int) -> Tensor:
    padding = (2, 1, 1, 3, 1, 2)[: 2 * dimensions]
    return F.pad(source(3, 2, *(4, 5, 6)[:dimensions]), padding, mode="circular")


FILLED: dict[str, Callable[[], Tensor]] = {
    **{name: partial(filled, *of) for name, of in PARTS.items()},
    **{f"circular, {n} dimensions": partial(circular, n) for n in (1, 2, 3)},
}


@pytest.mark.parametrize("name", FILLED)
def test_what_is_written_in_full_is_evicted_and_comes_back(name):
    expected = FILLED[name]()
    with checked_session():
        tensor = evicted(FILLED[name]())
        dtr_alloc.materialize(tensor)
        assert torch.equal(tensor, expected)
        again = evicted(tensor * 2)
        assert torch.equal(again, expected * 2)


def test_the_noise_of_rrelu_is_evicted_and_comes_back():
    def train() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        noise = torch.empty(256)
        return torch.ops.aten.rrelu_with_noise(source(256), noise, 0.1, 0.3, True), noise

    expected = train()
    with checked_session():
        assert_equal(expected, map(evicted, train()))


def test_the_noise_of_rrelu_keeps_its_bits_in_evaluation():
    with checked_session():
        noise = source(256)
        result = torch.ops.aten.rrelu_with_noise(source(256), noise, 0.1, 0.3, False)
        assert not dtr_alloc.evict(noise)
        assert torch.equal(evicted(result), F.leaky_relu(source(256), 0.2))
        assert torch.equal(noise, source(256))


KEPT: dict[str, Fill] = {
    "a gap is left": lambda b: b[5:].fill_(1),
    "read before": lambda b: (b[:4].fill_(1), b[3:5] * 2, b[4:].fill_(2)),
    "changed before": lambda b: (b[:4].fill_(1), b[4:].mul_(0)),
    "what was not written is copied": lambda b: (b[:4].fill_(1), b[0].copy_(b[7]), b[4:].fill_(1)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_was_not_written_in_full_is_kept(name):
    with checked_session():
        buffer = filled((8, 16), KEPT[name])
        assert not dtr_alloc.evict(buffer)
        held = buffer.clone()
        assert torch.equal(evicted(buffer * 2), held * 2)


def test_what_is_filled_in_many_parts_is_kept_and_leaves_no_records():
    with checked_session():
        buffer = dirty(1000, 16)
        before = dtr_alloc.stats()["live_ops"]
        for i in range(1000):
            buffer[i].fill_(i)
        assert dtr_alloc.stats()["live_ops"] - before <= 64
        assert torch.equal(buffer[:, 3], torch.arange(1000.0))


def test_a_part_that_a_pointer_filled_stays():
    with checked_session():
        buffer = dirty(1000)
        buffer[:400].copy_(source(400))
        (ctypes.c_float * 200).from_address(address(buffer) + 4 * 400)[:] = [5.0] * 200
        buffer[600:].copy_(source(400))
        assert not dtr_alloc.evict(buffer)
        assert (buffer[400:600] == 5).all()
        assert torch.equal(buffer[:400], source(400))


def test_one_that_was_pinned_or_given_away_is_kept():
    with checked_session():
        buffer = dirty(8, 16)
        buffer[:4].fill_(1)
        array = buffer.numpy()
        buffer[4:].fill_(2)
        assert not dtr_alloc.evict(buffer)
        assert (array[4:] == 2).all()


def test_what_it_was_filled_from_may_die():
    """What nothing can compute again ends the account, as it ends that of every result."""
    with checked_session():
        constant = torch.from_numpy(source(64).numpy().copy())
        buffer = dirty(2, 64)
        for i in range(2):
            kept = constant + i
            buffer[i].copy_(kept)
            del kept
        assert torch.equal(evicted(buffer), torch.stack([constant, constant + 1]))
