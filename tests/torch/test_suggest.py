"""``dtr-alloc suggest`` on jobs of their own, in processes of their own."""

import json
import re
import time

import pytest
import torch
from harness import MIB, command, fix_costs, python, told_by

import dtr_alloc
from bench import models

JOB = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU())])
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
x = torch.randn(2048, 64)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    extremes = [(p.grad.min().item(), p.grad.max().item()) for p in model.parameters()]
    print("step", step, flush=True)
print("the end")
"""
PARAMETERS = 12 * (64 * 64 + 64) * 4


@pytest.fixture
def job(tmp_path):
    """Runs python where job.py is the job."""
    (tmp_path / "job.py").write_text(JOB)

    def run(*arguments, **options):
        return python(*arguments, cwd=tmp_path, COLUMNS="100", **options)

    return run


@pytest.fixture
def asked(job, tmp_path):
    """Of a job's code: what is said, on one line, and the document."""

    def ask(code=JOB, *arguments, options=(), **settings):
        (tmp_path / "job.py").write_text(code)
        (folder := tmp_path / "temporary").mkdir(exist_ok=True)
        line = ("suggest", "--json", "found.json", *options, "job.py", *arguments)
        done = command(*line, cwd=tmp_path, COLUMNS="100", TMPDIR=str(folder), **settings)
        assert max(map(len, done.stdout.splitlines())) <= 100
        assert list(folder.glob("dtr-alloc-*")) == []
        words = " ".join(done.stdout.split())
        return words, json.loads((tmp_path / "found.json").read_text())

    return ask


@pytest.fixture
def costs(job, tmp_path):
    """The environment in which the job's operators cost the same on every machine."""
    file = tmp_path / "costs.json"
    job("job.py", "3", budget="unlimited", costs=str(file))
    fix_costs(file)
    return {"costs": str(file)}


LOOP = """
import torch
from torch import nn
model = nn.Sequential({model})
optimizer = torch.optim.{optimizer}
for _ in range(10):
    optimizer.zero_grad()
    {loss}.backward()
    optimizer.step()
"""


def loop(model, loss, optimizer="SGD(model.parameters(), lr=0.1)"):
    return LOOP.format(model=model, loss=loss, optimizer=optimizer)


def squares(batch, width):
    return f"model(torch.randn({batch}, {width})).square().mean()"


def test_the_budget_that_is_advised_does(job, asked, costs):
    words, found = asked(JOB, "1000", **costs)
    assert "step 7" in words
    assert "step 8" not in words  # ended within it: five were recorded, four timed
    assert "Advised: DTR_ALLOC_BUDGET=" in words
    assert (
        "Only the first 9 steps were seen. What comes later may need more: an evaluation" in words
    )
    assert re.search(r"\(1\.\d\d, (with a plan that was found and played|without a plan)\)", words)
    held = found["observed"]["held_bytes"]
    assert held["parameters"] == held["gradients"] == PARAMETERS
    assert 2 * PARAMETERS <= held["optimizer states"] < 2.1 * PARAMETERS
    suggestion = found["suggestion"]
    assert suggestion["operators"] > 50
    budgets = [each["budget_bytes"] for each in suggestion["outlooks"]]
    assert budgets == sorted(budgets, reverse=True)
    least, most = (pick(found["observed"]["step_seconds"]) for pick in (min, max))
    for each in suggestion["outlooks"]:
        assert 0.9 * least <= each["seconds"][0] <= most * (each["first"] or each["later"])
        assert each["seconds"][1] > most
    advised = suggestion["advised"]
    assert advised["later"] <= 1.15
    assert advised["budget_bytes"] < 0.8 * suggestion["peak_bytes"]
    job("job.py", "4", budget=str(advised["budget_bytes"]))
    # The least that was found is not far from what fails.
    job("job.py", "4", status=1, budget=str(int(0.5 * min(budgets))))


def test_a_job_without_room_is_seen_under_a_budget(asked, costs):
    free = asked(JOB, "1000", **costs)[1]["suggestion"]
    budget = int(0.4 * free["peak_bytes"])
    _, held = asked(JOB, "1000", options=("--budget", budget), **costs)
    assert held["observed"]["peak_bytes"] <= budget
    assert held["observed"]["step_seconds"] == []  # of a step without a budget nothing is known
    assert all(each["seconds"] is None for each in held["suggestion"]["outlooks"])
    suggestion = held["suggestion"]
    assert abs(suggestion["peak_bytes"] / free["peak_bytes"] - 1) < 0.02
    for each in (suggestion, free):
        assert each["outlooks"][0]["share"] == pytest.approx(0.9, abs=0.01)
        assert 1 < each["outlooks"][0]["first"] < 1.2


INFERENCE = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
with torch.no_grad():
    for _ in range(12):
        model(torch.randn(2048, 64)).sum().item()
"""


def test_a_job_without_an_optimizer_is_seen_to_its_end(asked):
    words, found = asked(INFERENCE)
    assert "operators that are repeated at the end count as one" in words
    assert found["observed"]["steps"] == 0
    suggestion = found["suggestion"]
    assert 10 <= suggestion["operators"] <= 12
    # A layer's argument and result, and the parameters.
    assert suggestion["outlooks"][-1]["budget_bytes"] >= 2 * 2048 * 64 * 4


@pytest.mark.parametrize(
    "code",
    ["x = torch.randn(1000); raise SystemExit(0)", "x = [torch.randn(1000) for _ in range(200)]"],
)
def test_nothing_is_advised_to_a_job_of_which_no_step_was_seen(asked, code):
    words, found = asked(f"import torch; {code}\n")
    assert "No step of an optimizer was seen" in words
    assert "Advised" not in words
    assert "a batch" not in words
    assert found["suggestion"]["outlooks"] == []


def test_steps_of_which_none_repeats_another_are_said_to_be_so(asked):
    assert "Steps seen: 2; it takes three" in asked(JOB, "2")[0]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--steps", "2", "job.py", "1000"), 2, "x>=3"),
        (("job.py", "many"), 1, "ValueError"),
        (("absent.py",), 2, "there is no script 'absent.py'"),
    ],
    ids=["too few steps", "a job that fails", "no script"],
)
def test_what_gets_no_advice_fails(job, tmp_path, arguments, status, words):
    failed = command("suggest", "--json", "-", *arguments, cwd=tmp_path, status=status)
    assert words in failed.stderr
    assert "{" not in failed.stdout


def test_the_advised_setting_of_a_tiny_job_is_as_large_as_was_played(asked, job):
    words, found = asked(loop("*(nn.Linear(16, 16) for _ in range(8))", squares(512, 16)))
    setting = re.search(r"DTR_ALLOC_BUDGET=(\d+\.\d)MiB", words)
    suggestion = found["suggestion"]
    over = float(setting[1]) * MIB - suggestion["advised"]["budget_bytes"]
    assert 0 <= over < 0.1 * MIB
    kinds = suggestion["at_peak"]["kinds"]
    assert kinds["batches"] == 512 * 16 * 4
    assert sum(kinds.values()) == suggestion["peak_bytes"]
    job("job.py", budget=f"{setting[1]}MiB")


def test_a_budget_is_not_for_a_job_that_parameters_fill(asked):
    layers = "*(nn.Linear(256, 256) for _ in range(4))"
    words, document = asked(loop(layers, squares(8, 256), "Adam(model.parameters())"))
    assert "a budget is not for this job" in words
    assert "Advised" not in words
    found = document["suggestion"]
    # Adam without fused makes a temporary or two of the size of a parameter.
    parameter = 256 * 256 * 4
    assert parameter <= found["at_peak"]["optimizer_bytes"] < 4 * parameter
    assert "with fused=True make nothing" in words
    by_fused = loop(layers, squares(8, 256), "Adam(model.parameters(), fused=True)")
    fused = asked(by_fused)[1]["suggestion"]
    assert fused["at_peak"]["optimizer_bytes"] < 1024
    assert found["at_peak"]["fused_peak_bytes"] == pytest.approx(fused["peak_bytes"], rel=0.01)


def test_what_is_never_evicted_is_named_with_its_line_and_the_reason(asked):
    given = "[x := model[0](torch.randn(2048, 64)).tanh(), x.detach().numpy()]"
    code = loop("*(nn.Linear(64, 64) for _ in range(2))", "model[1](x).square().mean()")
    code = code.replace("    optimizer.zero_grad()\n", f"    optimizer.zero_grad(); {given}\n")
    words, _ = asked(code)
    assert "its address was given away: 512.00 KiB by aten.tanh.default (job.py:7)" in words


def document_of_a_step():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    model.register_buffer("counted as a parameter", model[0].weight.detach())
    model.register_buffer("without a storage", torch.eye(64).to_sparse())
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.randn(1024, 64)

    def step():
        time.sleep(1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    advice = dtr_alloc.suggest(step)
    assert not dtr_alloc.is_enabled()
    assert all("Advised: " in text for text in (str(advice), advice._repr_html_()))
    return advice.document()


def peaks_of_a_job_that_keeps_the_past():
    """The one that suggest() observed, and that of each step."""
    jobs, peaks = [], []

    def step():
        if not jobs:
            jobs.append(models.JOBS["inplace"]())
        jobs[0].step(len(peaks))
        peaks.append(dtr_alloc.stats()["peak_allocated_bytes"])

    found = dtr_alloc.suggest(step).document()
    return found["observed"]["peak_bytes"], peaks


def test_what_is_timed_is_not_what_is_recorded():
    """Each step of this job leaves a history of its buffers, until that is too long."""
    peak, peaks = told_by(peaks_of_a_job_that_keeps_the_past)
    assert peak == peaks[4] < peaks[-1]


def test_a_step_is_suggested_a_budget_for_in_the_job_itself():
    """Its model is there before the session. A step takes the processor time of its thread."""
    found = told_by(document_of_a_step)
    times = found["observed"]["step_seconds"]
    assert len(times) == 4
    assert 0 < min(times) <= max(times) < 1
    assert found["observed"]["steps"] == 5
    parameters = 8 * (64 * 64 + 64) * 4
    suggestion = found["suggestion"]
    held = suggestion["held_bytes"]
    assert (held["parameters"], held["buffers"]) == (parameters, 0)
    assert suggestion["peak_bytes"] > parameters + 8 * 1024 * 64 * 4
    made = [
        each for each in found["observed"]["fullest"] if each["operator"] == "aten.addmm.default"
    ]
    assert {each["module"] for each in made} >= {str(layer) for layer in range(7)}
    assert all(each["line"].startswith("test_suggest.py:") for each in made)


def test_the_operator_that_needs_the_smallest_budget_is_named(asked):
    """Logits, their softmax and its gradient are there at once, after operators of all kinds."""
    loss = "loss(model(tokens), tokens)"
    code = loop("nn.Embedding(4000, 16), nn.Linear(16, 4000)", loss, "Adam(model.parameters())")
    given = "tokens, loss = torch.randint(0, 4000, (512,)), nn.CrossEntropyLoss()\n"
    words, document = asked(code.replace("optimizer =", f"{given}optimizer ="))
    assert "Sharding" not in words  # a tenth is little, although no budget may help
    limit = document["suggestion"]["limit"]
    assert "log_softmax" in limit["operator"] or "nll_loss" in limit["operator"]
    assert limit["module"] == "CrossEntropyLoss"
    assert limit["line"] == "job.py:9"


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


def test_an_optimizer_for_each_parameter_makes_no_more_steps(asked):
    code = loop("nn.Linear(64, 64)", squares(64, 64), "SGD([p]) for p in model.parameters()]")
    code = code.replace("optimizer = ", "optimizers = [").replace(
        "    optimizer.", "    for optimizer in optimizers: optimizer."
    )
    assert asked(f"{code}    print('trained')\n")[0].count("trained") == 8  # the ninth ends it


@pytest.mark.parametrize("enabled", [False, True])
def test_other_ways_to_save_memory_are_named(asked, enabled):
    words, _ = asked(BLOCKS.format(enabled=enabled))
    assert ("bfloat16 halves" in words) != enabled
    # Of each block the result is kept, and of one what GELU reads, of as many bytes.
    kept, made = re.search(
        r"checkpoint around each of the modules \* keeps (\S+) MiB of the (\S+) MiB", words
    ).groups()
    assert float(kept) == pytest.approx(float(made) * 9 / 16, rel=0.1)


def keeping(what):
    loss = "(loss := nn.functional.mse_loss(model(x), x))"
    code = loop("nn.Linear(64, 64)", loss, "Adam(model.parameters())")
    code = code.replace("optimizer =", "x, losses = torch.randn(512, 64), []\noptimizer =")
    return f"{code}    losses.append({what})\n"


def test_what_each_step_leaves_behind_is_named(asked):
    words, document = asked(keeping("loss.detach()"))
    (left,) = document["suggestion"]["left"]
    assert (left["made_by"]["operator"], left["size_bytes"]) == ("aten.mse_loss.default", 512 * 256)
    assert "Each step leaves 128.00 KiB more allocated than the one before" in words
    assert "Nothing is advised to a job that grows." in words
    assert "Advised:" not in words
    assert "a batch" not in words
    assert (document["suggestion"]["advised"], document["suggestion"]["outlooks"]) == (None, [])
    words, document = asked(keeping("loss.item()"))
    assert document["suggestion"]["left"] == []
    assert "Each step leaves" not in words
    assert "a job that grows" not in words
