"""One policy, two callers: a job's log, simulated on the heap, makes the job's own decisions."""

import itertools
import json
import subprocess
import sys

import pytest
from harness import environment, fix_costs

from dtr_alloc import oplog
from dtr_alloc.oplog.steps import instructions
from dtr_alloc.simulation import presets, simulate


def as_the_job_names_them(program, decisions):
    """Evictions for room and repeated operators, in the words of the job's op log: a storage is
    its name and how often it was overwritten, an operator its line."""
    names, lines, versions = [], [], {}  # by tensor; by tensor; by storage
    line = 0

    def storage(name):
        return program.names[name].split("v")[0]

    for kind, *numbers in instructions(program):
        if kind == oplog.CONSTANT:
            names.append((storage(numbers[0]), 0))
            lines.append(None)
        elif kind in (oplog.CALL, oplog.MUTATE, oplog.EFFECT):
            args = numbers[2 : 2 + numbers[1]]
            for entry in numbers[3 + len(args) :: 1 if kind == oplog.MUTATE else 3]:
                of = args[max(entry, ~entry)] if kind == oplog.MUTATE else entry
                name = storage(of)
                versions[name] = versions.get(name, 0) + (kind == oplog.MUTATE)
                names.append((name, versions[name]))
                lines.append(line)
            line += 1
    for decision in decisions.split():
        tensor = int(decision[1:])
        if decision[0] == "E":
            yield ("room", *names[tensor])
        elif decision[0] == "R":
            yield ("again", "", lines[tensor])


JOBS = """
import gc, json, os, sys
from dataclasses import replace
import torch
import torch._dynamo  # which the first step of an optimizer would import, in each run again
from bench.models import JOBS

import dtr_alloc
from dtr_alloc.simulation import presets
from dtr_alloc.core import ffi, lib
from dtr_alloc.torch import api

gc.disable()  # cycles die at the same place each time


class Normalized:
    def __init__(self, scale):
        torch.manual_seed(0)
        layers = []
        for _ in range(10):
            layers += [torch.nn.LayerNorm(64), torch.nn.Linear(64, 96), torch.nn.GELU()]
            layers += [torch.nn.Linear(96, 64), torch.nn.ReLU(inplace=True)]
        self.model = torch.nn.Sequential(*layers)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True)
        self.x, self.gradient = torch.randn(256, 64), torch.ones(256, 64)

    def step(self, i):
        self.optimizer.zero_grad()
        self.model(self.x).backward(self.gradient)
        self.optimizer.step()


JOBS["normalized"] = Normalized


def decisions(engine):
    # In the words of the op log.
    buffer, count = ffi.NULL, lib.dtr_decisions_drain(engine, ffi.NULL, 0)
    if count:
        buffer = ffi.new("int64_t[]", count)
        assert lib.dtr_decisions_drain(engine, buffer, count) == count
    flat = iter(ffi.unpack(buffer, count) if count else ())
    for kind, a, b in zip(flat, flat, flat, strict=True):
        if kind == lib.DTR_DECISION_RECOMPUTED:
            yield "again", "", a
        else:
            yield "room" if kind == lib.DTR_DECISION_ROOM else "other", f"x{a}", b


def train(settings):
    if "heuristic" in settings:
        heuristic = presets.parse(settings["heuristic"])
        settings["heuristic"] = replace(heuristic, dealloc=settings.pop("dealloc"))
    with dtr_alloc.session(**settings, device="cpu", costs="costs.json"):
        engine = api.active().engine
        lib.dtr_decisions_set(engine, True)
        job = JOBS[sys.argv[1]](scale=float(sys.argv[2]))
        for step in range(2):
            job.step(step)
        return list(decisions(engine)), {**dtr_alloc.stats()}


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
        *(("normalized", 1), ("mlp", 0.5), ("inplace", 1)),
        *(pytest.param((job, 0.5), marks=pytest.mark.long) for job in ("transformer", "lstm")),
    ],
    ids=lambda job: job[0],
)
def trained(request, tmp_path_factory):
    """A job, how to train it, its compiled log and its counters without a budget."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "jobs.py").write_text(JOBS)
    with subprocess.Popen(
        [sys.executable, "jobs.py", *map(str, request.param)],
        env=environment(),
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
        yield request.param[0], train, program, stats
        process.stdin.close()


PRESETS = {
    "normalized": [
        *((heuristic, ratio) for heuristic in ("marginal", "dtr-eqclass") for ratio in (0.5, 0.8)),
        *(("dtr-full", 0.6), ("lru", 0.6), ("m=size,room=single", 0.7)),
    ],
    "mlp": [*((preset, 0.7) for preset in presets.PRESETS), ("lru", 0.5)],
    "transformer": [("marginal", 0.5), ("dtr-full", 0.7), ("dtr-eqclass", 0.5), ("megengine", 0.7)],
    "lstm": [
        *(("marginal", 0.5), ("dtr-full", 0.7), ("dtr-eqclass", 0.5), ("random", 0.7)),
        ("dtr-local", 0.5),
    ],
    # Under others (msps, estar) a repeated in-place operator needs room in the job, and none in
    # the simulation.
    "inplace": [("dtr-full", 0.7), ("dtr-eqclass", 0.7), ("lru", 0.7)],
}


def test_what_trains_under_a_budget_is_simulated_decision_for_decision(trained):
    """The same evictions of the same contents and the same operators run again, in order. The log
    is of the run without a budget: it says nothing of any decision."""
    job, train, program, stats = trained
    peak_bytes = stats["peak_allocated_bytes"]
    if job == "normalized":
        assert simulate.baseline(program, "runtime", "heap").peak_bytes == peak_bytes
        requested = simulate.baseline(program, "runtime")
        assert requested.peak_bytes == stats["peak_requested_bytes"]
    # Under lazy memory is always full, so it shows that a log knows torch.tensor(0.0) and
    # torch.empty from their first use: mlp and inplace differ from their simulations late in a run.
    policies = ["eager", "lazy"] if job in ("transformer", "lstm") else ["eager"]
    for (heuristic, ratio), dealloc in itertools.product(PRESETS[job], policies):
        budget = int(ratio * peak_bytes)
        # What moves cost is measured.
        settings = {"heuristic": heuristic, "dealloc": dealloc, "debug": "no-moves"}
        found, tight = train(budget=budget, **settings)
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
        assert (run.forced, run.remat_ops) == (tight["evictions"], tight["rematerializations"])
