"""Costs of operators in a file: two runs with it make the same decisions."""

import json
import os

import pytest
import torch
from harness import command, python
from test_jobs import BUDGET, JOB, read_stats

import dtr_alloc
from dtr_alloc.costs import CostFile, CostFileError

DECISIONS = (
    *("evictions", "evicted_bytes", "rematerializations", "clock_seconds"),
    "recompute_cost_seconds",
)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def run(folder, name):
    done = python("job.py", cwd=folder, budget=BUDGET, costs="costs.json", stats=f"{name}.json")
    assert done.stderr == ""
    return done.stdout, read_stats(folder / f"{name}.json")


def test_two_runs_with_the_same_costs_evict_and_rematerialize_the_same(job):
    printed, _ = run(job, "first")
    costs = (job / "costs.json").read_text()
    outputs, stats = zip(*(run(job, name) for name in ("second", "third")), strict=True)
    assert stats[0]["evictions"] > 0
    assert stats[0]["rematerializations"] > 0
    assert [stats[0][name] for name in DECISIONS] == [stats[1][name] for name in DECISIONS]
    assert outputs == (printed, printed)
    assert (job / "costs.json").read_text() == costs, "nothing was measured anew"


def test_the_file_says_what_was_measured(job):
    command("run", "--budget", BUDGET, "--costs", "costs.{rank}.json", "job.py", cwd=job)
    document = json.loads((job / "costs.0.json").read_text())
    head = {key: document[key] for key in ("format", "version", "device")}
    assert head == {"format": "dtr_alloc costs", "version": 1, "device": "cpu"}
    entries = document["entries"]
    assert {"aten::addmm.default", "aten::gelu_backward.default"} <= {
        entry["operator"] for entry in entries
    }
    for entry in entries:
        assert len(entry["signature"]) == 16
        assert entry["cost_ns"] >= 1
        assert entry["readings"] >= 1
    # Of twelve alike layers in four steps; the other calls are not read.
    assert max(e["readings"] for e in entries if e["operator"] == "aten::addmm.default") == 8


def test_what_the_file_lists_is_not_measured_and_the_rest_is_added(job):
    run(job, "first")
    document = json.loads((job / "costs.json").read_text())
    kept = [dict(entry, cost_ns=777) for entry in document["entries"][::2]]
    (job / "costs.json").write_text(json.dumps({**document, "entries": kept}))
    run(job, "second")
    after = json.loads((job / "costs.json").read_text())["entries"]
    assert [entry for entry in after if entry in kept] == kept
    assert len(after) == len(document["entries"])


def test_disable_writes_the_file_and_a_forked_child_does_not(tmp_path):
    code = (
        "import os, sys, torch, dtr_alloc\n"
        "dtr_alloc.enable(budget='64MiB', device='cpu', costs='costs.json')\n"
        "os.makedirs('elsewhere'); os.chdir('elsewhere')\n"
        "x = torch.ones(1000) + 1\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.path.exists('../costs.json'))\n"
        "dtr_alloc.disable()\n"
        "print(os.path.exists('../costs.json'))\n"
        "os.unlink('../costs.json')\n"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "0 False\nTrue\n"
    assert not (tmp_path / "costs.json").exists(), "it was written twice"


def test_a_session_without_a_file_knows_nothing_of_an_earlier_one(tmp_path):
    def clock_of_a_session(**settings):
        with dtr_alloc.session(budget="64MiB", device="cpu", **settings):
            before = dtr_alloc.stats()["clock_seconds"]
            torch.ones(1000)
            return dtr_alloc.stats()["clock_seconds"] - before

    costs = tmp_path / "costs.json"
    clock_of_a_session(costs=costs)
    document = json.loads(costs.read_text())
    for entry in document["entries"]:
        entry["cost_ns"] = 10**12
    costs.write_text(json.dumps(document))
    assert clock_of_a_session(costs=costs) >= 1000 > clock_of_a_session()


GOOD = {
    "signature": "00000000000000ff",
    "operator": "aten::mm.default",
    "cost_ns": 5,
    "readings": 1,
}
HEAD = {"format": "dtr_alloc costs", "version": 1, "device": "cpu", "entries": []}
TEXT = json.dumps(HEAD).replace("[]", "[%s]")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Input data was truncated"),
        ("\udcff", "malformed"),
        ("[]", "Expected `object`, got `array`"),
        ({**HEAD, "version": 2}, "are ['dtr_alloc costs', 2, 'cpu'], not ['dtr_alloc costs', 1"),
        ({**HEAD, "device": "cuda"}, "are ['dtr_alloc costs', 1, 'cuda'], not"),
        (TEXT % ("[" * 980 + "]" * 980), "allowed: a new file"),
        (TEXT % '{"cost_ns": 1e999}', "at `$.entries[0].cost_ns`"),
        (TEXT % ("9" * 5000), "at `$.entries[0]`"),
        ({**HEAD, "entries": [GOOD, GOOD]}, "a signature stands there twice"),
        ({**HEAD, "entries": [GOOD] * 65537}, "it has more than 65536 entries"),
        ({**HEAD, "entries": [{**GOOD, "cost_ns": -5}]}, "not within 1 and 2**40 - at `$.ent"),
        ({**HEAD, "entries": [{**GOOD, "cost_ns": 2**40 + 1}]}, "not within 1 and 2**40"),
        ({**HEAD, "entries": [{**GOOD, "signature": "0" * 16}]}, "a wrong signature or operator"),
        ({**HEAD, "entries": [{**GOOD, "signature": "ff"}]}, "a wrong signature or operator"),
        ({**HEAD, "entries": [{**GOOD, "operator": "\ud800"}]}, "allowed: a new file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path, text, reason):
    path = tmp_path / "costs.json"
    text = text if isinstance(text, str) else json.dumps(text)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CostFileError) as error:
        CostFile.read(path, "cpu")
    assert f"costs is '{path}'; allowed: a new file, or one that dtr_alloc wrote" in str(
        error.value
    )
    assert reason in str(error.value)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CostFileError, match="it is a pipe"):
        CostFile.read(tmp_path / "pipe", "cpu")


def test_a_file_that_cannot_be_written_is_a_line_and_not_a_failure(job):
    (job / "folder").write_text("")
    # A path below a file cannot be read, either.
    python("job.py", cwd=job, status=2, budget=BUDGET, costs="folder/costs.json")
    code = (
        "import os, torch, dtr_alloc\n"
        "dtr_alloc.enable(budget='64MiB', device='cpu', costs='new/costs.json')\n"
        "open('new', 'w').close()\n"
        "torch.ones(1000)\n"
    )
    said = python("-c", code, cwd=job).stderr
    assert said.startswith("dtr_alloc: cannot write DTR_ALLOC_COSTS: ")
