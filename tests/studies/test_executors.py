"""Runs spread over executors: the same rows in the same order, and what becomes of failures.

Needs the native build; a Dask cluster needs distributed, and MPI mpi4py and mpiexec.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
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
from dtr_alloc.traces import trace_file
from dtr_alloc.traces.trace import Kind, Trace

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
        for name in ("seconds", "search_seconds", "ns_per_operation"):
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


def test_threads_give_the_rows_of_this_process_in_the_same_order(programs):
    with ThreadPoolExecutor(3) as threads:
        spread = list(simulate.Study(PLAN, programs, Workers(threads)))
    assert without_time(spread) == without_time(list(simulate.Study(PLAN, programs)))


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


def test_only_so_many_failures_are_shown():
    failures = {f"run {number}": OSError("gone") for number in range(25)}
    lines = str(RunsFailed(failures)).splitlines()
    assert len(lines) == 1 + executors.MOST_NAMED + 1
    assert lines[-1].strip() == "and 5 more"


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


# ---- what the option says ----


@pytest.mark.parametrize(
    "text", ["", "ray", "dask", "dask://host", "dask://h:99999", "dask://h:1/x", "dask://u@h:1"]
)
@pytest.mark.parametrize("name", ["simulate", "fragment run"])
def test_what_is_no_executor_is_named_with_what_is(name, text, tmp_path, trace):
    done = command(*name.split(), *(LOGS if name == "simulate" else [trace]), "--executor", text)
    assert done.exit_code == 2
    message = f"--executor: executor is {text!r}; allowed: local, mpi, dask://HOST:PORT"
    assert message in done.output


def test_jobs_are_for_processes_of_this_machine():
    done = command(*SWEEP, "--executor", "dask://host:1", "--jobs", 2)
    assert done.exit_code == 2
    assert "--jobs is for --executor local: dask://host:1 has its own workers" in done.output


@pytest.mark.parametrize(
    ("executor", "package"), [("mpi", "mpi4py.futures"), ("dask://127.0.0.1:1", "distributed")]
)
def test_a_package_that_is_missing_is_named_with_the_extra(monkeypatch, executor, package):
    monkeypatch.setitem(sys.modules, package, None)
    done = command(*SWEEP, "--executor", executor)
    assert done.exit_code == 1
    assert package.split(".")[0] in done.output
    assert "pip install 'dtr-alloc[cluster]'" in done.output


@pytest.fixture
def trace(tmp_path):
    made = Trace()
    for at in range(1, 9):
        made.add(Kind.ALLOCATE, address=4096 * at, size_bytes=4096 - 512 * (at % 3))
    for at in range(1, 9, 2):
        made.add(Kind.FREE, address=4096 * at)
    path = tmp_path / "a.trace"
    trace_file.write(made, path)
    return path


# ---- a Dask cluster ----


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with distributed.LocalCluster(
        n_workers=2, processes=True, threads_per_worker=1, dashboard_address=":0"
    ) as found:
        found.wait_for_workers(2)
        yield found.scheduler_address.replace("tcp://", "dask://")


def test_a_cluster_gives_the_bytes_that_processes_give(tmp_path, cluster):
    local = swept(tmp_path / "local", "--jobs", 2)
    assert swept(tmp_path / "dask", "--executor", cluster) == local
    assert local.count("\n") == 11


def test_a_cluster_gives_the_studies_that_processes_give(tmp_path, cluster):
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("resnet32", "unet"):
        shutil.copy(DATA / "unet_skip.log.xz", logs / f"{name}.log.xz")
    found = {}
    for name, options in {"local": ("--jobs", 2), "dask": ("--executor", cluster)}.items():
        names = ("schedule", "floor")
        done = studies(*(*names, "--smoke", "--logs", logs, "--out", tmp_path / name, *options))
        assert done.exit_code == 0, done.output
        documents = [json.loads((tmp_path / name / f"{one}.json").read_text()) for one in names]
        found[name] = [
            {key: value for key, value in document.items() if key not in ("command", "seconds")}
            for document in documents
        ]
    assert json.dumps(found["dask"]) == json.dumps(found["local"])


@pytest.mark.parametrize("options", [(), ("--smallest", "--budget", "1.0..1.5:0.25")])
def test_a_cluster_gives_the_models_that_this_process_gives(tmp_path, cluster, trace, options):
    found = []
    for where in ((), ("--jobs", 2), ("--executor", cluster)):
        done = command("fragment", "run", trace, *options, "--json", "-", *where)
        assert done.exit_code == 0, done.output
        found.append(without_time(json.loads(done.stdout)["runs"]))
    assert found[0] == found[1] == found[2]


PICKLED = []


class Counted:
    """Says in which worker it was unpacked, and when: each a file."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        PICKLED.append(self)
        return unpack, (self.folder,)


def unpack(folder):
    made = Counted(folder)
    (folder / f"{os.getpid()}-{id(made)}").touch()
    return made


def worker_of(shared, number):
    assert isinstance(shared, Counted)
    return os.getpid()


def test_what_runs_share_travels_once_to_each_worker(tmp_path, cluster):
    PICKLED.clear()
    with Workers(cluster).opened(Counted(tmp_path), 50) as pool:
        workers = set(pool.outcomes(worker_of, [(number,) for number in range(50)]))
    assert len(workers) == 2
    assert len(PICKLED) == 1
    assert sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir()) == sorted(workers)


def die_started(shared, number):
    if number == shared:
        time.sleep(2)  # one that dies while its nanny still calls it starting never comes back
    return die(shared, number)


@pytest.mark.long
def test_a_run_that_kills_its_workers_is_a_failure_and_the_rest_goes_on(cluster):
    """Dask gives a run up that was on four workers that died: also one that was beside it."""
    with Workers(cluster).opened(0, 12) as pool:
        found = list(pool.outcomes(die_started, [(number,) for number in range(12)]))
    failed = {at: found[at] for at in range(12) if isinstance(found[at], Failure)}
    assert 0 in failed
    assert {type(failure.error).__name__ for failure in failed.values()} == {"KilledWorker"}, failed
    assert [found[at] for at in range(12) if at not in failed] == sorted({*range(12)} - {*failed})
    assert len(failed) < 12


def test_nothing_is_left_on_a_cluster(cluster):
    with Workers(cluster).opened("logs", 2) as pool:
        (during, _) = pool.outcomes(names_held, [(), ()])
    with Workers(cluster).opened("others", 2) as pool:
        (after, _) = pool.outcomes(names_held, [(), ()])
    assert len(during) == len(after) == 1


def names_held(shared):
    return set(executors._received)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    pytest.importorskip("distributed", reason="distributed is not installed")
    monkeypatch.setattr(executors, "WAIT_S", 0.1)
    done = command(*SWEEP, "--executor", "dask://127.0.0.1:1")
    assert done.exit_code == 1
    message = "--executor dask://127.0.0.1:1: no Dask scheduler answers there within 0.1 s"
    assert message in done.output


# ---- MPI ----


def test_ranks_give_the_bytes_that_processes_give(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    launch = executors.MPI_COMMAND.replace("mpiexec", mpiexec).replace("RANKS", "3").split()
    launch[launch.index("python")] = sys.executable
    path = tmp_path / "mpi"
    done = subprocess.run(
        [*launch, *SWEEP, "--executor", "mpi", "--json", path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ranks = without_time([json.loads(line) for line in path.read_text().splitlines()])
    assert ranks == swept(tmp_path / "local", "--jobs", 2)


def test_mpi_without_ranks_says_how_to_start_them():
    pytest.importorskip("mpi4py.futures", reason="mpi4py is not installed", exc_type=ImportError)
    done = command(*SWEEP, "--executor", "mpi")
    assert done.exit_code == 1
    assert executors.MPI_COMMAND in done.output
