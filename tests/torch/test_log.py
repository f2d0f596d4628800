"""A job's op log says what it did, and no more depends on the budget than the times."""

import gc
import itertools
import re
from collections import Counter
from functools import partial

import pytest
import torch
from harness import command, python
from native_fixtures import on_threads

import dtr_alloc
from bench.models import JOBS
from dtr_alloc import oplog
from dtr_alloc.simulation import simulate
from dtr_alloc.torch import api

SCALES = {"mlp": 0.5, "transformer": 0.5, "inplace": 1, "lstm": 0.5}


def run_code(code, folder, **options):
    (folder / "job.py").write_text(code)
    return python("job.py", cwd=folder, **options)


def without_times(path):
    """The lines of a log, times left out."""
    return [re.sub(rb'"TIME":"\d+"', b'"TIME"', oplog.to_line(i)) for i in oplog.read(path)]


def lines(path):
    """The number of lines of each instruction in a log that compiles."""
    oplog.compile_log(path)
    return Counter(map(type, oplog.read(path)))


class Finished:
    """A job that ran two steps with a log, in a session of its own."""

    def __init__(self, name, folder, **settings):
        self.name = name
        self.log = folder / "job.log.gz"
        gc.collect()
        gc.disable()  # when cycles die must not depend on what this process did before
        try:
            with dtr_alloc.session(log=self.log, device="cpu", **settings):
                before = dtr_alloc.stats()["requested_bytes"]  # by what other tests left
                job = JOBS[name](scale=SCALES[name])
                for step in range(2):
                    job.step(step)
                self.losses = [loss.item() for loss in job.losses]
                self.stats = dict(dtr_alloc.stats())
                self.held = self.stats["requested_bytes"] - before
        finally:
            gc.enable()


@pytest.fixture(scope="module", params=SCALES)
def unlimited(request, tmp_path_factory):
    return Finished(request.param, tmp_path_factory.mktemp(request.param))


def computed(path):
    """The operators in a log that compiles, without views, and the storages that they read."""
    oplog.compile_log(path)
    return [
        (line.name, [name.split("v")[0] for name in line.args])
        for line in oplog.read(path)
        if isinstance(line, oplog.Mutate)
        or (isinstance(line, oplog.Call) and "v" not in line.result[0])
    ]


def bytes_at_the_end(path):
    """What a log's tensors hold that were not released, and constants that the engine keeps."""
    return simulate.run_log(oplog.compile_log(path), semantics="runtime").end_bytes


class TestAJob:
    """That a log has all operators is seen by its simulation (test_simulated.py)."""

    def test_what_was_not_released_is_what_it_holds(self, unlimited):
        assert bytes_at_the_end(unlimited.log) == unlimited.held

    def test_a_tight_budget_changes_nothing_but_times(self, unlimited, tmp_path):
        budget = int(unlimited.stats["peak_requested_bytes"] * 0.75)
        tight = Finished(unlimited.name, tmp_path, budget=budget)
        assert tight.stats["rematerializations"] > 10
        assert tight.losses == unlimited.losses
        assert without_times(tight.log) == without_times(unlimited.log)

    def test_a_range_of_steps_begins_with_constants_and_has_those_steps(self, unlimited, tmp_path):
        found = []
        for step in ("1", "2"):
            (tmp_path / step).mkdir()
            part = Finished(unlimited.name, tmp_path / step, log_steps=step)
            found += computed(part.log)
        whole = computed(unlimited.log)
        assert len(whole) - 1 <= len(found)  # one follows the last step
        assert found == whole[: len(found)]
        begin = list(itertools.islice(oplog.read(part.log), 20))
        assert set(map(type, begin)) == {oplog.Constant, oplog.Memory}
        of_all = {i.name for i in oplog.read(unlimited.log) if isinstance(i, oplog.Memory)}
        assert {i.name for i in begin} <= of_all


SHORT_JOB = """
import os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    {at_each_step}
print(model.weight.sum().item())
"""


def short_job(at_each_step=""):
    return SHORT_JOB.format(at_each_step=at_each_step)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """What the short job prints, and its log."""
    folder = tmp_path_factory.mktemp("short")
    result = run_code(short_job(), folder, log="job.log")
    assert result.stderr == ""
    return result.stdout, without_times(folder / "job.log")


def test_the_command_line_logs_too(short, tmp_path):
    (tmp_path / "job.py").write_text(short_job())
    options = ("--log", "new/job-{pid}.log.xz", "--log-steps", "2..3")
    assert command("run", *options, "job.py", cwd=tmp_path).stdout == short[0]
    (path,) = (tmp_path / "new").iterdir()
    program = oplog.compile_log(path)
    steps = [program.operator_names[i] for i in program.operators]
    assert steps.count("aten.addmm.default") == 2
    # It fills parameters.
    filling = [line for line in short[1] if b'"aten.uniform_.default"' in line]
    assert filling
    assert all(b'"EFFECT"' in line for line in filling)


@pytest.mark.parametrize(
    "name",
    [
        "job.log",
        "job.log.xz",
        *(pytest.param(f"job.log.{kind}", marks=pytest.mark.long) for kind in ("gz", "bz2")),
    ],
)
def test_a_job_that_is_killed_leaves_what_it_has_written(tmp_path, name):
    killed = short_job("if step == 2: os.kill(os.getpid(), 9)")
    run_code(killed, tmp_path, status=-9, log=name)
    assert lines(tmp_path / name)[oplog.Mutate] > 0


def test_a_forked_child_and_a_process_that_the_job_starts_leave_its_log_alone(short, tmp_path):
    others = """
    if step == 1:
        child = os.fork()
        if child == 0:
            model(torch.ones(7, 64)).sum().backward()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    if step == 2:
        import subprocess
        code = "import torch; print(torch.ones(64, 64).sum().item())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "4096.0\\n"
        assert "job.log is being written by another process" in done.stderr
    """
    result = run_code(short_job(others.strip()), tmp_path, log="job.log")
    assert result.stdout == short[0]
    assert without_times(tmp_path / "job.log") == short[1]


def test_a_full_disk_ends_the_log_and_not_the_job(short, tmp_path):
    # A limit on the size of files stands for the disk.
    full = (
        "import resource, signal; "  # on one line, as the log has numbers of lines
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    )
    result = run_code(full + short_job(), tmp_path, log="job.log")
    assert result.stdout == short[0]
    assert re.fullmatch(
        r"dtr_alloc: cannot write DTR_ALLOC_LOG \(job\.log\) to its end: .*File too large\n",
        result.stderr,
    )
    text = (tmp_path / "job.log").read_bytes()
    assert text.endswith(b"}\n")
    assert without_times(tmp_path / "job.log") == short[1][: text.count(b"\n") - 2]


class TestASession:
    def test_views_have_names_until_their_storage_is_overwritten(self, tmp_path):
        with dtr_alloc.session(log=tmp_path / "job.log", device="cpu"):
            x = torch.ones(64, 64)
            y = x.t()[:32] * 2
            parts = x.split(32)
            x.add_(1)
            z = y @ parts[0].t()
            del x, y, z, parts
        assert [
            (line.name, *line.args, *getattr(line, "result", ()))
            for line in oplog.read(tmp_path / "job.log")
            if isinstance(line, oplog.Call | oplog.Mutate)
        ] == [
            ("aten.ones.default", "x1"),
            ("aten.t.default", "x1", "x1v1"),
            ("aten.slice.Tensor", "x1v1", "x1v2"),
            ("aten.mul.Tensor", "x1v2", "x2"),
            ("aten.split.Tensor", "x1", "x1v3", "x1v4"),
            ("aten.add_.Tensor", "x1"),
            # The parts are named anew: they see the new content.
            ("view", "x1", "x1v5"),
            ("aten.t.default", "x1v5", "x1v6"),
            ("aten.mm.default", "x2", "x1v6", "x3"),
        ]

    def test_the_log_after_one_that_was_interrupted_has_nothing_of_it(self, tmp_path, monkeypatch):
        def interrupted(*lines):
            raise KeyboardInterrupt

        path = tmp_path / "job.log"
        with dtr_alloc.session(log=path, device="cpu"):
            x = torch.ones(64, 64)
            log = api.active().log
            log.drain()
            x = x @ x
            with monkeypatch.context() as patch:
                patch.setattr(log._writer, "write", interrupted)
                patch.setattr(log._bridge, "log_operators", interrupted)  # as the log ends for that
                with pytest.raises(KeyboardInterrupt):
                    log.drain()
            x = x.relu()
        oplog.compile_log(path)
        with dtr_alloc.session(log=path, device="cpu"):
            y = torch.ones(64, 64) + 1
        assert lines(path)[oplog.Call] == 2
        del x, y

    def test_threads_share_a_log(self, tmp_path):
        def work(seed):
            x = torch.full((64, 64), float(seed))
            for _ in range(300):
                x = (x.t() * 1.01).clone()

        with dtr_alloc.session(budget="400KiB", log=tmp_path / "job.log", device="cpu"):
            on_threads(*(partial(work, seed) for seed in range(4)))
            dtr_alloc.check_invariants()
        program = oplog.compile_log(tmp_path / "job.log")
        names = Counter(program.operator_names[i] for i in program.operators)
        assert names["aten.mul.Tensor"] == names["aten.clone.default"] == 4 * 300
        assert bytes_at_the_end(tmp_path / "job.log") == 0
