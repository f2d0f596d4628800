"""Runs spread over executors: the same rows in the same order, and what becomes of failures.

Needs the native build.
"""

import itertools
import json
import os
import signal
import sys
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("dtr_alloc._core", reason="the core is not built here", exc_type=ImportError)

from commands import invoke

from bench.studies import study
from bench.studies.__main__ import command as study_command
from dtr_alloc.cli import commands
from dtr_alloc.oplog import compile_log
from dtr_alloc.simulation import executors, simulate
from dtr_alloc.simulation.executors import ExecutorError, Failure, RunsFailed, Workers

DATA = Path(__file__).parents[1] / "data/simrd/synthetic_logs"
LOGS = [str(DATA / f"{name}.log.xz") for name in ("fuzz_a", "unet_skip")]
SWEEP = ("simulate", *LOGS, "--budget", "0.4..1.0:0.3", "--heuristic", "dtr-full,random")
PLAN = simulate.Plan(
    simulate.parse_limits("0.4..1.0:0.3"),
    simulate.parse_heuristics(["dtr-full", "lru"], "simrd"),
)


command = partial(invoke, commands)
studies = partial(invoke, study_command)


def without_time(rows):
    """The bytes of the rows, less what the clock says."""
    for row in rows:
        for name in ("seconds", "search_seconds"):
            row.pop(name, None)
    return "\n".join(map(json.dumps, rows))


def swept(path, *options, arguments=SWEEP):
    done = command(*arguments, "--json", path, *options)
    assert done.exit_code == 0, done.output
    return without_time([json.loads(line) for line in path.read_text().splitlines()])


@pytest.fixture(scope="module")
def programs():
    return [compile_log(log) for log in LOGS]


# ---- any executor ----


class Faulty(Executor):
    """Threads; a worker dies of the n-th task."""

    def __init__(self, at):
        self.threads, self.at, self.count = ThreadPoolExecutor(3), at, itertools.count()

    def submit(self, task, /, *arguments):
        if next(self.count) == self.at:
            future = Future()
            future.set_exception(BrokenProcessPool("its worker is gone"))
            return future
        return self.threads.submit(task, *arguments)


def raises_at(number, error):
    """run_log(), but that the n-th run fails, from 0."""
    runs, run_log = itertools.count(), simulate.run_log

    def run(*arguments, **options):
        if next(runs) == number:
            raise error
        return run_log(*arguments, **options)

    return run


def test_a_run_that_fails_is_named_after_all_others_have_their_rows(programs):
    every = list(simulate.Study(PLAN, programs))
    faulty = Workers(Faulty(at=len(programs) + 4))
    rows = iter(simulate.Study(PLAN, programs, faulty))
    others = [next(rows) for _ in range(len(every) - 1)]
    assert without_time(others) == without_time(every[:4] + every[5:])
    with pytest.raises(RunsFailed) as failed:
        next(rows)
    assert str(failed.value) == (
        f"runs failed:\n  {LOGS[0]}, lru, eager, budget 0.7: BrokenProcessPool: its worker is gone"
    )


def test_a_log_whose_run_without_a_limit_fails_is_named_and_the_others_run(programs, monkeypatch):
    monkeypatch.setattr(simulate, "run_log", raises_at(0, ValueError("no sense")))
    rows = iter(simulate.Study(PLAN, programs))
    logs = [next(rows)["log"] for _ in range(6)]
    assert logs == [LOGS[1]] * 6
    with pytest.raises(RunsFailed, match="without a limit: ValueError: no sense") as failed:
        next(rows)
    assert list(failed.value.failures) == [f"{LOGS[0]}, without a limit"]


@pytest.mark.parametrize(("error", "status"), [(OSError("gone"), 1), (ValueError("no sense"), 2)])
def test_the_command_writes_all_other_rows_and_names_the_run(tmp_path, monkeypatch, error, status):
    checks = 2  # of the combination, with no log
    monkeypatch.setattr(simulate, "run_log", raises_at(checks + len(LOGS) + 3, error))
    done = command(*SWEEP, "--jobs", 1, "--json", tmp_path / "rows")
    assert done.exit_code == status
    assert len((tmp_path / "rows").read_text().splitlines()) == 11
    (line,) = [line for line in done.output.splitlines() if type(error).__name__ in line]
    assert line.strip() == f"{LOGS[0]}, random, eager, seed 0, budget 0.4: {line.split(': ', 1)[1]}"
    assert "dtr-full, eager" in done.output


def held(shared, number):
    shared.wait()
    return number


def test_what_has_not_begun_is_cancelled_when_nobody_asks_any_more():
    begun = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with Workers(threads).opened(begun, 9) as pool:
            outcomes = pool.outcomes(held, [(number,) for number in range(9)])
            begun.set()
            assert next(outcomes) == 0
            begun.clear()
            later = list(pool._futures)
        assert [future.cancelled() for future in later][1:] == [True] * 7
        begun.set()


def shared_number(shared, number):
    return id(shared), number


@pytest.mark.parametrize("jobs", [1, 3])
def test_processes_share_one_object(jobs):
    shared = {"logs": [1, 2, 3]}
    with Workers(jobs=jobs).opened(shared, 20) as pool:
        found = list(pool.outcomes(shared_number, [(number,) for number in range(20)]))
    assert found == [(id(shared), number) for number in range(20)]  # forked: its address, too


def die(shared, number):
    if number == shared:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_the_death_of_a_process_is_a_failure_with_the_runs_that_it_took_along():
    with Workers(jobs=2).opened(3, 8) as pool:
        found = list(pool.outcomes(die, [(number,) for number in range(8)]))
    assert isinstance(found[3].error, BrokenProcessPool)
    assert {found[at] for at in range(8) if not isinstance(found[at], Failure)} <= set(range(8))


class Elsewhere(ThreadPoolExecutor):
    """A worker with other sources."""

    def submit(self, task, /, version, *arguments):
        return super().submit(task, version + " of yesterday", *arguments)


def test_another_version_in_a_worker_ends_the_study_and_both_are_named(programs):
    with (
        Elsewhere(1) as elsewhere,
        pytest.raises(ExecutorError, match=r"a worker has dtr_alloc .*; allowed: .* of yesterday"),
    ):
        list(simulate.Study(PLAN, programs, Workers(elsewhere)))


def test_a_version_tells_sources_apart(tmp_path, monkeypatch):
    here = executors.code_version()
    (tmp_path / "simulation").mkdir()
    monkeypatch.setattr(executors, "__file__", str(tmp_path / "simulation/executors.py"))
    found = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "module.py").write_text(text)
        executors.code_version.cache_clear()
        found.add(executors.code_version())
    executors.code_version.cache_clear()
    assert len(found | {here}) == 3


def test_reproduce_names_a_study_that_lacks_runs_and_goes_on_with_the_next(tmp_path, monkeypatch):
    def lacks(options):
        raise RunsFailed({"one": OSError("gone")})

    broken = study.Study("broken", "here", lacks, lambda document: {})
    load = study.load
    monkeypatch.setattr(study, "load", lambda name: broken if name == "linear" else load(name))
    done = studies("linear", "memory", "--smoke", "--out", tmp_path)
    assert done.exit_code == 1
    assert "linear: runs failed:\n  one: OSError: gone" in done.output
    assert {path.name for path in tmp_path.glob("*.json")} == {"memory.json"}


# ---- the option ----


PROCESSES = "concurrent.futures:ProcessPoolExecutor"


def test_an_executor_gives_the_bytes_that_processes_give(tmp_path, monkeypatch):
    local = swept(tmp_path / "local", "--jobs", 2)
    assert local.count("\n") == 11
    assert swept(tmp_path / "other", "--executor", PROCESSES) == local
    (tmp_path / "of_user.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def executor(): return ThreadPoolExecutor(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert swept(tmp_path / "own", "--executor", "of_user:executor") == local


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("dask://host:1", 1, "--executor dask://host:1: ValueError: invalid format"),
        ("no_such_module:make", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("os:no_such_name", 1, "AttributeError: module 'os' has no attribute 'no_such_name'"),
        ("os:getcwd", 2, "allowed: an Executor"),
    ],
)
def test_an_executor_that_is_none_is_named_with_the_reason(name, status, reason):
    done = command("simulate", *LOGS, "--executor", name)
    assert done.exit_code == status
    assert reason in " ".join(done.output.split())


def test_jobs_are_for_processes_of_this_machine():
    done = command(*SWEEP, "--executor", PROCESSES, "--jobs", 2)
    assert done.exit_code == 2
    assert "--jobs is for processes of this machine" in done.output
