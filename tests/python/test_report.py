"""Statistics are written whole and shown in units that people read. Needs nothing."""

import dataclasses
import json
import os
import pickle
import re
import sys

import pytest
from commands import python

from dtr_alloc import figures, records, report
from dtr_alloc.advise import at_exit
from dtr_alloc.config import Budget, Config

STATS = {"budget_bytes": 2**30, "evictions": 12345, "recompute_seconds": 0.5, "device": "cpu"}


def test_the_file_holds_stats_and_the_facts_of_the_job(tmp_path):
    config = Config(budget=Budget.parse("60%"))
    path = report.write_stats(tmp_path / "new" / "stats.json", STATS, config)
    document = json.loads(path.read_text())
    job = document.pop("job")
    assert document == STATS
    assert job["budget"] == "60%"
    assert job["argv"] == sys.orig_argv
    assert job["peak_resident_bytes"] > 0
    assert set(job) >= {"dtr_alloc", "torch", "python", "pid"}


def test_ranks_and_processes_can_have_their_own_files(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    path = report.write_stats(tmp_path / "{rank}-{pid}.json", STATS)
    assert path.name == f"3-{os.getpid()}.json"


SESSION = {
    **STATS,
    "peak_allocated_bytes": 2**29,
    "steps": 7,
    "step_seconds": 0.25,
    "session_seconds": 20.0,
    "search_seconds": 1.5,
    "total_cost_seconds": 10,
    "recompute_cost_seconds": 2,
    "moves": 3,
    "move_seconds": 1,
    "remaps": 4,
    "contiguity_evictions": 1,
    "out_of_memory_errors": 0,
    "peak_kept_bytes": 2**20,
}


def test_the_figures_come_first_and_all_counters_when_asked_for():
    text = report.render(SESSION)
    for said in ("1.00 GiB", "50% of the budget", "12,345", "0.25 s each", "bytes"):
        assert said in text, said
    assert "all counters" not in text
    assert "by op.mm" in report.render({**SESSION, "by_op": {"mm": 3}}, everything=True)
    assert "[bold]" in report.render({"error": "[bold]"})


@pytest.mark.parametrize(
    ("changed", "limit", "advice"),
    [
        ({"out_of_memory_errors": 2}, "2 allocations failed", "or `dtr-alloc suggest`, says"),
        ({"evictions": 0}, "never reached", "This process evicted nothing: 512.00 MiB"),
        ({"budget_bytes": 2**64 - 1}, "bytes", "There was no budget"),
        ({"peak_kept_bytes": 2**30}, "unevictable memory: 100%", "sharding"),
        ({"contiguity_evictions": 12000}, "fragmentation: at 97%", "costs 45 % of"),
        ({"recompute_cost_seconds": 8}, "bytes", "more than the job's own compute: `dtr"),
        ({"search_seconds": 9.0}, "bytes", "more than the job's own compute: `dtr"),
        (
            {"recompute_cost_seconds": 0, "search_seconds": 0, "move_seconds": 0},
            "bytes",
            "a smaller one",
        ),
    ],
)
def test_it_says_what_limited_the_session_and_what_to_do(changed, limit, advice):
    assert limit in figures.limit({**SESSION, **changed})
    assert advice in figures.advice({**SESSION, **changed})


def test_what_the_budget_costs_is_all_that_is_measured():
    shown = dict(figures.figures({**SESSION, "swap_seconds": 0.5}))
    assert shown["the budget costs"] == "50.0% of the job's own compute (5 s)"
    for part, seconds in {"recomputation": 2, "search": 1.5, "moves": 1, "swaps": 0.5}.items():
        assert shown[f"of that: {part}"] == f"{seconds} s"
    assert shown["Python and recording"].startswith("5 s")


@pytest.mark.parametrize(
    ("counted", "name", "said"),
    [
        (
            {"peak_beyond_bytes": 2**30, "beyond_requests": 1200, "beyond_seconds": 0.003},
            "workspaces beyond the budget",
            "1.00 GiB at most, 1,200 times, for 0.003 s in all",
        ),
        (
            {"rests": 3, "recorded_ops": 1000, "unrecorded_ops": 9000},
            "recorder at rest",
            "90% of the operators, in 3 rests",
        ),
    ],
)
def test_what_happened_is_said_if_it_did(counted, name, said):
    assert name not in dict(figures.figures({**SESSION, "rests": 0}))
    assert dict(figures.figures({**SESSION, **counted}))[name] == said


def test_a_job_that_failed_is_given_no_budget():
    told = {**SESSION, "evictions": 0}
    assert "no budget follows" in figures.advice(told, KeyError("lost"))
    memory = figures.advice({**told, "out_of_memory_errors": 1}, MemoryError())
    assert "Raise the budget" in memory


def a_record():
    zeros = dict.fromkeys((field.name for field in dataclasses.fields(records.Stats)), 0)
    return records.Stats(**zeros | {name: SESSION[name] for name in SESSION if name in zeros})


def test_a_counter_is_an_attribute_and_an_item():
    stats = a_record()
    assert stats.evictions == stats["evictions"] == {**stats}["evictions"] == 12345
    assert json.loads(json.dumps(stats)) == stats == pickle.loads(pickle.dumps(stats))
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.evictions = 1
    for change in (lambda: stats.update(evictions=1), lambda: stats.pop("evictions")):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()


def test_times_can_be_had_by_their_old_names_in_nanoseconds():
    stats = a_record()
    with pytest.deprecated_call(match="total_cost_ns is now total_cost_seconds"):
        assert stats["total_cost_ns"] == 10 * 10**9
    for name in ("evictions_ns", "total_cost", "elsewhere"):
        with pytest.raises(KeyError, match=name):
            stats[name]


def test_a_notebook_shows_the_figures():
    text = a_record()._repr_html_()
    assert "<td>1.00 GiB</td>" in text
    assert "costs 45 % of" in text


def test_in_a_notebook_a_table_is_returned_and_not_shown(monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "1.00 GiB" in report.render(SESSION)
    assert "as it is" in report.console_html(["as it is"], width=80)


def test_the_table_says_what_was_kept_the_largest_first():
    entries = [
        {"size_bytes": 2**30 // n, "operator": "lib.op", "why": "it is so", "line": f"model.py:{n}"}
        for n in range(1, 8)
    ]
    text = report.render({**STATS, "kept": entries}, width=200, everything=True)
    assert "kept: lib.op, as it is so at model.py:1" in text
    assert "model.py:6" not in text
    assert f"{(2**30 // 6 + 2**30 // 7) / 2**20:.2f} MiB" in text.split("kept: others")[1]


def test_what_much_of_the_budget_is_kept_for_is_among_the_figures():
    entries = [
        {"size_bytes": size, "operator": operator, "why": why, "line": "model.py:81"}
        for size, operator, why in (
            (2**28, "lib.op", "it is so"),
            (2**20, "lib.other", "it is not"),
        )
    ]
    text = report.render({**SESSION, "peak_kept_bytes": 2**29, "kept": entries}, width=120)
    assert re.search(r"of that: lib.op, as it is so at model.py:81 .*256.00 MiB", text)
    assert "lib.other" not in text


def test_a_report_goes_to_stderr_or_a_file_or_nowhere(tmp_path, capsys):
    at_exit.write_report(False, STATS)
    assert capsys.readouterr().err == ""
    at_exit.write_report(True, STATS)
    assert "12,345" in capsys.readouterr().err
    at_exit.write_report(tmp_path / "report.txt", STATS)
    assert "12,345" in (tmp_path / "report.txt").read_text()


JOB = """
import os, sys
from dtr_alloc import config
from dtr_alloc.advise import at_exit
at_exit.write_at_exit(config.given_settings().config, lambda: ({"evictions": 5}, None))
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        *(("", 0), ("raise KeyError('lost')", 1), ("os.chdir('/'); sys.exit(3)", 3)),
        ("pid = os.fork(); os.waitpid(pid, 0) if pid else sys.exit(1)", 0),
    ],
)
def test_stats_are_written_at_the_end_however_it_comes(tmp_path, ending, status):
    settings = {"stats": "stats-{pid}.json", "report": "1"}
    result = python("-c", JOB + ending, cwd=tmp_path, status=status, **settings)
    (path,) = tmp_path.glob("stats-*.json")
    assert json.loads(path.read_text())["evictions"] == 5
    assert result.stderr.count("dtr_alloc: budget unlimited") == 1
