"""What is kept, and why: by operator and by line of the job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from harness import MIB, checked_session, one_thread  # noqa: F401
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.torch import custom_operators

ELEMENTS = MIB // 4


@torch.library.custom_op("dtr_kept::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def nobody_is_trusted() -> object:
    dtr_alloc.distrust("dtr_kept")
    yield
    custom_operators._words.clear()


def test_everything_that_is_kept_says_why() -> None:
    with checked_session():
        net = nn.Linear(64, ELEMENTS // 64, bias=False)
        x = torch.ones(ELEMENTS)
        y = torch.sin(x)
        z = twice(y)
        addressed = torch.cos(x)
        addressed.numpy()
        pinned = torch.tan(x)
        dtr_alloc.pin(pinned)
        _ = net(torch.ones(64))
        found = dtr_alloc.kept()
        assert [entry.size_bytes for entry in found] == sorted(
            (entry.size_bytes for entry in found), reverse=True
        )
        reasons = {entry.why: entry for entry in found if entry.size_bytes >= MIB}
        assert reasons.keys() == {
            "a parameter",
            "its address was asked for",
            "not trusted (dtr_alloc.trust)",
            "pinned",
        }
        assert reasons["not trusted (dtr_alloc.trust)"].operator == "dtr_kept::twice.default"
        assert reasons["pinned"].operator == "aten::tan.default"
        line = reasons["its address was asked for"].line
        assert re.fullmatch(r"test_kept\.py:\d+", line)
        text = Path(__file__).read_text().splitlines()[int(line.partition(":")[2]) - 1]
        assert "addressed.numpy()" in text
        del z, addressed, pinned, net, _
        assert not [entry for entry in dtr_alloc.kept() if entry.size_bytes >= MIB]


def test_data_is_what_nobody_was_seen_to_make() -> None:
    with checked_session():
        x = torch.empty(ELEMENTS)
        torch.sin(x)
        (entry,) = dtr_alloc.kept()
        assert entry.size_bytes == MIB
        assert entry.operator == ""
        assert entry.why.startswith("no operator that was seen made it")


def test_an_out_of_memory_error_names_what_is_kept() -> None:
    with checked_session(4 * MIB):
        x = torch.ones(ELEMENTS)
        with pytest.raises(torch.OutOfMemoryError, match=r"that are kept .*dtr_kept::twice"):
            _ = [twice(x) for _ in range(8)]


def test_without_a_session_it_is_an_error() -> None:
    with pytest.raises(dtr_alloc.StateError):
        dtr_alloc.kept()
