"""What is kept says why, by operator and by line of the job. With the limit at nothing, nothing is
too small to be evicted."""

import json
import re
from pathlib import Path

import pytest
import torch
from harness import MIB, checked_session, evicted, python
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.config import TINY_BYTES
from dtr_alloc.core import lib
from dtr_alloc.torch import custom_operators

ELEMENTS = MIB // 4


@torch.library.custom_op("dtr_kept::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def nobody_is_trusted() -> object:
    dtr_alloc.distrust("dtr_kept")
    yield
    custom_operators._declared.clear()


def test_everything_that_is_kept_says_why():
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
        untrusted = "its operator is not trusted (dtr_alloc.distrust)"
        escaped = "its address was given away"
        assert reasons.keys() == {"it is a parameter", escaped, untrusted, "it is pinned"}
        assert reasons[untrusted].operator == "dtr_kept.twice.default"
        assert reasons["it is pinned"].operator == "aten.tan.default"
        line = reasons[escaped].line
        assert re.fullmatch(r"test_kept\.py:\d+", line)
        text = Path(__file__).read_text().splitlines()[int(line.partition(":")[2]) - 1]
        assert "addressed.numpy()" in text
        del z, addressed, pinned, net, _
        assert not [entry for entry in dtr_alloc.kept() if entry.size_bytes >= MIB]


def test_the_peak_is_of_the_moment_when_most_was_kept():
    with checked_session():
        x = torch.ones(ELEMENTS)
        for count in (1, 4, 2):
            _ = [twice(x) for _ in range(count)]
            del _
        assert not [entry for entry in dtr_alloc.kept() if entry.size_bytes >= MIB]
        assert dtr_alloc.stats()["evictable_bytes"] == x.nbytes
        (entry,) = dtr_alloc.kept(at_peak=True)
        assert (entry.size_bytes, entry.operator) == (4 * MIB, "dtr_kept.twice.default")
        assert dtr_alloc.stats()["peak_kept_bytes"] == 4 * MIB
        dtr_alloc.reset_peak_stats()
        y = x + 1
        assert dtr_alloc.stats()["evictable_bytes"] == x.nbytes + y.nbytes
        assert dtr_alloc.kept(at_peak=True) == []


JOB = """
import numpy, torch
x = torch.ones(2**18).exp()
numpy.asarray(x)
y = x + 1
del x
y.sum().item()
"""


def test_the_report_and_the_stats_of_a_job_say_what_was_kept(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    settings = {"budget": "unlimited", "stats": "stats.json", "report": "all"}
    done = python("job.py", cwd=tmp_path, **settings)
    stats = json.loads((tmp_path / "stats.json").read_text())
    (entry,) = stats["kept"]
    assert entry.pop("size_bytes") == stats["peak_kept_bytes"] == MIB
    why = "its address was given away"
    where = {"line": "job.py:4", "module": ""}
    assert entry == {"operator": "aten.exp.default", "why": why, **where}
    assert "kept: aten.exp.default, as its address" in done.stderr


def test_an_out_of_memory_error_names_what_is_kept():
    with checked_session(4 * MIB):
        x = torch.ones(ELEMENTS)
        with pytest.raises(torch.OutOfMemoryError, match=r"that are kept .*dtr_kept::twice"):
            _ = [twice(x) for _ in range(8)]


def test_without_a_session_it_is_an_error():
    with pytest.raises(dtr_alloc.StateError):
        dtr_alloc.kept()


def reason(tensor: Tensor) -> str:
    kept = dtr_alloc.why_kept(tensor)
    assert not dtr_alloc.evict(tensor)
    assert kept is not None, "it was not evicted, and nothing says why"
    return kept.why


def test_what_can_be_evicted_or_is_has_no_reason_to_be_kept():
    with checked_session():
        x = torch.arange(1000.0)
        assert dtr_alloc.why_kept(x) is None
        assert dtr_alloc.why_kept(evicted(x)) is None


def test_each_other_kind_of_constant_has_a_reason_of_its_own():
    outside = torch.arange(1000.0)
    with checked_session():
        assert reason(torch.arange(2.0)) == "it is tiny"
        assert reason(torch.empty(1000)) == "no operator that is recorded has made or used it"
        found = torch.empty(1000)
        found + 1
        assert reason(found) == "its content was there when an operator first used it"
        dependent = outside + 1  # its record lives while something depends on it
        assert reason(outside) == "its memory was not allocated under the budget"
        del dependent
        overwritten = torch.empty(1000)
        overwritten += 1
        kept = dtr_alloc.why_kept(overwritten)
        assert reason(overwritten).startswith("its operator read and overwrote")
        assert kept is not None
        assert kept.operator == "aten.add_.Tensor"


def test_running_statistics_are_state_of_their_operator():
    with checked_session():
        mean, variance = torch.zeros(100), torch.ones(100)
        torch.nn.functional.batch_norm(torch.rand(4, 100), mean, variance, training=True)
        assert reason(mean) == reason(variance) == "it is state that its operator updates"


def test_the_rule_of_an_operator_says_why_it_is_not_run_again():
    with checked_session():
        solution = torch.linalg.lstsq(torch.rand(30, 30), torch.rand(30, 30)).solution
        kept = dtr_alloc.why_kept(solution)
        assert kept == (
            30 * 30 * 4,
            "aten.linalg_lstsq.default",
            "its operator gives other last bits from run to run, without us as well",
            "",
            "",
        )


def test_without_a_limit_scalars_are_evicted_and_come_back_by_whatever_looks_at_them():
    with checked_session(debug="tiny:0"):
        x = torch.arange(5.0).sum()
        assert evicted(x).item() == 10
        assert bool(evicted(x) == 10)
        y = evicted(x.clone()).add_(1)
        assert torch.equal(evicted(y), torch.tensor(11.0))
    with checked_session():
        assert reason(torch.arange(5.0).sum()) == "it is tiny"


def test_the_usual_limit_is_that_of_the_header():
    assert TINY_BYTES == lib.DTR_TINY_BYTES


def test_a_larger_limit_keeps_larger_storages():
    with checked_session(debug="tiny:4KiB"):
        assert reason(torch.arange(1024.0)) == "it is tiny"
        assert dtr_alloc.evict(torch.arange(1025.0))


# ---- operators that only look at tensors, such as item() and equal() ----


def clock() -> float:
    return dtr_alloc.stats().clock_seconds


def test_only_a_look_at_a_tiny_tensor_of_ours_costs_the_engine_nothing():
    with checked_session():
        x = torch.full((16,), 3.0)
        of_others = torch.frombuffer(bytearray(8), dtype=torch.int64)
        assert not dtr_alloc.evict(x)
        before = clock()
        assert x[5].item() == 3.0
        assert torch.equal(x, x[:])
        assert clock() == before
        assert of_others.item() == 0
        assert clock() > before


def test_a_look_at_a_part_of_an_evicted_tensor_brings_it_back():
    with checked_session():
        x = torch.linspace(0, 1, 4096) * 3
        first, last = x[0], x[-1]
        assert dtr_alloc.evict(x)
        before = clock()
        assert last.item() == 3.0
        assert dtr_alloc.is_resident(first)
        assert clock() > before
