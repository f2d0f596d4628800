"""Random numbers: what is computed again draws the same, and no generator of the job ever moves."""

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from harness import assert_equal, checked_session, evicted
from native_fixtures import on_threads
from torch import Tensor, nn

import dtr_alloc

Draw = Callable[..., Tensor]


def attention() -> Tensor:
    return nn.functional.scaled_dot_product_attention(
        *(torch.ones(1, 2, 16, 16),) * 3, dropout_p=0.5
    )


DRAWS: dict[str, Draw] = {
    "randn": lambda **g: torch.randn(1000, **g),
    "rand": lambda **g: torch.rand(1000, **g),
    "randint": lambda **g: torch.randint(0, 100, (1000,), **g),
    "randperm": lambda **g: torch.randperm(1000, **g),
    "normal": lambda **g: torch.normal(0.0, torch.ones(1000), **g),
    "bernoulli": lambda **g: torch.bernoulli(torch.full((1000,), 0.3), **g),
    "multinomial": lambda **g: torch.multinomial(torch.ones(1000), 500, **g),
    "uniform_": lambda **g: torch.zeros(1000).uniform_(**g),
}
WITHOUT_A_GENERATOR: dict[str, Draw] = {
    "native_dropout": lambda: torch.native_dropout(torch.ones(1000), 0.5, True)[0],
    "dropout": lambda: nn.functional.dropout(torch.ones(1000), 0.5),
    "feature_dropout": lambda: nn.functional.dropout2d(torch.ones(10, 100, 1, 1), 0.5),
    "rand_like": lambda: torch.rand_like(torch.ones(1000)),
    "randint_like": lambda: torch.randint_like(torch.ones(1000), 0, 50),
    "attention": attention,
}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        *((name, own) for name in DRAWS for own in (False, True)),
        *((name, False) for name in WITHOUT_A_GENERATOR),
    ],
)
def test_draws_are_those_of_plain_pytorch_and_come_again(name, own):
    """From the default generator, or from one of the job's own."""

    def run() -> list[Tensor]:
        torch.manual_seed(3)
        settings = {"generator": torch.Generator().manual_seed(5)} if own else {}
        return [(DRAWS | WITHOUT_A_GENERATOR)[name](**settings) for _ in range(2)]

    expected = run()
    after = torch.get_rng_state()
    with checked_session():
        drawn = run()
        assert torch.equal(torch.get_rng_state(), after)
        assert_equal(expected, map(evicted, drawn))
        assert torch.equal(torch.get_rng_state(), after), "the job's generator moved"


def test_a_thread_with_its_own_generator_has_its_numbers_beside_training_threads():
    def prepare(out: list[float]) -> None:
        generator = torch.Generator().manual_seed(1)
        out.extend(torch.randn(500, generator=generator).sum().item() for _ in range(200))

    def train(index: int, out: dict[int, list[float]]) -> None:
        generator = torch.Generator().manual_seed(index)
        net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
        for parameter in net.parameters():
            with torch.no_grad():
                parameter.normal_(0, 0.1, generator=generator)
        losses = []
        for _ in range(10):
            hidden = torch.randn(512, 64, generator=generator)
            for layer in net:
                mask = torch.empty(512, 64).bernoulli_(0.5, generator=generator)
                hidden = torch.relu(layer(hidden)) * mask
            loss = hidden.square().mean()
            loss.backward()
            losses.append(loss.item())
        out[index] = [*losses, *(float(p.grad.sum()) for p in net.parameters())]

    def all_of_it() -> tuple[list[float], dict[int, list[float]]]:
        prepared: list[float] = []
        trained: dict[int, list[float]] = {}
        trainers = [partial(train, i, trained) for i in range(3)]
        on_threads(partial(prepare, prepared), *trainers)
        return prepared, trained

    expected = all_of_it()
    with checked_session("3MiB"):
        assert all_of_it() == expected
        assert dtr_alloc.stats()["rematerializations"] > 0


def test_two_threads_that_draw_from_one_generator_share_out_its_numbers():
    """In whatever order: no number comes twice, and none is lost."""
    each = 2000

    def draw(count: int) -> list[float]:
        return [torch.rand(1, dtype=torch.float64).item() for _ in range(count)]

    def run() -> set[float]:
        torch.manual_seed(11)
        got: list[float] = []
        on_threads(*[lambda: got.extend(draw(each))] * 2)
        return set(got)

    torch.manual_seed(11)
    expected = set(draw(2 * each))
    with checked_session():
        assert run() == expected


def test_a_state_that_is_read_or_set_while_draws_are_repeated_is_the_jobs():
    with checked_session():
        torch.manual_seed(2)
        drawn = torch.randn(100_000)
        right = drawn.clone()
        state = torch.get_rng_state()
        seen: list[bool] = []
        over = threading.Event()

        def look() -> None:
            seen.extend(torch.equal(torch.get_rng_state(), state) for _ in range(500))
            over.set()

        def repeat() -> None:
            while not over.is_set():
                dtr_alloc.materialize(evicted(drawn))

        on_threads(look, repeat)
        assert all(seen)
        assert torch.equal(drawn, right)


own = torch.Generator()


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(1234)
    return x + torch.rand(x.shape)


def seeded_by_state(x: Tensor) -> Tensor:
    torch.set_rng_state(torch.Generator().manual_seed(1234).get_state())
    return x + torch.rand(x.shape) + torch.initial_seed()


def seeded_in_its_own(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape, generator=own.manual_seed(5))


def seeded_with_care(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        return x + torch.rand(x.shape)


SEEDING = [seeded, seeded_by_state, seeded_in_its_own, seeded_with_care]


@pytest.mark.parametrize("function", SEEDING, ids=lambda function: function.__name__)
@pytest.mark.parametrize("as_custom", [False, True], ids=["function", "custom operator"])
def test_an_operator_that_seeds_moves_no_generator_when_it_runs_again(function, as_custom):
    operator: Callable[[Tensor], Tensor] = dtr_alloc.run_as_operator(function)
    if as_custom:
        name = f"dtr_seeding::{function.__name__}"
        operator = torch.library.custom_op(name, mutates_args=())(function)

    def run(again: bool) -> list[Tensor]:
        torch.manual_seed(0)
        own.manual_seed(0)
        drawn = []
        for step in range(5):
            made = operator(torch.ones(1000) * step)
            drawn += [torch.rand(10), torch.rand(10, generator=own)]
            torch.manual_seed(99 + step)
            own.manual_seed(99 + step)
            drawn += [torch.rand(10), torch.rand(10, generator=own)]
            drawn.append((evicted(made) if again else made).clone())
            drawn += [torch.rand(10), torch.rand(10, generator=own)]
        return drawn

    expected = run(again=False)
    with checked_session():
        got = run(again=True)
    assert_equal(expected, got)


def test_another_thread_draws_its_own_numbers_while_an_operator_seeds_again():
    inside, drawn = threading.Event(), threading.Event()
    again = False

    def waits(x: Tensor) -> Tensor:
        torch.manual_seed(1234)
        if again:
            inside.set()
            assert drawn.wait(60)
        return x + torch.rand(x.shape)

    others: list[Tensor] = []

    def draw() -> None:
        assert inside.wait(60)
        others.extend(torch.rand(10) for _ in range(3))
        drawn.set()

    with checked_session():
        made = dtr_alloc.run_as_operator(waits, torch.ones(1000))
        torch.manual_seed(7)
        again = True
        on_threads(draw, evicted(made).sum)
        after = torch.rand(10)
    torch.manual_seed(7)
    assert_equal([torch.rand(10) for _ in range(4)], [*others, after])
