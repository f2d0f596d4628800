"""Nested tensors of layout strided: many sizes in one storage, for which nobody can be asked."""

import pytest
import torch
from harness import checked_session, evicted
from torch import Tensor

import dtr_alloc

SIZES = (3, 50, 7)

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def parts() -> list[Tensor]:
    return [torch.linspace(-1, size, size * 16).view(size, 16) for size in SIZES]


def padded(nested: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(nested, 0.0)


def test_they_are_made_of_what_was_evicted_and_compute_the_same():
    expected = padded(torch.nested.nested_tensor([part * 2 for part in parts()]).sin())
    with checked_session():
        nested = torch.nested.nested_tensor([evicted(part * 2) for part in parts()])
        result = padded(nested.sin())
        assert torch.equal(result, expected)
        for part, of in zip(nested.unbind(), parts(), strict=True):
            assert torch.equal(part, of * 2)


def test_training_through_them_gives_the_same_gradients():
    def gradient() -> Tensor:
        weight = torch.linspace(-1, 1, 256).view(16, 16).requires_grad_()
        nested = torch.nested.as_nested_tensor(parts())
        padded(torch.nn.functional.linear(nested, weight).relu()).square().sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient()
    with checked_session():
        assert torch.equal(gradient(), expected)


def test_one_over_an_evicted_buffer_shows_its_content():
    with checked_session():
        buffer = torch.linspace(-1, 1, sum(SIZES) * 16) * 3
        ends = torch.tensor(SIZES).cumsum(0) * 16
        nested = torch._nested_view_from_buffer(
            buffer,
            torch.tensor([[size, 16] for size in SIZES]),
            torch.tensor([[16, 1]] * len(SIZES)),
            torch.cat([torch.tensor([0]), ends[:-1]]),
        )
        expected = padded(nested).clone()
        evicted(buffer)
        assert torch.equal(padded(nested), expected)
        evicted(buffer)
        assert torch.equal(nested.unbind()[1], expected[1, : SIZES[1]])


def test_what_was_computed_before_one_is_overwritten_keeps_its_bits():
    with checked_session():
        nested = torch.nested.nested_tensor(parts())
        before = padded(nested * 2)
        expected = before.clone()
        nested.mul_(5)
        dtr_alloc.evict(before)
        assert torch.equal(before, expected)
