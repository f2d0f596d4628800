"""The report on models: what they make of traces whose values are known."""

import json
from io import StringIO
from pathlib import Path

import made_up_trace
import pytest
from commands import fragment
from rich.console import Console

from dtr_alloc.cli.common import print_table
from dtr_alloc.fragment import report
from dtr_alloc.fragment.models import MIB, MODELS, Prepared
from dtr_alloc.fragment.residency import FREED, STAYED
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
    row = run(Prepared(comb()), "first-fit", smallest=True)
    found = row.measures
    assert found.name == "first-fit"
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
    row = run(Prepared(comb()), "first-fit", 200 * KIB)
    assert not row.measures.completed
    assert row.request_bytes == 64 * KIB
    assert row.measures.worst_event == 3
    assert row.measures.name == "first-fit in 200.00 KiB"
    assert len(row.blocks) == 3
    assert set(row.blocks.end) == {3}


def test_a_run_in_a_budget_that_holds_nothing_has_no_peaks():
    row = run(Prepared(comb()), "first-fit", KIB)
    assert not row.measures.completed
    assert row.measures.peak_live_bytes == 0
    assert row.measures.utilization is None


def from_midjob(*events):
    """As snapshots have it: 12 MiB of memory with two blocks of 4 MiB, and then these events."""
    trace = Trace({"source": "torch", "begins_with_events": [3]})
    trace.add(Kind.SEGMENT_ALLOCATE, address=1 << 30, size_bytes=12 << 20)
    for at in (0, 1):
        trace.add(Kind.ALLOCATE, address=(1 << 30) + (at << 22), size_bytes=4 << 20)
    for kind, at in events:
        trace.add(kind, address=(1 << 30) + (at << 22), size_bytes=4 << 20)
    return trace


@pytest.mark.parametrize(
    ("events", "lost"),
    [([], [4]), ([(Kind.ALLOCATE, 2)], [4, 0]), ([(Kind.FREE, 0), (Kind.FREE, 1)], [4, 8, 12])],
)
def test_what_was_there_when_the_recording_began_is_one_moment(events, lost):
    trace = from_midjob(*events)
    found = report.recorded(trace)
    assert found.measures.mean_lost_bytes == sum(lost) * MIB / len(lost)
    assert found.measures.max_lost_bytes == max(lost) * MIB
    assert len(found.series) == len(lost)
    assert found.measures.counts["events"] == len(events)
    assert found.measures.counts["allocations"] == events.count((Kind.ALLOCATE, 2))


@pytest.mark.parametrize("model", ["first-fit", "dtr"])
def test_what_was_there_when_the_recording_began_is_one_moment_of_a_model(model):
    row = run(Prepared(from_midjob((Kind.FREE, 0), (Kind.FREE, 1))), model)
    lost = [*map(int.__sub__, row.series.reserved_bytes, row.series.live_bytes)]
    assert list(row.series.event) == [2, 3, 4]
    assert row.measures.mean_lost_bytes == sum(lost) / 3
    assert row.measures.max_lost_bytes == max(lost) == 8 * MIB


def test_a_model_that_fails_before_the_recording_begins_is_described_up_to_there():
    row = run(Prepared(from_midjob((Kind.FREE, 0))), "first-fit", 5 * MIB)
    assert not row.measures.completed
    assert (row.measures.peak_live_bytes, row.measures.max_lost_bytes) == (4 * MIB, 0)
    assert list(row.series.event) == [1]


def report_of(trace, tmp_path, *options):
    trace_file.write(trace, tmp_path / "job.trace")
    path = tmp_path / "job.trace"
    done = fragment("report", path, "--no-smallest", "--json", "-", *options, columns=200)
    (found,) = json.loads(done.stdout)["traces"]
    return [row["name"] for row in found["rows"]][1:], found["too_few_events"], done.stderr


def test_a_trace_of_no_or_few_events_says_so_and_ranks_no_models(tmp_path):
    again = [(Kind.FREE, 0), (Kind.ALLOCATE, 0)]
    for events, said in (
        ([], "no history"),
        (again, "2 allocations and frees after a start of 2 blocks"),
    ):
        models, few, shown = report_of(from_midjob(*events), tmp_path)
        assert models == []
        assert said in few
        assert few in " ".join(shown.split())
    assert report_of(from_midjob(*again * 5), tmp_path)[:2] == (list(MODELS), None)
    assert report_of(from_midjob(*again), tmp_path, "--model", "exact")[0] == ["exact"]


def test_a_device_that_holds_memory_and_no_block_has_its_row_and_no_models(tmp_path):
    trace = from_midjob()
    trace.add(Kind.SEGMENT_ALLOCATE, address=1 << 40, size_bytes=2 << 20, device=1)
    trace.add(Kind.OUT_OF_MEMORY, size_bytes=1, device=2)
    _, other = report.reports("job", trace)
    assert other.label == "job, device 1"
    assert (other.rows[0].measures.peak_live_bytes, other.rows[0].holes) == (0, [2 << 20])
    trace_file.write(trace, tmp_path / "job.trace")
    options = ("--model", "exact,pytorch", "--json", "-")
    done = fragment("report", tmp_path / "job.trace", *options)
    assert [len(found["rows"]) for found in json.loads(done.stdout)["traces"]] == [3, 1]


def test_no_model_needs_less_than_the_exact_one(tmp_path):
    trace = made_up_trace.without_segments(made_up_trace.a_life(), device=0)
    trace_file.write(trace, tmp_path / "job.trace")
    done = fragment("report", tmp_path / "job.trace", "--json", "-")
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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_has_all_of_each_number_in_a_narrow_terminal_and_in_a_file(is_terminal):
    part = report.Report("job", comb(), [report.recorded(comb())])
    for model in MODELS:
        part.rows.append(run(Prepared(comb()), model, 600 * MIB, smallest=True))
    table = report.table(part)
    text = StringIO()
    print_table(Console(file=text, width=60, force_terminal=is_terminal, color_system=None), table)
    lines = text.getvalue().splitlines()
    assert "…" not in text.getvalue()
    assert sum("dtr-fixed in" in line for line in lines) == (4 if is_terminal else 1)
    assert (max(map(len, lines)) <= 60) == is_terminal
    words = text.getvalue().split()
    for column in table.columns[1:]:
        assert set(column.cells) <= set(words)
    assert text.getvalue().count("too few") == 1


def test_budgets_are_parts_of_the_peak_or_sizes(tmp_path):
    trace_file.write(comb(), tmp_path / "job.trace")
    options = ("--model", "exact", "--budget", "0.5,1.0", "--budget", "1MiB", "--no-smallest")
    done = fragment("report", tmp_path / "job.trace", "--json", "-", *options)
    _, *rows = json.loads(done.stdout)["traces"][0]["rows"]
    assert [row["budget_bytes"] for row in rows] == [128 * KIB, 256 * KIB, KIB * KIB]
    assert [row["completed"] for row in rows] == [False, True, True]
    assert [row["smallest_budget_bytes"] for row in rows] == [None] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "pitorch"), "there is no model 'pitorch' for --model; allowed: all, none"),
        (("--budget", "much"), "no size or ratio in budget 'much'"),
        (("--set", "page_bytes"), "allowed: NAME=VALUE"),
        (("--model", "first-fit", "--set", "page_bytes=1MiB"), "names none"),
        (("--set", "page_bytes=much"), "--set page_bytes: "),
        (("--set", "segment_addresses=1"), "allowed: NAME=VALUE"),
        (("--model", "pytorch", "--set", "roundup_power2_divisions=3"), "powers of two"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(tmp_path, options, message):
    trace_file.write(comb(), tmp_path / "job.trace")
    done = fragment("report", tmp_path / "job.trace", *options, status=2)
    assert message in " ".join(done.output.replace("│", " ").split())


HISTORY = Path(__file__).parents[1] / "data" / "caching" / "plain-tight-2.13.0.trace"


def models_of(*arguments):
    done = fragment("report", HISTORY, "--no-smallest", "--json", "-", *arguments)
    return json.loads(done.stdout)["traces"][0]["rows"][1:]


def test_options_go_to_the_models_that_have_them():
    models = ("--model", "pytorch,first-fit")
    of_pytorch, of_first_fit = models_of(*models, "--set", "max_split_bytes=20MiB")
    assert (of_pytorch["options"], of_first_fit["options"]) == ({"max_split_bytes": 20 * MIB}, {})
    assert of_pytorch["peak_reserved_bytes"] != models_of(*models)[0]["peak_reserved_bytes"]
