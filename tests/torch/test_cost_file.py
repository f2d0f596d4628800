"""Costs of operators in a file: two runs with it make the same decisions. Needs torch and the core.

Every job is a process of its own, started as a user would start it.
"""

import json
import os

import pytest
from test_jobs import BUDGET, JOB, python, read_stats, run_command

DECISIONS = (
    "evictions",
    "evicted_bytes",
    "rematerializations",
    "clock_seconds",
    "recompute_cost_seconds",
)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def run(folder, name, **environ):
    settings = {"DTR_ALLOC_BUDGET": BUDGET, "DTR_ALLOC_COSTS": "costs.json", **environ}
    result = python("job.py", cwd=folder, DTR_ALLOC_STATS=f"{name}.json", **settings)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout, read_stats(folder / f"{name}.json")


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
    result = run_command(
        "run", "--budget", BUDGET, "--costs", "costs.{rank}.json", "job.py", cwd=job
    )
    assert result.returncode == 0, result.stderr
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


def test_the_file_is_written_also_when_the_job_fails(job):
    (job / "failing.py").write_text(
        JOB.replace("    digest =", "    raise KeyError('lost')\n    #")
    )
    environ = {"DTR_ALLOC_BUDGET": BUDGET, "DTR_ALLOC_COSTS": "costs.json"}
    result = python("failing.py", cwd=job, **environ)
    assert result.returncode == 1
    assert "KeyError: 'lost'" in result.stderr
    assert json.loads((job / "costs.json").read_text())["entries"]


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
    result = python("-c", code, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "0 False\nTrue\n"), result.stderr
    assert not (tmp_path / "costs.json").exists(), "it was written twice"


def test_a_session_without_a_file_knows_nothing_of_an_earlier_one(tmp_path):
    code = (
        "import json, torch, dtr_alloc\n"
        "def session(**settings):\n"
        "    with dtr_alloc.session(budget='64MiB', device='cpu', **settings):\n"
        "        before = dtr_alloc.stats()['clock_seconds']\n"
        "        torch.ones(1000)\n"
        "        return dtr_alloc.stats()['clock_seconds'] - before\n"
        "session(costs='costs.json')\n"
        "document = json.load(open('costs.json'))\n"
        "for entry in document['entries']: entry['cost_ns'] = 10**12\n"
        "json.dump(document, open('costs.json', 'w'))\n"
        "print(session(costs='costs.json') >= 1000, session() >= 1000)\n"
    )
    result = python("-c", code, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "True False\n"), result.stderr


GOOD = {
    "signature": "00000000000000ff",
    "operator": "aten::mm.default",
    "cost_ns": 5,
    "readings": 1,
}
HEAD = {"format": "dtr_alloc costs", "version": 1, "device": "cpu", "entries": []}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("\udcff", "it is not text"),
        ("[]", "its format is not 'dtr_alloc costs'"),
        ({**HEAD, "version": 2}, "its version is 2, not 1"),
        ({**HEAD, "device": "cuda"}, "its costs are of device 'cuda', not 'cpu'"),
        ({**HEAD, "entries": None}, "its entries are not a list of at most 65536"),
        ({**HEAD, "entries": [GOOD, GOOD]}, "entry 1 is damaged or stands there twice"),
        ({**HEAD, "entries": [{**GOOD, "cost_ns": -5}]}, "entry 0 is damaged"),
        ({**HEAD, "entries": [{**GOOD, "cost_ns": 2**40 + 1}]}, "entry 0 is damaged"),
        ({**HEAD, "entries": [{**GOOD, "readings": 1.5}]}, "entry 0 is damaged"),
        ({**HEAD, "entries": [{**GOOD, "signature": "0" * 16}]}, "entry 0 is damaged"),
        ({**HEAD, "entries": [{**GOOD, "signature": "ff"}]}, "entry 0 is damaged"),
        ({**HEAD, "entries": [{**GOOD, "operator": "\ud800"}]}, "entry 0 is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path, text, reason):
    from dtr_alloc.costs import CostFile, CostFileError

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
    from dtr_alloc.costs import CostFile, CostFileError

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CostFileError, match="it is a pipe"):
        CostFile.read(tmp_path / "pipe", "cpu")


def test_a_damaged_file_ends_the_job_with_one_line_and_stays(job):
    (job / "costs.json").write_text("{")
    result = python("job.py", cwd=job, DTR_ALLOC_BUDGET=BUDGET, DTR_ALLOC_COSTS="costs.json")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert str(job / "costs.json") in line
    assert "it is not JSON" in line
    assert (job / "costs.json").read_text() == "{"


def test_after_a_damaged_file_nothing_is_enabled(tmp_path):
    (tmp_path / "costs.json").write_text("{}")
    code = (
        "import torch, dtr_alloc\n"
        "try:\n"
        "    dtr_alloc.enable(budget='64MiB', device='cpu', costs='costs.json')\n"
        "except ValueError as error:\n"
        "    print(type(error).__name__, dtr_alloc.is_enabled())\n"
        "(torch.ones(1000) + 1).sum()\n"
        "dtr_alloc.enable(budget='64MiB', device='cpu', costs='other.json')\n"
        "print(dtr_alloc.is_enabled())\n"
    )
    result = python("-c", code, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "CostFileError False\nTrue\n"), result.stderr
    assert (tmp_path / "costs.json").read_text() == "{}"
    assert (tmp_path / "other.json").exists()


def test_a_file_that_cannot_be_written_is_a_line_and_not_a_failure(job):
    (job / "folder").write_text("")
    result = python("job.py", cwd=job, DTR_ALLOC_BUDGET=BUDGET, DTR_ALLOC_COSTS="folder/costs.json")
    assert result.returncode == 2, "a path below a file cannot be read, either"
    code = (
        "import os, torch, dtr_alloc\n"
        "dtr_alloc.enable(budget='64MiB', device='cpu', costs='new/costs.json')\n"
        "open('new', 'w').close()\n"
        "torch.ones(1000)\n"
    )
    result = python("-c", code, cwd=job)
    assert result.returncode == 0
    assert result.stderr.startswith("dtr_alloc: cannot write DTR_ALLOC_COSTS: ")
