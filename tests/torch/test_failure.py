"""What fails leaves no lock, no half-written storage and a session that goes on."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from harness import MIB, assert_equal, checked_session, evicted
from torch import Tensor, nn

import dtr_alloc


def recomputable(scale: float = 2.0) -> Tensor:
    """A tensor of 4 KiB that an operator made."""
    return torch.arange(1024, dtype=torch.float32) * scale


def assert_unlocked(*tensors: Tensor) -> None:
    """Nothing holds the tensors: each can be evicted and comes back."""
    for tensor in tensors:
        dtr_alloc.materialize(tensor)
        assert dtr_alloc.evict(tensor), "a lock was left"
        dtr_alloc.materialize(tensor)
    dtr_alloc.check_invariants()


def test_an_operator_that_raises_unlocks_its_inputs():
    with checked_session():
        left, right = evicted(recomputable()), evicted(recomputable(3.0))
        with pytest.raises(RuntimeError, match="shapes"):
            torch.mm(left.view(32, 32), right.view(16, 64))
        assert_unlocked(left, right)


def test_an_in_place_operator_that_raises_leaves_a_constant_with_its_content():
    """It may have written: what is there now is the content, and cannot be recomputed."""
    with checked_session():
        x = recomputable()
        before = x.tolist()
        with pytest.raises(RuntimeError, match="size"):
            x.add_(torch.ones(7))
        assert x.tolist() == before
        assert not dtr_alloc.evict(x)


def test_an_exception_in_a_hook_ends_the_backward_and_no_more():
    def gradients(fail_first: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        x = torch.randn(256, 64)
        if fail_first:
            hidden = model[:3](x)

            def hook(gradient: Tensor) -> None:
                raise LookupError("from a hook")

            hidden.register_hook(hook)
            with pytest.raises(LookupError, match="from a hook"):
                model[3:](hidden).square().mean().backward()
            model.zero_grad()
        model(x).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients(fail_first=False)
    with checked_session("600KiB"):
        got = gradients(fail_first=True)
        assert dtr_alloc.stats()["evictions"] > 0
    assert_equal(expected, got)


def test_a_rematerialization_that_fails_can_be_tried_again():
    """The third operator of five may not run again; the tensor comes back at the next try."""
    with checked_session():
        x = recomputable()
        links = [x]
        for i in range(5):
            links.append(torch.sin(links[-1] + i))
        expected = links[-1].tolist()
        for link in links[1:]:
            evicted(link)
        dtr_alloc.limit_rematerializations(2)
        with pytest.raises(dtr_alloc.StateError, match="more operators were run again"):
            links[-1].sum()
        dtr_alloc.check_invariants()
        dtr_alloc.limit_rematerializations(None)
        assert links[-1].tolist() == expected
        assert_unlocked(*links[1:])


def test_a_session_ends_whatever_may_run_again():
    with checked_session():
        x = evicted(recomputable())
        dtr_alloc.limit_rematerializations(0)
    assert torch.equal(x, recomputable())


def test_a_session_that_cannot_end_goes_on_and_an_operator_that_fails_then_loses_its_result_alone():
    raised: BaseException | None = None

    def scaled(x: Tensor) -> Tensor:
        if raised is not None:
            raise raised
        return x * 2

    dtr_alloc.enable("unlimited", device="cpu")
    x = recomputable()
    y = evicted(dtr_alloc.run_as_operator(scaled, x, name="scaled"))
    raised = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        dtr_alloc.disable()
    assert dtr_alloc.is_enabled()
    raised = None
    assert torch.equal(y, x * 2)
    z = evicted(x * 3)
    evicted(y)
    raised = LookupError("gone")
    with pytest.raises(dtr_alloc.StateError, match=r"4096 bytes. of scaled, float32 .*gone"):
        dtr_alloc.disable()
    assert torch.equal(z, x * 3)
    with pytest.raises(RuntimeError, match="lost"):
        y.sum()


def out_of_memory(job: Callable[[], object], budget: str, swap: str = "off") -> str:
    """The error's text; "" without one."""
    with dtr_alloc.session(budget=budget, device="cpu", swap=swap):
        try:
            job()
        except torch.OutOfMemoryError as error:
            return str(error)
    return ""


def joined() -> None:
    """Needs 12 MiB at once, beside 8 that can be evicted."""
    beside = [torch.rand(MIB // 4) for _ in range(8)]
    torch.cat([torch.rand(MIB // 4) for _ in range(6)])
    del beside


def test_the_budget_that_an_error_names_is_enough_and_no_more_than_all_of_it_takes():
    requested, advice = out_of_memory(joined, "9MiB").splitlines()[:2]
    assert "requested 6.0 MiB" in requested
    needed = re.search(r"needs a budget of at least .* \((\d+) bytes\)", advice)
    enough = re.search(r"a budget of ([0-9.]+) MiB would do", advice)
    assert needed
    assert enough
    assert 12 * MIB <= int(needed[1]) <= float(enough[1]) * MIB <= 20.1 * MIB
    assert not out_of_memory(joined, f"{enough[1]}MiB")


def test_no_budget_is_named_for_what_is_not_recorded_any_more():
    """Steps in which nothing is evicted are recorded until they are known."""
    x = torch.rand(64, 64, requires_grad=True)
    with checked_session("9MiB"):
        for _ in range(400):
            torch.tanh(x @ x).sum().backward()
            x.grad = None
        with pytest.raises(torch.OutOfMemoryError, match="needs a budget of at least") as raised:
            torch.cat([torch.rand(MIB) for _ in range(2)])
        assert "would do" not in str(raised.value)


def test_swapping_is_suggested_where_results_that_are_kept_fill_the_memory():
    def collected() -> None:
        kept = []
        for _ in range(8):
            kept.append(torch.tensor([0.5] * (MIB // 4)))
            kept[-1].sum()

    text = out_of_memory(collected, "6MiB")
    found = re.search(r"^Results that are kept.*DTR_ALLOC_SWAP=(\d+MiB)", text, re.MULTILINE)
    assert found
    assert not out_of_memory(collected, "6MiB", found[1])


def test_it_is_said_where_parameters_alone_fill_the_budget():
    def layer() -> None:
        model = torch.nn.Linear(1024, 1024)
        model(torch.ones(1, 1024))
        model(torch.ones(512, 1024))

    def too_much() -> None:
        model = torch.nn.Linear(512, 512)
        model(torch.ones(1, 512))
        torch.ones(64, 512).repeat(64, 1)

    assert "\nParameters alone fill the budget: 4.0 MiB" in out_of_memory(layer, "5MiB")
    assert "Parameters alone" not in out_of_memory(too_much, "5MiB")


def test_a_session_may_end_inside_a_dispatch_mode():
    """The capture is no mode, so it does not matter which were entered since."""
    from torch.utils.flop_counter import FlopCounterMode

    dtr_alloc.enable(budget="unlimited", device="cpu")
    x = evicted(recomputable())
    with FlopCounterMode(display=False):
        dtr_alloc.disable()
    assert not dtr_alloc.is_enabled()
    assert x[1] == 2


def test_an_in_place_operator_that_waits_for_an_input_stays_recomputable():
    """What it overwrites is not taken for half written while the other input comes back."""
    with checked_session():
        x, y = recomputable(), evicted(recomputable(3.0))
        x.add_(y)
        expected = x.tolist()
        evicted(x)
        assert x.tolist() == expected


def test_verify_names_the_operator_that_does_not_repeat_itself(monkeypatch, request):
    monkeypatch.setenv("DTR_ALLOC_DEBUG", "verify:1")
    runs = [0.0]

    def faulty(x: Tensor) -> Tensor:
        runs[0] += 1
        return torch.full_like(x, runs[0])

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it replaces a kernel
        library.impl("cos", faulty, "CPU")
    request.addfinalizer(library._destroy)
    with dtr_alloc.session(budget="unlimited", device="cpu"):
        x = torch.rand(1000)
        good, bad = x.sin(), x.cos()
        assert dtr_alloc.evict(good)
        assert good.sum().isfinite()
        assert dtr_alloc.evict(bad)
        with pytest.raises(dtr_alloc.StateError, match=r"aten::cos.*4000 bytes.*deterministic"):
            bad.sum()
        dtr_alloc.check_invariants()
        monkeypatch.delenv("DTR_ALLOC_DEBUG")
        del bad
