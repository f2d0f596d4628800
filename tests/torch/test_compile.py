"""torch.compile under a session: as many graphs, the same bits, and graphs that are operators."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from harness import assert_equal, assert_same_bits, checked_session, evicted, told_by
from torch import Tensor, nn
from torch._dynamo.utils import counters

import dtr_alloc
from bench import measure
from bench.measure import profile, train_plain
from bench.models import JOBS
from bench.models.compiled import CompiledResNet, CompiledTransformer
from dtr_alloc.torch import compiled

BACKENDS = ("eager", "aot_eager", "inductor")


@pytest.fixture(autouse=True)
def compiles_anew() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    gc.collect()  # graphs and what they hold are cycles


def graphs() -> tuple[int, int]:
    """How many graphs there were, and how many breaks between them."""
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def train(backend: str, compiled: str) -> list[Tensor]:
    """Losses, parameters and buffers of a net with dropout and batch norm. Its forward pass is
    compiled, or the step of its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(64)),
        *(nn.Linear(64, 32), nn.BatchNorm1d(32)),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    forward: Callable[[Tensor], Tensor] = net
    step: Callable[[], object] = optimizer.step
    if compiled == "forward":
        forward = torch.compile(net, backend=backend, fullgraph=True)
    else:
        step = torch.compile(step, backend=backend)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = forward(torch.randn(64, 32)).square().mean()
        loss.backward()
        step()
        losses.append(loss.detach().clone())
    return [*losses, *(value.clone() for value in net.state_dict().values())]


@pytest.mark.parametrize(
    ("backend", "of"), [*((backend, "forward") for backend in BACKENDS), ("inductor", "step")]
)
def test_as_many_graphs_are_compiled_and_the_bits_are_the_same(backend, of):
    expected = train(backend, of)
    plain = graphs()
    torch._dynamo.reset()
    counters.clear()
    with checked_session():
        assert_equal(expected, train(backend, of))
    assert graphs() == plain
    assert plain == (1, 0) or of == "step"


def parts(x: Tensor, y: Tensor) -> Tensor:
    """Kernels that write parts of one buffer."""
    return torch.cat([x.sin().mm(y), y.cos().mm(x) * 2], dim=1)


@pytest.mark.parametrize("budget", ["unlimited", "64MiB"])
@pytest.mark.parametrize(
    "of",
    [
        lambda x, y: (x.sin() * y + 1).relu(),
        parts,
        # Inductor draws one seed by an operator, and all others from that.
        lambda x, y: nn.functional.dropout(x + y, 0.5) * 2,
    ],
    ids=["one kernel", "parts", "random numbers"],
)
def test_what_a_graph_gives_is_evicted_and_the_graph_is_called_again(of, budget):
    function = torch.compile(of, backend="inductor")
    x, y = torch.linspace(-1, 1, 4096).view(64, 64), torch.linspace(0, 2, 4096).view(64, 64)
    torch.manual_seed(0)
    expected, after = function(x, y), torch.get_rng_state()
    with checked_session(budget):
        x, y = x + 0, y + 0
        torch.manual_seed(0)
        got = function(x, y)
        assert torch.equal(got, expected)
        before = dtr_alloc.stats()["rematerializations"]
        assert torch.equal(evicted(got), expected)
        assert budget != "unlimited" or dtr_alloc.stats()["rematerializations"] == before + 1
        # Its inputs come back first.
        evicted(x)
        torch.manual_seed(0)
        assert torch.equal(function(x, y), expected)
        assert torch.equal(torch.get_rng_state(), after)


class SmallResNet(CompiledResNet):
    """A ResNet of fewer kernels."""

    BLOCKS = 3


def record(recorded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has graphs recorded in this way under a budget."""
    if recorded == "one operator":
        # As Triton's graphs.
        monkeypatch.setattr(compiled, "kernels_of", lambda *_: None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "scale", "recorded"),
    [
        (CompiledTransformer, 2.0, "kernel by kernel"),
        (CompiledTransformer, 2.0, "one operator"),
        (SmallResNet, 4.0, "kernel by kernel"),
    ],
    ids=["a GPT by blocks", "a GPT by blocks, one operator each", "a net that is one graph"],
)
def test_a_compiled_job_trains_in_half_of_its_activation_memory(kind, scale, recorded, monkeypatch):
    """Also where graphs hold nearly all of that at a time."""
    record(recorded, monkeypatch)
    monkeypatch.setitem(JOBS, "compiled", kind)
    expected = train_plain("compiled", 3, scale=scale)
    shape, _ = profile("compiled", 3, scale=scale)
    run = measure.train("compiled", shape.budget(0.5), 3, check=True, scale=scale)
    assert_same_bits(expected, run.state, "half of the activation memory")
    assert run.rematerializations > 0


@pytest.mark.parametrize(
    ("budget", "recorded"),
    [("unlimited", "one operator"), ("64MiB", "kernel by kernel"), ("64MiB", "one operator")],
)
@pytest.mark.parametrize("normalizes", [False, True])
def test_saved_activations_and_gradients_of_a_graph_come_again(
    budget, recorded, normalizes, monkeypatch
):
    """Inductor has a backward graph put gradients where saved activations were. A gradient that is
    evicted is computed from the activations as they were. Batch norm has the graph overwrite what
    it reads, and cannot compute again."""
    count = 0

    def evicts(tensors: Iterable[Tensor]) -> None:
        nonlocal count
        if dtr_alloc.is_enabled():
            count += sum(map(dtr_alloc.evict, tensors))

    def gradients() -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        parts = (nn.Linear(64, 64), nn.ReLU(), *[nn.BatchNorm1d(64)] * normalizes)
        net = nn.Sequential(*(copy.deepcopy(part) for _ in range(3) for part in parts))
        x = torch.randn(64, 64, requires_grad=True)
        result = torch.compile(net, backend="inductor")(x)
        evicts(result.grad_fn.saved_tensors)
        result.square().sum().backward()
        found = [x.grad, *(parameter.grad for parameter in net.parameters()), *net.buffers()]
        evicts(found)
        return [part.clone() for part in found]

    record(recorded, monkeypatch)
    expected = gradients()
    with checked_session(budget):
        assert_equal(expected, gradients())
        assert count > (0 if normalizes else 7)


def operators_of_a_graph() -> list[int]:
    """Under a budget, and then without. Inductor is imported within the session."""
    x = torch.linspace(-1, 1, 64 * 64).view(64, 64)
    results = []

    def recorded() -> int:
        before = dtr_alloc.stats()["recorded_ops"]
        results.append(function(x))
        count = dtr_alloc.stats()["recorded_ops"] - before
        results.append(evicted(results[-1]).clone())
        return count

    with checked_session("64MiB"):
        function = torch.compile(lambda x: (x @ x).sin() @ x, backend="inductor")
        counts = [recorded()]
        dtr_alloc.set_budget("unlimited")
        counts.append(recorded())
    assert_equal([function(x)] * 4, results)
    return counts


def test_a_graph_is_one_operator_again_when_the_limit_goes():
    under_a_budget, without = told_by(operators_of_a_graph)
    assert under_a_budget > 1 == without


def test_a_cached_graph_has_nothing_of_ours(monkeypatch):
    studied = []
    study = compiled._study

    def seen(graph: Any) -> Any:
        studied.append(graph)
        return study(graph)

    monkeypatch.setattr(compiled, "_study", seen)
    function = torch.compile(lambda x: (x @ x).sin() @ x, backend="inductor")
    with checked_session("64MiB"):
        function(torch.linspace(-1, 1, 64 * 64).view(64, 64))
    (graph,) = studied
    assert graph._dtr_alloc.kernels is not None
    assert copy.deepcopy(graph._dtr_alloc) is None
    assert pickle.loads(pickle.dumps(graph._dtr_alloc)) is None


def scaling(name: str, by: Callable[[], int]) -> Callable[[Tensor], Tensor]:
    """A graph that calls a custom operator, which draws, and multiplies by a number."""

    def scaled(x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True) * by()

    scale = torch.library.custom_op(name, scaled, mutates_args=())
    scale.register_fake(torch.empty_like)
    return torch.compile(lambda x: scale(x.sin()).relu() + 1, backend="inductor", fullgraph=True)


def test_a_custom_operator_is_tried_inside_of_a_graph():
    """Which is one operator without a limit."""
    calls = 0

    def by() -> int:
        nonlocal calls
        calls += 1
        return 2

    function = scaling("dtr_test::twice", by)
    x = torch.linspace(-1, 1, 4096)
    torch.manual_seed(0)
    expected = [function(x) for _ in range(5)]
    with checked_session():
        calls = 0
        torch.manual_seed(0)
        got = [function(x) for _ in range(5)]
        assert calls == 5 + 3
        assert_equal(expected, map(evicted, got))
        assert calls == 5 + 3 + 5


def test_a_graph_is_not_repeated_if_an_operator_inside_is_not(capfd):
    numbers = count()
    by_state = scaling("dtr_test::counted", lambda: next(numbers))

    def fill(x: Tensor, out: Tensor) -> None:
        out.copy_(x * 2)

    filled = torch.library.custom_op("dtr_test::filled", fill, mutates_args=("out",))
    filled.register_fake(lambda x, out: None)

    def fills(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        filled(x.sin(), out)
        return out + 1

    overwriting = torch.compile(fills, backend="inductor", fullgraph=True)
    x = torch.linspace(-1, 1, 4096)
    expected = overwriting(x)
    with checked_session():
        for function in (by_state, overwriting):
            for _ in range(2):
                kept = dtr_alloc.why_kept(function(x))
                assert kept is not None
                assert "an operator that this calls is not repeated" in kept.why
        dtr_alloc.trust("dtr_test::filled")
        assert torch.equal(evicted(overwriting(x)), expected)
    said = capfd.readouterr().err
    assert said.count("dtr_test::counted gave other results") == 1
    assert said.count("calls dtr_test.filled.default") == 1


def test_higher_order_operators_run():
    """flex_attention and cond look for a Python kernel at every dispatch key."""
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.linspace(-1, 1, 2 * 16 * 8).reshape(1, 2, 16, 8)
    expected = flex_attention(q, q, q)
    with checked_session():
        assert torch.equal(flex_attention(q, q, q), expected)
        chosen = torch.cond(q.sum() > 0, lambda x: x + 1, lambda x: x - 1, (q,))
        assert torch.equal(chosen, q - 1 if q.sum() <= 0 else q + 1)
