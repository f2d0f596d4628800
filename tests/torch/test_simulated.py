"""One policy, two callers: a job's log, simulated on the heap, makes the job's own decisions.

Needs torch and the core. Jobs run in processes of their own, as users start them.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
pytest.importorskip(
    "dtr_alloc._core", reason="the core is not built here (pip install -e .)", exc_type=ImportError
)

from harness import fix_costs

from dtr_alloc import oplog
from dtr_alloc.simulation import presets, simulate

ROOT = Path(__file__).resolve().parent.parent.parent

JOB = """
import json
import torch
from torch import nn
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.oplog import recorder
from dtr_alloc.torch import api

torch.set_num_threads(1)
recorder.watch_decisions(api._runtime.engine, True)
torch.manual_seed(0)
layers = []
for _ in range(10):
    layers += [nn.LayerNorm(64), nn.Linear(64, 96), nn.GELU()]
    layers += [nn.Linear(96, 64), nn.ReLU(inplace=True)]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
x, gradient = torch.randn(256, 64), torch.ones(256, 64)
for _ in range(2):
    optimizer.zero_grad()
    model(x).backward(gradient)
    optimizer.step()
print(json.dumps(recorder.take_decisions(api._runtime.engine)))
"""


def run_job(folder, **environ):
    """Runs the job with costs that are kept from run to run; returns its decisions and stats."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DTR_ALLOC_")}
    keep = {key: os.environ[key] for key in ("DTR_ALLOC_CACHE", "CXX") if key in os.environ}
    (folder / "job.py").write_text(JOB)
    settings = {"COSTS": "costs.json", "STATS": "stats.json", "LOG": "job.log", "DEVICE": "cpu"}
    result = subprocess.run(
        [sys.executable, "job.py"],
        env={
            **clean,
            **keep,
            **{f"DTR_ALLOC_{name}": value for name, value in {**settings, **environ}.items()},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        },
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), json.loads((folder / "stats.json").read_text())


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder in which the job ran without a budget: its costs, its log and its statistics."""
    folder = tmp_path_factory.mktemp("job")
    run_job(folder, BUDGET="unlimited")
    fix_costs(folder / "costs.json")
    _, stats = run_job(folder, BUDGET="unlimited")
    return folder, oplog.compile_log(folder / "job.log"), stats


def as_the_job_names_them(program, decisions):
    """Evictions for room and repeated operators, in the words of the job's op log: a storage is
    its name and how often it was overwritten, an operator its line."""
    names, lines, versions = [], [], {}  # by tensor; by tensor; by storage
    code, at, line = program.code, 0, 0

    def storage(name):
        return program.names[name].split("v")[0]

    while at < len(code):
        kind = code[at]
        if kind == oplog.CONSTANT:
            names.append((storage(code[at + 1]), 0))
            lines.append(None)
            at += 3
        elif kind in (oplog.CALL, oplog.MUTATE, oplog.EFFECT):
            args = code[at + 3 : at + 3 + code[at + 2]]
            at += 3 + len(args)
            width = 1 if kind == oplog.MUTATE else 3
            for i in range(code[at]):
                entry = code[at + 1 + width * i]
                if kind == oplog.MUTATE:
                    entry = args[max(entry, ~entry)]
                name = storage(entry)
                if kind == oplog.MUTATE:
                    versions[name] = versions.get(name, 0) + 1
                names.append((name, versions.get(name, 0)))
                lines.append(line)
            at += 1 + width * code[at]
            line += 1
        else:
            at += 2 if kind == oplog.RELEASE else 3
    for decision in decisions.split():
        tensor = int(decision[1:])
        if decision[0] == "E":
            yield ("room", *names[tensor])
        elif decision[0] == "R":
            yield ("again", "", lines[tensor])


def test_the_peak_of_the_simulation_is_the_jobs(job):
    _, program, stats = job
    base = simulate.baseline(program, "runtime", "heap")
    assert base.peak_bytes == stats["peak_allocated_bytes"]
    assert simulate.baseline(program, "runtime").peak_bytes == stats["peak_requested_bytes"]


@pytest.mark.parametrize(
    ("heuristic", "ratio"),
    [
        ("marginal", 0.5),
        *(
            pytest.param(heuristic, ratio, marks=pytest.mark.long)
            for heuristic, ratio in (
                *(("marginal", 0.8), ("dtr-eqclass", 0.5), ("dtr-eqclass", 0.8)),
                *(("dtr-full", 0.6), ("lru", 0.6)),
                ("m=size,room=single", 0.7),
            )
        ),
    ],
)
def test_a_job_under_a_budget_does_what_the_simulation_of_its_log_does(job, heuristic, ratio):
    """The same evictions of the same contents and the same operators run again, in order. The log
    is of the run without a budget: it says nothing of any decision."""
    folder, program, stats = job
    budget = int(ratio * stats["peak_allocated_bytes"])
    # What moves cost is measured.
    found, tight = run_job(folder, BUDGET=str(budget), HEURISTIC=heuristic, DEBUG="no-moves")
    run = simulate.run_log(
        program,
        heuristic,
        budget,
        dealloc=presets.parse(heuristic).dealloc,
        semantics="runtime",
        space="heap",
        outputs=False,
        decisions=True,
    )
    assert run.status == "ok"
    expected = list(as_the_job_names_them(program, run.decisions))
    assert [tuple(one) for one in found if one[0] in ("room", "again")] == expected
    assert len(expected) > 20
    assert (run.forced, run.remat_ops) == (tight["evictions"], tight["rematerializations"])


JOBS = """
import gc, json, os, sys
from dataclasses import replace
import torch
import torch._dynamo  # which the first step of an optimizer would import, in each run again
from bench.models import JOBS

import dtr_alloc
from dtr_alloc.simulation.presets import PRESETS
from dtr_alloc.oplog import recorder
from dtr_alloc.torch import api

torch.set_num_threads(1)
gc.disable()  # cycles die at the same place each time


def train(settings):
    if "heuristic" in settings:
        preset = PRESETS[settings["heuristic"]]
        settings["heuristic"] = replace(preset, dealloc=settings.pop("dealloc"))
    with dtr_alloc.session(**settings, device="cpu", costs="costs.json"):
        engine = api._runtime.engine
        recorder.watch_decisions(engine, True)
        job = JOBS[sys.argv[1]](scale=float(sys.argv[2]))
        for step in range(2):
            job.step(step)
        return recorder.take_decisions(engine), dtr_alloc.stats()


for line in sys.stdin:
    if os.fork() == 0:  # each run in a process that has imported all and done nothing yet
        try:
            answer = train(json.loads(line))
        except torch.OutOfMemoryError:
            answer = None
        print(json.dumps(answer), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(
    scope="module",
    params=[
        *(("mlp", 0.5), ("inplace", 1)),
        *(pytest.param((job, 0.5), marks=pytest.mark.long) for job in ("transformer", "lstm")),
    ],
    ids=lambda job: job[0],
)
def trained(request, tmp_path_factory):
    """A job, how to train it, its compiled log and its peak without a budget."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "jobs.py").write_text(JOBS)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DTR_ALLOC_")}
    keep = {key: os.environ[key] for key in ("DTR_ALLOC_CACHE", "CXX") if key in os.environ}
    with subprocess.Popen(
        [sys.executable, "jobs.py", *map(str, request.param)],
        env={**clean, **keep, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def train(**settings):
            process.stdin.write(json.dumps({"log": "tight.log", **settings}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        train(budget="unlimited")
        fix_costs(folder / "costs.json")
        _, stats = train(budget="unlimited", log="job.log")
        program = oplog.compile_log(folder / "job.log")
        yield request.param[0], train, program, stats["peak_allocated_bytes"]
        process.stdin.close()


PRESETS = {
    "mlp": [*((preset, 0.7) for preset in presets.PRESETS), ("lru", 0.5)],
    "transformer": [("marginal", 0.5), ("dtr-full", 0.7), ("dtr-eqclass", 0.5), ("megengine", 0.7)],
    "lstm": [
        ("marginal", 0.5),
        ("dtr-full", 0.7),
        ("dtr-eqclass", 0.5),
        ("random", 0.7),
        ("dtr-local", 0.5),
    ],
    # Under others (msps, estar) a repeated in-place operator needs room in the job, and none in
    # the simulation.
    "inplace": [("dtr-full", 0.7), ("dtr-eqclass", 0.7), ("lru", 0.7)],
}


def test_what_trains_under_a_budget_is_simulated_decision_for_decision(trained):
    job, train, program, peak_bytes = trained
    # Under lazy memory is always full, so it shows that a log knows torch.tensor(0.0) and
    # torch.empty from their first use: mlp and inplace differ from their simulations late in a run.
    policies = ["eager"] if job in ("mlp", "inplace") else ["eager", "lazy"]
    for (heuristic, ratio), dealloc in itertools.product(PRESETS[job], policies):
        budget = int(ratio * peak_bytes)
        found, _ = train(budget=budget, heuristic=heuristic, dealloc=dealloc, debug="no-moves")
        run = simulate.run_log(
            program,
            heuristic,
            budget,
            dealloc=dealloc,
            semantics="runtime",
            space="heap",
            outputs=False,
            decisions=True,
        )
        assert run.status == "ok"
        expected = list(as_the_job_names_them(program, run.decisions))
        made = [tuple(one) for one in found if one[0] in ("room", "again")]
        assert made == expected, (heuristic, ratio, dealloc)
        assert len(expected) > 20
