"""Operators of custom libraries: tried, trusted or neither, and the bits of plain PyTorch."""

import ctypes
import gc
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import MIB, assert_equal, checked_session, evicted, python
from torch import Tensor

import dtr_alloc
from dtr_alloc.torch import custom_operators

TRIALS = 3
X = torch.linspace(-3, 3, 1000)


class Library:
    """A library of its own for each test, as what trials show of an operator stays for good."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.calls = 0
        self.kept: list[Any] = []
        """What operators hold, which stay as long as the process."""

    def define(
        self, function: Callable[..., Tensor], mutates_args: tuple[str, ...] = ()
    ) -> Callable[..., Tensor]:
        name = f"{self.namespace}::{function.__name__}"
        return torch.library.custom_op(name, mutates_args=mutates_args)(function)

    def counting(self, function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        """The operator `called`, of which each call counts."""

        def called(x: Tensor) -> Tensor:
            self.calls += 1
            return function(x)

        return self.define(called)


_numbers = count()


@pytest.fixture
def library() -> Iterator[Library]:
    yield (library := Library(f"dtr_custom{next(_numbers)}"))
    library.kept.clear()
    custom_operators._declared.clear()


def doubling(library: Library, after: int) -> Callable[..., Tensor]:
    """An operator that uses one buffer for its results after so many calls."""

    def double(x: Tensor) -> Tensor:
        if library.calls <= after:
            return x * 2
        if not library.kept:
            library.kept.append(x * 2)
            return library.kept[0]
        return library.kept[0].copy_(x * 2)

    return library.counting(double)


def gelu_of(library: Library) -> Callable[..., Tensor]:
    def gelu(x: Tensor, scale: float) -> Tensor:
        library.calls += 1
        return torch.nn.functional.gelu(x) * scale

    return library.define(gelu)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_arguments_and_results_are_tried_as_what_they_are_made_of(library, layout):
    double = library.counting(lambda x: (x.to_dense() * 2).to_sparse(layout=layout))
    dense = torch.eye(30) * 3
    with checked_session():
        given = (dense * 1).to_sparse(layout=layout)
        result = double(given)
        assert library.calls == 2
        assert torch.equal(evicted(result).to_dense(), dense * 2)
        assert library.calls == 3


@pytest.mark.parametrize("make", [torch.library.custom_op, torch.library.triton_op])
def test_a_kernel_that_is_launched_on_addresses_repeats_as_any_other(library, make):
    """As Triton's are. Whoever asked for one kept its tensor where it was, for good."""

    def copied(x: Tensor) -> Tensor:
        library.calls += 1
        out = torch.empty_like(x)
        ctypes.memmove(out.data_ptr(), x.untyped_storage().data_ptr(), x.nbytes)
        return out

    copy = make(f"{library.namespace}::copied", mutates_args=())(copied)
    expected = torch.linspace(0, 1, 1000).sin()
    with checked_session():
        x = torch.linspace(0, 1, 1000).sin()
        result = copy(x)
        assert library.calls == 2
        assert torch.equal(evicted(x), expected)
        evicted(x)
        assert torch.equal(evicted(result), expected)
        assert library.calls == 3
        assert dtr_alloc.evict(x), "nobody has its address now"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not here")
def test_kernels_of_triton_repeat():
    job = Path(__file__).with_name("triton_job.py")
    assert python(job, TRITON_INTERPRET="1").stdout == "done\n"


def test_an_array_may_outlive_the_operator_that_made_it(library):
    def summed(x: Tensor) -> Tensor:
        library.kept.append(x.numpy())
        return x.sum(0)

    with checked_session():
        x = torch.ones(100, 100).exp()
        library.define(summed)(x)
        assert not dtr_alloc.evict(x)
        assert (library.kept[0] == x.numpy()).all()


def test_what_repeats_runs_twice_three_times_and_can_be_evicted(library):
    """Other values of other arguments are tried anew."""
    gelu = gelu_of(library)
    with checked_session():
        for scale in (1.0, 2.0):
            library.calls = 0
            got = [gelu(X + 0, scale) for _ in range(TRIALS + 2)]
            assert library.calls == 2 * TRIALS + 2
            for result in got:
                assert torch.equal(evicted(result), torch.nn.functional.gelu(X) * scale)
            assert library.calls == 3 * TRIALS + 4


def test_what_draws_from_a_generator_of_pytorch_draws_the_same_again(library):
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x) + torch.randn(x.shape)

    noise = library.define(noisy)

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        return [noise(torch.ones(1000)) for _ in range(TRIALS + 2)]

    expected, after = run(), torch.get_rng_state()
    with checked_session():
        got = run()
        assert torch.equal(torch.get_rng_state(), after)
        assert_equal(expected, map(evicted, got))


def has_a_state(library: Library, x: Tensor) -> Tensor:
    return x + library.calls


def overwrites_its_argument(library: Library, x: Tensor) -> Tensor:
    x.data += 1
    return x * 2


def fails_the_second_time(library: Library, x: Tensor) -> Tensor:
    if library.calls == 2:
        raise RuntimeError("only once")
    return x + 1


def speaks_to_other_processes(library: Library, x: Tensor) -> Tensor:
    y = x.clone()
    dist.all_reduce(y)
    return y


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("function", "calls", "values", "said"),
    [
        (has_a_state, 4, [1, 3, 4], "gave other results when it ran again"),
        (overwrites_its_argument, 3, [2, 2, 2], "overwrites an argument, of which its schema says"),
        (fails_the_second_time, 4, [1, 1, 1], "failed with RuntimeError when it ran again"),
        (speaks_to_other_processes, 3, [0, 0, 0], "calls torch.distributed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_does_not_repeat_is_found_out_at_once_and_runs_twice_at_most_once(
    library, function, calls, values, said, one_rank, capfd
):
    operator = library.counting(partial(function, library))
    with checked_session():
        results = [operator(torch.zeros(1000)) for _ in range(3)]
        assert not any(dtr_alloc.evict(result) for result in results)
        assert [result[0].item() for result in results] == values
    assert library.calls == calls
    told = capfd.readouterr().err
    assert told.count(said) == 1
    assert f'dtr_alloc.trust("{library.namespace}::called")' in told


def test_what_gives_the_same_memory_each_time_is_no_result_of_its_own(library):
    buffer = torch.zeros(1000)

    def reuse(x: Tensor) -> Tensor:
        return torch.add(x, 1, out=buffer)

    lower = torch.library.Library(library.namespace, "DEF")  # custom_op would look for aliases
    lower.define("reuse(Tensor x) -> Tensor")
    lower.impl("reuse", reuse, "CPU")
    operator = getattr(torch.ops, library.namespace).reuse
    with checked_session():
        result = operator(torch.zeros(1000))
        assert not dtr_alloc.evict(result)
        assert torch.equal(result, torch.ones(1000))


def test_what_gives_an_earlier_result_again_later_is_found_and_kept(library, capfd):
    operator = doubling(library, 2 * TRIALS)
    x = torch.linspace(-1, 1, 1000)
    with checked_session():
        for _ in range(TRIALS + 1):
            last = operator(x + 0)
        tripled = last * 3
        evicted(tripled)
        again = operator(x + 1)
        assert torch.equal(tripled, x * 6), "was computed before it was overwritten"
        assert torch.equal(last, (x + 1) * 2)
        assert torch.equal(again, (x + 1) * 2)
        assert not dtr_alloc.evict(again)
    assert "overwrites a tensor that is none of its arguments" in capfd.readouterr().err


def test_a_result_that_an_operator_keeps_when_it_runs_again_is_a_copy(library):
    keeps = False

    def double(x: Tensor) -> Tensor:
        result = x * 2
        if keeps:
            library.kept.append(result)
        return result

    operator = library.define(double)
    x = torch.linspace(-1, 1, 1000)
    with checked_session():
        results = [operator(x + 0) for _ in range(TRIALS + 1)]
        keeps = True
        for result in results:
            assert torch.equal(evicted(result), x * 2)
        assert len(library.kept) == len(results)
        assert all(torch.equal(each, x * 2) for each in library.kept)


def test_a_result_that_an_operator_keeps_may_be_written_to_later_and_is_kept(library):
    operator = doubling(library, 2 * TRIALS + 1)
    x = torch.linspace(-1, 1, 1000)
    with checked_session():
        early = [operator(x + 0) for _ in range(TRIALS + 1)]
        late = operator(x + 1)
        assert not dtr_alloc.evict(late)
        assert torch.equal(operator(x + 2), (x + 2) * 2)
        for result in early:
            assert torch.equal(evicted(result), x * 2)
        assert torch.equal(late, (x + 2) * 2), "what was run again does not write to it"


@pytest.mark.parametrize("budget", [400_000, 700_000, 1_000_000, 1_500_000])
def test_a_buffer_that_an_operator_begins_to_use_while_it_runs_again_is_no_null_pointer(
    library, budget
):
    operator = doubling(library, 20)

    def run() -> list[float]:
        library.calls = 0
        library.kept.clear()
        sums = []
        for _ in range(8):
            kept = []
            for i in range(12):
                x = torch.full((128, 96), float(i)) * 1.5
                y = operator(x)
                sums.append(y.sum().item())
                kept += [x, y.sin()]
            sums += [each.sum().item() for each in reversed(kept)]
        return sums

    expected = run()
    gc.collect()
    # What depends on the buffer is computed before that is overwritten, and then kept.
    with checked_session(budget, swap=MIB):
        assert run() == expected


def test_an_interrupt_in_a_trial_is_the_jobs(library):
    def double(x: Tensor) -> Tensor:
        if library.calls == 2:
            raise KeyboardInterrupt
        return x * 2

    operator = library.counting(double)
    with checked_session():
        with pytest.raises(KeyboardInterrupt):
            operator(torch.ones(1000))
        result = operator(torch.ones(1000))
        assert torch.equal(evicted(result), torch.full((1000,), 2.0))


def test_a_trial_without_memory_for_it_shows_nothing(library):
    operator = library.counting(lambda x: x * 2)
    elements = 2 * MIB // 4
    with checked_session(6 * MIB):  # for the argument and a result
        x = torch.ones(elements)
        dtr_alloc.pin(x)
        result = operator(x)
        assert library.calls == 2, "the second run is tried, and does not end"
        assert not dtr_alloc.evict(result)
        del result
        dtr_alloc.set_budget(8 * MIB)
        result = operator(x)
        assert torch.equal(evicted(result), torch.full((elements,), 2.0))


def test_what_is_trusted_is_not_tried(library):
    gelu = gelu_of(library)
    dtr_alloc.trust(f"{library.namespace}::gelu")
    with checked_session():
        result = gelu(X, 2.0)
        assert library.calls == 1
        assert torch.equal(evicted(result), torch.nn.functional.gelu(X) * 2)
        dtr_alloc.distrust(library.namespace)
        assert dtr_alloc.evict(gelu(X, 2.0)), "the word on an operator goes before"
        dtr_alloc.distrust(f"{library.namespace}::gelu")
        assert not dtr_alloc.evict(gelu(X, 2.0))


def test_the_setting_holds_for_its_session(library):
    gelu = gelu_of(library)
    with dtr_alloc.session(budget="unlimited", device="cpu", trust=library.namespace):
        gelu(X, 2.0)
    assert library.calls == 1
    with checked_session():
        gelu(X, 2.0)
    assert library.calls == 3


def test_what_overwrites_as_its_schema_says_is_repeated_if_it_is_trusted(library):
    def add_one(x: Tensor) -> None:
        x.add_(1)

    operator = library.define(add_one, ("x",))  # type: ignore[arg-type]

    def run() -> Tensor:
        y = torch.zeros(1000) + 1
        operator(y)
        return y

    with checked_session():
        assert not dtr_alloc.evict(run())
        dtr_alloc.trust(library.namespace)
        assert torch.equal(evicted(run()), torch.full((1000,), 2.0))


@pytest.mark.usefixtures("library")
def test_an_operator_of_pytorch_can_be_distrusted():
    with checked_session():
        dtr_alloc.distrust("aten::erf")
        assert not dtr_alloc.evict(torch.erf(X))
        assert dtr_alloc.evict(torch.sin(X))


@pytest.mark.parametrize("name", ["", "a b", "a::", "a::b::c", "a.b", 3])
def test_a_wrong_name_is_an_error(name):
    for say in (dtr_alloc.trust, dtr_alloc.distrust):
        with pytest.raises(dtr_alloc.ConfigError, match="a namespace, such as flash_attn"):
            say(name)  # type: ignore[arg-type]
    with pytest.raises(dtr_alloc.ConfigError, match="the argument trust"):
        dtr_alloc.enable("unlimited", device="cpu", trust=[name])
    assert not dtr_alloc.is_enabled()
