"""``dtr-alloc suggest`` on jobs of their own, in processes of their own."""

import json
import os
import re
import subprocess
import sys

import pytest

MIB = 2**20
JOB = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU())])
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(2048, 64)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    print("step", step, flush=True)
print("the end")
"""
PARAMETERS = 12 * (64 * 64 + 64) * 4


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.py").write_text(JOB)

    def run(*arguments, **environ):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "DTR_ALLOC_DEVICE": "cpu", **environ},
            capture_output=True,
            text=True,
        )

    return run


def suggested(process):
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout[process.stdout.index("{") :])


COMMAND = ("-m", "dtr_alloc.cli", "suggest", "--json", "-")


def test_the_budget_that_is_advised_does(job):
    process = job(*COMMAND, "job.py", "1000")
    found = suggested(process)
    assert "step 3" in process.stdout
    assert "step 4" not in process.stdout  # ended within it
    held = found["observed"]["held_bytes"]
    assert held["parameters"] == held["gradients"] == PARAMETERS
    assert 2 * PARAMETERS <= held["optimizer states"] < 2.1 * PARAMETERS
    suggestion = found["suggestion"]
    assert suggestion["operators"] > 50
    budgets = [each["budget_bytes"] for each in suggestion["outlooks"]]
    assert budgets == sorted(budgets, reverse=True)
    advised = suggestion["advised"]
    assert advised["later"] <= 1.15
    assert advised["budget_bytes"] < 0.8 * suggestion["peak_bytes"]
    trained = job("job.py", "4", DTR_ALLOC_BUDGET=str(advised["budget_bytes"]))
    assert trained.returncode == 0, trained.stderr
    # The least that was found is not far from what fails.
    least = min(budgets)
    assert job("job.py", "4", DTR_ALLOC_BUDGET=str(int(0.5 * least))).returncode != 0


def test_a_job_without_room_is_seen_under_a_budget(job):
    free = suggested(job(*COMMAND, "job.py", "1000"))["suggestion"]
    budget = int(0.4 * free["peak_bytes"])
    held = suggested(job(*COMMAND, "--budget", str(budget), "job.py", "1000"))
    assert held["observed"]["peak_bytes"] <= budget
    suggestion = held["suggestion"]
    assert abs(suggestion["peak_bytes"] / free["peak_bytes"] - 1) < 0.02
    for asked in (suggestion, free):
        assert asked["outlooks"][0]["share"] == pytest.approx(0.9, abs=0.01)
        assert 1 < asked["outlooks"][0]["first"] < 1.2


def test_a_job_without_an_optimizer_is_seen_to_its_end(job, tmp_path):
    (tmp_path / "job.py").write_text(
        "import torch\nx = torch.randn(1000)\nfor _ in range(50): x = x.sin()\n"
    )
    found = suggested(job(*COMMAND, "job.py"))
    assert found["observed"]["steps"] == 0
    assert found["suggestion"]["peak_bytes"] > 0


def test_a_job_that_fails_gets_no_advice_and_fails(job):
    process = job(*COMMAND, "job.py", "many")
    assert process.returncode == 1
    assert "ValueError" in process.stderr
    assert "{" not in process.stdout


def test_nothing_is_left_in_the_temporary_folder(job, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = job(*COMMAND[:3], "job.py", "1000", TMPDIR=str(folder))
    assert process.returncode == 0, process.stderr
    assert "Advised: DTR_ALLOC_BUDGET=" in process.stdout
    assert list(folder.glob("dtr-alloc-*")) == []


def test_a_script_that_is_not_there_is_named(job):
    process = job(*COMMAND, "absent.py")
    assert process.returncode == 2
    assert "there is no script 'absent.py'" in process.stderr


STEP = """
import json
import torch
import dtr_alloc

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters())
x = torch.randn(1024, 64)

def step():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

advice = dtr_alloc.suggest(step)
assert not dtr_alloc.is_enabled()
found = advice.document()
for text in (str(advice), advice._repr_html_()):
    assert "Advised: " in text
print(json.dumps(found))
"""


def test_a_step_is_suggested_a_budget_for_in_the_job_itself(job, tmp_path):
    """Its model is there before the session."""
    (tmp_path / "step.py").write_text(STEP)
    found = suggested(job("step.py"))
    assert found["observed"]["steps"] == 5
    parameters = 8 * (64 * 64 + 64) * 4
    suggestion = found["suggestion"]
    assert suggestion["held_bytes"]["parameters"] == parameters
    assert suggestion["peak_bytes"] > parameters + 8 * 1024 * 64 * 4
    made = [
        each for each in found["observed"]["fullest"] if each["operator"] == "aten.addmm.default"
    ]
    assert {each["module"] for each in made} >= {str(layer) for layer in range(7)}
    assert all(each["line"].startswith("step.py:") for each in made)


LOGITS = """
import torch

model = torch.nn.Sequential(torch.nn.Embedding(4000, 16), torch.nn.Linear(16, 4000))
optimizer = torch.optim.Adam(model.parameters())
tokens = torch.randint(0, 4000, (512,))
loss = torch.nn.CrossEntropyLoss()
for _ in range(10):
    optimizer.zero_grad()
    loss(model(tokens), tokens).backward()
    optimizer.step()
"""


def test_the_operator_that_needs_the_smallest_budget_is_named(job, tmp_path):
    """Logits, their softmax and its gradient are there at once, after operators of all kinds."""
    (tmp_path / "job.py").write_text(LOGITS)
    limit = suggested(job(*COMMAND, "job.py"))["suggestion"]["limit"]
    assert "log_softmax" in limit["operator"] or "nll_loss" in limit["operator"]
    assert limit["module"] == "CrossEntropyLoss"
    assert limit["line"] == "job.py:10"


BLOCKS = """
import torch
from torch import nn

blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
for _ in range(10):
    x = torch.ones(2048, 64)
    with torch.autocast("cpu", torch.bfloat16, enabled={enabled}):
        for block in blocks:
            x = block(x)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("enabled", [False, True])
def test_other_ways_to_save_memory_are_named(job, tmp_path, enabled):
    (tmp_path / "job.py").write_text(BLOCKS.format(enabled=enabled))
    process = job("-m", "dtr_alloc.cli", "suggest", "job.py")
    assert process.returncode == 0, process.stderr
    words = " ".join(process.stdout.split())
    assert re.search(r"MiB are made in the modules \*; of that torch.utils.checkpoint", words)
    assert ("bfloat16 halves" in words) != enabled
