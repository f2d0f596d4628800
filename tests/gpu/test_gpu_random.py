"""Random operators are computed again with the same bits, and leave generators where they were."""

import threading

import torch
from bits import as_bytes, assert_recomputes
from own_process import DEVICE, own_process
from torch.nn import functional as F

import dtr_alloc

DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout2d": lambda x: F.dropout2d(x.view(1, 16, 16, -1), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "rand": lambda x: torch.rand(x.shape, device=x.device),
    "rand_like": torch.rand_like,
    "rand_like of one on the CPU": (
        lambda x: torch.rand_like(torch.ones(64, 64), generator=None, device=x.device)
    ),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(1000, x.shape, device=x.device),
    "randperm": lambda x: torch.randperm(4096, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.exp(), 64),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "bfloat16": lambda x: F.dropout(x.bfloat16(), 0.1),
}


@own_process()
def test_what_was_drawn_is_drawn_again():
    torch.manual_seed(7)
    x = torch.randn(64, 4096).to(DEVICE)
    wrong = {}
    for name, draw in DRAWS.items():
        # Numbers drawn before: the position is not the beginning.
        torch.rand(3, device=DEVICE)
        try:
            assert_recomputes(lambda draw=draw: draw(x))
        except (AssertionError, RuntimeError) as error:
            wrong[name] = str(error)[:300]
    assert not wrong, wrong


@own_process()
def test_a_generator_of_the_jobs_own_is_found_again():
    generator = torch.Generator(DEVICE).manual_seed(3)
    torch.rand(10, device=DEVICE, generator=generator)
    assert_recomputes(lambda: torch.rand(1 << 20, device=DEVICE, generator=generator))
    drawn = torch.rand(4, device=DEVICE, generator=generator)
    again = torch.Generator(DEVICE).manual_seed(3)
    for count in (10, 1 << 20):
        torch.rand(count, device=DEVICE, generator=again)
    assert torch.equal(drawn, torch.rand(4, device=DEVICE, generator=again))


@own_process(cuda_only="graph-safe generators")
def test_a_generator_whose_state_was_exchanged_goes_on_from_the_old_one():
    torch.cuda.init()
    default = torch.cuda.default_generators[0]
    torch.manual_seed(5)
    x = torch.ones(1 << 20, device=DEVICE)
    first = default.graphsafe_get_state()
    made = F.dropout(x, 0.5)
    kept = as_bytes(made).clone()
    # The states are objects that are exchanged, as CUDA graphs do it, not copied.
    default.graphsafe_set_state(first.clone_state())
    torch.rand(100, device=DEVICE)
    offset = default.get_offset()
    assert dtr_alloc.evict(made)
    assert torch.equal(as_bytes(made), kept)
    assert default.get_offset() == offset
    default.graphsafe_set_state(first)
    assert_recomputes(lambda: F.dropout(x, 0.25))


@own_process()
def test_another_thread_draws_its_numbers_while_draws_are_repeated():
    """Dropout draws from the device's generator by itself, the rest from one of this thread's."""

    def draws():
        return [F.dropout(torch.ones(256, device=DEVICE), 0.5).sum().item() for _ in range(500)]

    torch.manual_seed(7)
    expected = draws()
    x = torch.ones(1 << 16, device=DEVICE)
    repeated = [F.dropout(x, 0.5), torch.randn(x.shape, device=DEVICE)]
    kept = [as_bytes(tensor).clone() for tensor in repeated]
    got = []
    torch.manual_seed(7)
    thread = threading.Thread(target=lambda: got.extend(draws()))
    thread.start()
    while thread.is_alive():
        for tensor, right in zip(repeated, kept, strict=True):
            assert dtr_alloc.evict(tensor)
            assert torch.equal(as_bytes(tensor), right)
    thread.join()
    assert got == expected


@own_process(cuda_only="cuDNN", gpu_only="cuDNN")
def test_an_rnn_begins_anew_with_its_dropout_only_when_the_job_seeds():
    """It then draws from the device's generator, and at no other time."""
    lstm = torch.nn.LSTM(16, 32, num_layers=2, dropout=0.5).to(DEVICE)
    x = torch.randn(8, 4, 16, device=DEVICE)
    generator = torch.cuda.default_generators[0]

    def moves():
        before = generator.get_offset()
        lstm(x)
        return generator.get_offset() != before

    torch.manual_seed(1)
    assert [moves(), moves()] == [True, False]
    made = [F.dropout(torch.ones(4096, device=DEVICE), 0.5), torch.randn(4096, device=DEVICE)]
    assert not moves()
    for tensor in made:
        assert dtr_alloc.evict(tensor)
        dtr_alloc.materialize(tensor)
    assert not moves()
    torch.manual_seed(2)
    for tensor in made:
        assert dtr_alloc.evict(tensor)
        dtr_alloc.materialize(tensor)
    assert [moves(), moves()] == [True, False]
