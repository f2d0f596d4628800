"""Sparse tensors: what they are made of is locked and brought back as a tensor's own storage is.
Nested tensors of layout strided: many sizes in one storage, for which nobody can be asked."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from harness import MIB, assert_equal, assert_trains_in, checked_session, evicted
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.torch.pins import parts


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


def squared(sparse: Tensor) -> Tensor:
    return sparse @ sparse.t() if sparse.dim() == 2 else sparse.mul(sparse)


def times_dense(sparse: Tensor) -> Tensor:
    dense = torch.linspace(0, 1, sparse.shape[-1] * 40).view(sparse.shape[-1], 40)
    return (sparse if sparse.dim() == 2 else sparse[None]) @ dense


def twice(of: Tensor) -> Tensor:
    """Not coalesced: each place is filled twice."""
    places = torch.arange(64) // 2
    return torch.sparse_coo_tensor(torch.stack([places, places % 7]), of, (32, 7))


USES: dict[str, Callable[[Tensor], Tensor]] = {
    "to_dense": lambda sparse: sparse.to_dense(),
    "sum": lambda sparse: sparse.sum(),
    "mul": lambda sparse: (sparse * 3).to_dense(),
    "clone": lambda sparse: sparse.clone().to_dense(),
    "mul_": lambda sparse: sparse.mul_(2).to_dense(),
    "sparse": squared,
    "dense": times_dense,
    "of a list": lambda sparse: torch.cat([sparse, sparse]) if sparse.is_sparse else sparse * 2,
    "coalesced": lambda sparse: sparse.coalesce() if sparse.is_sparse else sparse.to_sparse(),
    "of a dense one": lambda sparse: sparse.to_dense().to_sparse(),
    "a gradient": lambda sparse: torch.autograd.grad(
        torch.sparse.mm(
            (sparse if sparse.dim() == 2 else sparse[None]).clone().requires_grad_(),
            leaf := torch.linspace(0, 1, sparse.shape[-1] * 40)
            .view(sparse.shape[-1], 40)
            .requires_grad_(),
        ).sum(),
        leaf,
    )[0],
}


@pytest.mark.parametrize("make", [coo, csr, csc, twice])
@pytest.mark.parametrize("use", USES)
def test_evicted_values_of_a_sparse_tensor_are_read_and_results_computed_again(make, use):
    """What it is made of comes back for the first run, and for the second one."""
    expected = USES[use](make(values()))
    with checked_session(debug="tiny:0"):
        held = values()
        sparse = make(held)
        evicted(held)
        assert not dtr_alloc.is_resident(sparse)
        result = USES[use](sparse)
        assert_equal(parts(result), parts(expected))
        evicted(result)
        dtr_alloc.evict(held)  # it may be a part of the result
        assert use == "mul_" or not dtr_alloc.is_resident(held)  # that overwrote a constant
        assert result.layout == expected.layout
        assert not result.is_sparse or result.is_coalesced() == expected.is_coalesced()
        assert_equal(parts(result), parts(expected))


@pytest.mark.parametrize("log", [None, "log"])
def test_a_view_that_computes_sparse_indices_anew_reads_what_is_there(log, tmp_path):
    """In an op log views are recorded."""
    of = None if log is None else tmp_path / log
    with dtr_alloc.session("unlimited", device="cpu", log=of):
        held = values()
        sparse = twice(held)
        evicted(held)
        assert torch.equal(sparse.t().to_dense(), twice(values()).to_dense().t())
        assert torch.equal(sparse.select(0, 3).to_dense(), twice(values()).to_dense()[3])


def test_a_sparse_tensor_that_is_overwritten_is_a_new_version():
    with checked_session():
        held = values()
        sparse = coo(held)
        before = held * 3
        product = times_dense(sparse)
        evicted(product)
        sparse.mul_(2)
        assert torch.equal(evicted(before), values() * 3)
        assert torch.equal(product, times_dense(coo(values())))
        assert torch.equal(sparse.to_dense(), 2 * coo(values()).to_dense())


def test_a_sparse_tensor_is_pinned_with_all_it_is_made_of():
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
def test_embeddings_with_sparse_gradients_train_under_swap(bag, optimizer):
    found = assert_trains_in(0.9, partial(train, bag, optimizer), swap=64 * MIB)
    assert found["swaps"] > 0


def convolve() -> list[Tensor]:
    """Trains a graph network, whose graph is sparse and weighted by what is learned."""
    torch.manual_seed(0)
    nodes = torch.randn(400, 64)
    edges = torch.randint(0, 400, (2, 4000))
    score = nn.Parameter(torch.rand(4000))
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
    optimizer = torch.optim.AdamW([score, *layers.parameters()])
    for _ in range(3):
        graph = torch.sparse_coo_tensor(edges, score.sigmoid(), (400, 400)).coalesce()
        hidden = nodes
        for layer in layers:
            hidden = torch.sparse.mm(graph, layer(hidden)).relu()
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in (score, *layers.parameters())]


def test_a_network_over_a_sparse_graph_trains_under_a_budget():
    assert_trains_in(0.7, convolve)


# ---- nested tensors ----

SIZES = (3, 50, 7)


def rows() -> list[Tensor]:
    return [torch.linspace(-1, size, size * 16).view(size, 16) for size in SIZES]


def padded(nested: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(nested, 0.0)


def test_they_are_made_of_what_was_evicted_and_give_the_same_gradients():
    def train(given: list[Tensor]) -> list[Tensor]:
        weight = torch.linspace(-1, 1, 256).view(16, 16).requires_grad_()
        nested = torch.nested.as_nested_tensor(given)
        result = padded(nn.functional.linear(nested, weight).relu())
        return [*nested.unbind(), result, *torch.autograd.grad(result.square().sum(), weight)]

    expected = train([part * 2 for part in rows()])
    with checked_session():
        assert_equal(expected, train([evicted(part * 2) for part in rows()]))


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
        nested = torch.nested.nested_tensor(rows())
        before = padded(nested * 2)
        expected = before.clone()
        nested.mul_(5)
        dtr_alloc.evict(before)
        assert torch.equal(before, expected)
