"""The report on models: what they make of traces whose values are known."""

import json

import pytest
from click.testing import CliRunner

from dtr_alloc.cli.fragment import command as fragment
from dtr_alloc.lab.fragment import example, report
from dtr_alloc.lab.fragment.models import MODELS, Prepared
from dtr_alloc.lab.fragment.residency import FREED, STAYED
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace

KIB = 1 << 10


def comb():
    """Four blocks of 64 KiB in a row; the first and the third are freed."""
    trace = Trace({"source": "rmm"})
    for at in range(4):
        trace.add(Kind.ALLOCATE, time_ns=at, address=0x1000000 * at, size_bytes=64 * KIB)
    for at in (0, 2):
        trace.add(Kind.FREE, time_ns=4 + at, address=0x1000000 * at, size_bytes=64 * KIB)
    return trace


def run(prepared, model, budget=None, **options):
    return report.of_model(prepared, model, budget, **{"smallest": False, "blocks": True} | options)


def test_a_run_has_the_measures_of_its_heap():
    row = run(Prepared(comb()), "first_fit", smallest=True)
    found = row.measures
    assert found.name == "first_fit"
    assert found.peak_live_bytes == found.peak_reserved_bytes == 256 * KIB
    assert found.utilization == 1
    assert found.max_lost_bytes == 128 * KIB
    assert found.mean_lost_bytes == pytest.approx((64 + 128) * KIB / 6)
    assert found.worst_event == 5
    assert row.holes == [64 * KIB] * 2
    assert found.worst_largest_share == found.worst_evenness == 0.5
    assert found.smallest_budget_bytes == 256 * KIB
    assert found.ns_per_operation > 0
    assert list(row.blocks.address) == [64 * KIB * at + row.blocks.address[0] for at in range(4)]
    assert list(row.blocks.end) == [4, 6, 5, 6]
    assert list(row.blocks.ended) == [FREED, STAYED, FREED, STAYED]


def test_a_run_that_fails_is_described_up_to_its_failure():
    row = run(Prepared(comb()), "first_fit", 200 * KIB)
    assert not row.measures.completed
    assert row.request_bytes == 64 * KIB
    assert row.measures.worst_event == 3
    assert row.measures.name == "first_fit in 200.00 KiB"
    assert len(row.blocks) == 3
    assert set(row.blocks.end) == {3}


def test_a_run_in_a_budget_that_holds_nothing_has_no_peaks():
    row = run(Prepared(comb()), "first_fit", KIB)
    assert not row.measures.completed
    assert row.measures.peak_live_bytes == 0
    assert row.measures.utilization is None


def test_no_model_needs_less_than_the_exact_one(tmp_path):
    trace_file.write(example.training(steps=1), tmp_path / "job.trace")
    arguments = ["report", str(tmp_path / "job.trace"), "--json", "-"]
    done = CliRunner().invoke(fragment, arguments)
    assert done.exit_code == 0, done.output
    recorded, *models = json.loads(done.stdout)["traces"][0]["rows"]
    assert [row["name"] for row in models] == list(MODELS)
    least = models[-1]
    assert least["name"] == "exact"
    assert least["max_lost_bytes"] == 0
    for row in models:
        assert row["completed"]
        assert row["peak_live_bytes"] == recorded["peak_live_bytes"]
        assert row["peak_reserved_bytes"] >= least["peak_reserved_bytes"]
        assert row["smallest_budget_bytes"] >= least["smallest_budget_bytes"]


def test_budgets_are_parts_of_the_peak_or_sizes(tmp_path):
    trace_file.write(comb(), tmp_path / "job.trace")
    arguments = ["report", str(tmp_path / "job.trace"), "--json", "-", "--model", "exact"]
    done = CliRunner().invoke(
        fragment, [*arguments, "--budget", "0.5,1.0", "--budget", "1MiB", "--no-smallest"]
    )
    _, *rows = json.loads(done.stdout)["traces"][0]["rows"]
    assert [row["budget_bytes"] for row in rows] == [128 * KIB, 256 * KIB, KIB * KIB]
    assert [row["completed"] for row in rows] == [False, True, True]
    assert [row["smallest_budget_bytes"] for row in rows] == [None] * 3


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--model", "pitorch", "there is no model 'pitorch' for --model; allowed: all, none, ours"),
        ("--budget", "much", "no size or ratio in budget 'much'"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(tmp_path, option, value, message):
    trace_file.write(comb(), tmp_path / "job.trace")
    done = CliRunner().invoke(fragment, ["report", str(tmp_path / "job.trace"), option, value])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
