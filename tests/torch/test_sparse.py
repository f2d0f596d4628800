"""Sparse tensors: what they are made of is locked and brought back as a tensor's own storage is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from harness import MIB, checked_session, evicted, one_thread  # noqa: F401
from torch import Tensor, nn

import dtr_alloc


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def values() -> Tensor:
    return torch.linspace(-1, 1, 64).sin()


def coo(of: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.arange(64).flip(0)[None], of, (64,))


def csr(of: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(torch.tensor([0, 30, 64]), torch.arange(64) // 2, of, (2, 32))


def csc(of: Tensor) -> Tensor:
    return torch.sparse_csc_tensor(torch.tensor([0, 30, 64]), torch.arange(64) // 2, of, (32, 2))


USES: dict[str, Callable[[Tensor], Tensor]] = {
    "to_dense": lambda sparse: sparse.to_dense(),
    "sum": lambda sparse: sparse.sum(),
    "mul": lambda sparse: (sparse * 3).to_dense(),
    "clone": lambda sparse: sparse.clone().to_dense(),
    "mul_": lambda sparse: sparse.mul_(2).to_dense(),
}


@pytest.mark.parametrize("make", [coo, csr, csc])
@pytest.mark.parametrize("use", USES)
def test_evicted_values_of_a_sparse_tensor_come_back(
    make: Callable[[Tensor], Tensor], use: str
) -> None:
    """They were read past the recorder: nobody knew that the tensor is made of them."""
    expected = USES[use](make(values()))
    with checked_session():
        held = values()
        sparse = make(held)
        evicted(held)
        assert not dtr_alloc.is_resident(sparse)
        assert torch.equal(USES[use](sparse), expected)


def test_a_sparse_tensor_that_is_overwritten_is_a_new_version() -> None:
    """What was computed from its values before comes back from the old ones."""
    with checked_session():
        held = values()
        sparse = coo(held)
        before = held * 3
        sparse.mul_(2)
        assert torch.equal(evicted(before), values() * 3)
        assert torch.equal(sparse.to_dense(), 2 * coo(values()).to_dense())


def test_a_sparse_tensor_is_pinned_with_all_it_is_made_of() -> None:
    with checked_session():
        held = values()
        sparse = coo(held)
        evicted(held)
        dtr_alloc.pin(sparse)
        assert dtr_alloc.is_resident(sparse)
        assert not dtr_alloc.evict(held)
        dtr_alloc.unpin(sparse)
        assert dtr_alloc.evict(sparse)
        with pytest.raises(dtr_alloc.StateError, match="not pinned"):
            dtr_alloc.unpin(sparse)
        dtr_alloc.materialize(sparse)
        assert dtr_alloc.is_resident(held)


WORDS, WIDTH, BATCH, LENGTH = 4000, 64, 64, 10


class Words(nn.Module):
    def __init__(self, bag: bool) -> None:
        super().__init__()
        self.words: nn.Module = (
            nn.EmbeddingBag(WORDS, WIDTH, sparse=True, mode="sum")
            if bag
            else nn.Embedding(WORDS, WIDTH, sparse=True)
        )
        self.head = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, index: Tensor) -> Tensor:
        found: Tensor = self.words(index)
        return self.head(found if found.dim() == 2 else found.mean(1))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sparse adam": torch.optim.SparseAdam,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adagrad": torch.optim.Adagrad,
}


def train(bag: bool, optimizer: str) -> list[Tensor]:
    torch.manual_seed(0)
    net = Words(bag)
    optimizers = [OPTIMIZERS[optimizer](net.words.parameters())]
    optimizers.append(torch.optim.AdamW(net.head.parameters()))
    for _ in range(3):
        index, label = torch.randint(0, WORDS, (BATCH, LENGTH)), torch.randint(0, 10, (BATCH,))
        net.zero_grad()
        nn.functional.cross_entropy(net(index), label).backward()
        for each in optimizers:
            each.step()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bag", [True, False])
def test_embeddings_with_sparse_gradients_train_under_swap(bag: bool, optimizer: str) -> None:
    """Values and indices of the gradients went to host memory, and were read there."""
    expected = train(bag, optimizer)
    with checked_session():
        dtr_alloc.reset_peak_stats()
        train(bag, optimizer)
        peak = dtr_alloc.stats()["peak_allocated_bytes"]
    swapped = dtr_alloc.stats()["swaps"]
    with dtr_alloc.session(budget=int(0.9 * peak), device="cpu", swap=64 * MIB):
        got = train(bag, optimizer)
        dtr_alloc.check_invariants()
    assert dtr_alloc.stats()["swaps"] > swapped
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
