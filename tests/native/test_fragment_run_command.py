"""``dtr-alloc fragment run``: the table, the JSON, and what it refuses."""

import json
from pathlib import Path

import pytest
from commands import fragment

from dtr_alloc.fragment.models import MIB, MODELS, run_model
from dtr_alloc.traces import trace_file

HISTORY = Path(__file__).parents[1] / "data" / "caching" / "plain-tight-2.13.0.trace"


def call(*arguments, status=0):
    return fragment("run", *arguments, status=status, columns=160)


def test_every_model_is_run_at_every_budget(tmp_path):
    path = tmp_path / "found.json"
    done = call(HISTORY, "--budget", "unlimited", "--budget", "100MiB", "--json", path)
    assert "out of memory at event" in done.output
    rows = json.loads(path.read_text())["runs"]
    assert [(row["model"], row["budget_bytes"]) for row in rows] == [
        (model, budget) for model in MODELS for budget in (None, 100 * MIB)
    ]
    trace = trace_file.read(HISTORY)
    for row in rows:
        expected = run_model(trace, row["model"], row["budget_bytes"])
        assert row["peak_reserved_bytes"] == expected.peak_reserved_bytes
        assert row["failed_event"] == expected.failed_event
        assert row["free_at_worst_bytes"] == sum(expected.holes)


def test_options_go_to_the_models_that_have_them():
    done = call(
        *(HISTORY, "--model", "pytorch,first-fit", "--set", "max_split_bytes=20MiB"),
        *("--smallest", "--json", "-"),
    )
    of_pytorch, of_first_fit = json.loads(done.stdout)["runs"]
    assert (of_pytorch["options"], of_first_fit["options"]) == ({"max_split_bytes": 20 * MIB}, {})
    assert of_first_fit["smallest_budget_bytes"] >= of_first_fit["peak_live_bytes"]


def test_the_model_is_compared_with_what_was_recorded():
    same = call(HISTORY, "--compare", "--model", "pytorch", "--budget", "128MiB", "--json", "-")
    (row,) = json.loads(same.stdout)["runs"]
    assert (row["compared"]["misplaced"], row["compared"]["reserved_errors"]) == (0, 0)
    assert "the same after every event" in same.stderr
    other = call(HISTORY, "--compare", "--model", "pytorch")  # without the budget it had
    assert "off on average" in other.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "bump"), "there is no model 'bump'"),
        (("--set", "page_bytes"), "allowed: NAME=VALUE"),
        (("--model", "first-fit", "--set", "page_bytes=1MiB"), "names none"),
        (("--set", "page_bytes=much"), "--set page_bytes: "),
        (("--set", "roundup_power2_divisions=3"), "allowed: powers of two"),
        (("--compare", "--model", "paging"), "--compare is for pytorch"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments, message):
    done = call(HISTORY, *arguments, status=2)
    assert message in " ".join(done.output.replace("│", " ").split())
