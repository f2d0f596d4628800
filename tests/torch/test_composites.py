"""Operators whose kernels run above the capture and use a tensor's memory themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from harness import assert_equal, checked_session, evicted
from torch import Tensor
from torch.nn.utils import rnn

import dtr_alloc

Run = Callable[[Tensor], Tensor]


@contextmanager
def plain_torch() -> Iterator[None]:
    """Where evicted() does nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "evicted", lambda tensor: tensor)
        yield


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, int(torch.Size(shape).numel())).reshape(shape)


def split(indices: Tensor) -> Tensor:
    return torch.cat([part + i for i, part in enumerate(torch.tensor_split(numbers(64), indices))])


def ctc(lengths: Tensor) -> Tensor:
    scores = numbers(40, len(lengths), 5).log_softmax(-1)
    targets = torch.ones(len(lengths), 20, dtype=torch.int64)
    return torch.nn.functional.ctc_loss(scores, targets, lengths + 10, lengths)


def packed(sizes: Tensor) -> rnn.PackedSequence:
    return rnn.PackedSequence(numbers(int(sizes.sum()), 3), evicted(sizes))


def pad(sizes: Tensor) -> Tensor:
    return rnn.pad_packed_sequence(packed(sizes.clone()))[0]


def recurrent(kind: type[torch.nn.RNNBase]) -> Run:
    def run(sizes: Tensor) -> Tensor:
        torch.manual_seed(0)
        output: Tensor = kind(3, 4)(packed(sizes.clone()))[0].data
        return output

    return run


READS = {
    "tensor_split": split,
    "ctc_loss": ctc,
    "pad_packed_sequence": pad,
    "lstm": recurrent(torch.nn.LSTM),
    "gru": recurrent(torch.nn.GRU),
    "rnn": recurrent(torch.nn.RNN),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("inference", [False, True])
def test_integers_that_a_composite_operator_reads_are_brought_back(name, inference):
    run = READS[name]

    def given() -> Tensor:
        return torch.arange(16, 0, -1) + 0

    with torch.inference_mode(inference):
        with plain_torch():
            expected = run(given())
        with checked_session():
            assert torch.equal(run(evicted(given())), expected)


@pytest.mark.parametrize("way", ["no_grad", "grad", "forward_ad", "inference", "vmap"])
def test_max_pool1d_reads_what_was_evicted(way):
    """Where no gradient is wanted its kernel reads its argument past the recorder."""

    def run() -> Tensor:
        x = numbers(2, 4, 64).sin()
        pool = partial(torch.max_pool1d, kernel_size=3)
        if way == "grad":
            x = evicted(x).detach().requires_grad_()
            return torch.autograd.grad(pool(x).sum(), x)[0]
        if way == "forward_ad":
            return torch.func.jvp(pool, (x,), (evicted(x) * 2,))[1]
        if way == "vmap":
            return torch.vmap(pool)(evicted(x))
        return pool(evicted(x))

    modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    with modes.get(way, nullcontext)():
        with plain_torch():
            expected = run()
        with checked_session():
            got = run()
            assert torch.equal(got, expected)
            if way in ("no_grad", "inference"):
                assert torch.equal(evicted(got), expected)


def test_what_a_composite_operator_reads_stays_while_it_runs():
    """It keeps the address, and its own allocations must not evict what lies there."""
    steps = 256

    def run() -> Tensor:
        sizes = torch.full((steps,), 2, dtype=torch.int64) + 0
        torch.manual_seed(0)
        net = torch.nn.GRU(8, 64)
        held = [numbers(512).sin() for _ in range(20)]
        output = net(rnn.PackedSequence(numbers(2 * steps, 8), sizes))[0].data
        return output + sum(part.sum() for part in held)

    expected = run()
    with checked_session(2**20):
        assert torch.equal(run(), expected)
        assert dtr_alloc.stats()["evictions"] > 0


def test_a_sobol_state_that_is_overwritten_is_a_new_version():

    def run() -> tuple[Tensor, Tensor]:
        engine = torch.quasirandom.SobolEngine(200, scramble=True, seed=1)
        before = engine.quasi * 3
        engine.fast_forward(5)
        return before, engine.quasi * 3

    expected = run()
    with checked_session():
        got = run()
        assert_equal(expected, map(evicted, got))
