"""A parameter that is swapped, and evictions verified."""

import warnings

import pytest
import torch
from harness import checked_session, evicted
from torch import Tensor, nn

import dtr_alloc


def test_evicting_and_reading_a_parameter_by_hand() -> None:
    with checked_session(swap="64MiB"):
        weight = nn.Parameter(torch.arange(4096.0))
        assert weight.sum().item() == 4095 * 4096 / 2
        assert evicted(weight).tolist()[4095] == 4095
        assert evicted(weight).detach().numpy()[4095] == 4095
        assert not dtr_alloc.evict(weight), "its address was given away"


def test_verify_names_the_operator_that_does_not_repeat_itself(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
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
